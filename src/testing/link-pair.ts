// Two connected ends of a link under test, and a run on them that must leave nothing open. The suite is link-suite.ts.

import assert from 'node:assert/strict';
import { type Clock, systemClock } from '../clock.ts';
import type { Link } from '../transport/link.ts';
import { defaultLinkLimits, type LinkLimits } from '../transport/wire-link.ts';

/** Two ends of a link under test. */
export interface LinkPair {
  readonly a: Link;
  readonly b: Link;
  /** From now on a bit is flipped in what travels from `a` to `b`. */
  corrupt(): void;
  /** Ends what is left of the pair; resolves when nothing of it is open any more. */
  release(): Promise<void>;
}

/** Makes a connected pair; `a`'s peer is called 'b' and the other way round. */
export type MakeLinkPair = (options: { readonly clock: Clock; readonly limits: LinkLimits }) => Promise<LinkPair>;

/** Runs a test on a fresh pair and checks that no timer, socket or server of it is left. */
export async function runOnPair(
  makePair: MakeLinkPair,
  run: (pair: LinkPair) => Promise<void>,
  limits: Partial<LinkLimits> = {},
): Promise<void> {
  const counting = countingClock();
  const resourceCount = openResourceCount();
  const keepAlive = setInterval(() => {}, 1_000); // the system clock's timers do not
  const pair = await makePair({ clock: counting.clock, limits: { ...defaultLinkLimits, ...limits } });
  try {
    await run(pair);
  } finally {
    await pair.release();
    clearInterval(keepAlive);
  }
  await Promise.all([pair.a.ended, pair.b.ended]);
  assert.equal(counting.openTimers(), 0, 'timers are left');
  // Handles are let go a few turns of the event loop after their events.
  for (let turn = 0; turn < 1000 && openResourceCount() > resourceCount; turn++)
    await new Promise((resolve) => setImmediate(resolve));
  assert.ok(openResourceCount() <= resourceCount, 'handles are left');
}

/** The system's clock, which counts the timers that have neither ended nor been cancelled. */
function countingClock(): { readonly clock: Clock; openTimers(): number } {
  let timerCount = 0;
  const clock: Clock = {
    now: () => systemClock.now(),
    after(delayMs, callback) {
      timerCount++;
      let isOpen = true;
      const end = (): void => {
        if (isOpen) timerCount--;
        isOpen = false;
      };
      const cancel = systemClock.after(delayMs, () => {
        end();
        callback();
      });
      return () => {
        end();
        cancel();
      };
    },
  };
  return { clock, openTimers: () => timerCount };
}

/** Sockets and servers that keep the process alive. */
function openResourceCount(): number {
  return process.getActiveResourcesInfo().filter((kind) => /TCP|TLS/.test(kind)).length;
}
