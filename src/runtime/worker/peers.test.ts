import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createVirtualClock, type VirtualClock } from '../../testing/virtual-clock.ts';
import type { Frame, Link } from '../../transport/link.ts';
import { Peers } from './peers.ts';

interface Shape {
  readonly mbps: number;
  readonly latencyMs: number;
  /** Bytes that pass at once after the link was idle (a token bucket), and those that a buffer takes from the sender at once. */
  readonly burstBytes: number;
}

/** One direction: a token bucket, then a way of some length. */
function direction(clock: VirtualClock, { mbps, latencyMs, burstBytes }: Shape): (bytes: number, arrive: () => void) => void {
  const bytesPerMs = mbps * 125;
  let [tokens, filledMs] = [burstBytes, 0];
  return (bytes, arrive) => {
    const nowMs = Math.max(clock.now(), filledMs);
    tokens = Math.min(burstBytes, tokens + (nowMs - filledMs) * bytesPerMs);
    filledMs = nowMs;
    // What the bucket lacks is waited for; the next message waits behind it.
    const waitMs = Math.max(0, (bytes - tokens) / bytesPerMs);
    tokens = Math.max(0, tokens - bytes);
    filledMs += waitMs;
    clock.after(filledMs - clock.now() + latencyMs, arrive);
  };
}

/** Two workers' peers, linked by such directions. */
function linked(clock: VirtualClock, shape: Shape): Peers {
  const handlers: Record<string, (frame: Frame) => void> = {};
  const link = (from: string, to: string): Link => {
    const send = direction(clock, shape);
    return {
      peer: to,
      async send(frame) {
        const bytes = 100 + (frame.tensors ?? []).reduce((sum, { data }) => sum + data.byteLength, 0);
        send(bytes, () => handlers[to]?.(frame));
      },
      receive: (handler) => {
        handlers[from] = handler;
      },
      queuedBytes: () => 0,
      close: async () => {},
      ended: new Promise(() => {}),
    };
  };
  const [a, b] = ['a', 'b'].map((name) => new Peers(name, clock, { onFrame: () => {}, onEnd: () => {} })) as [Peers, Peers];
  a.accept(link('a', 'b'));
  b.accept(link('b', 'a'));
  return a;
}

for (const [mbps, latencyMs, burstBytes] of [
  [100, 0.2, 2 ** 16],
  [100, 0.2, 2 ** 18],
  [10, 5, 2 ** 16],
  [1000, 0.1, 2 ** 17],
  [1000, 25, 2 ** 16],
] as const) {
  test(`a link of ${mbps} Mbps and ${latencyMs} ms that lets ${burstBytes / 1024} KiB pass at once is measured within 1%`, async () => {
    const clock = createVirtualClock();
    const { bandwidthMbps, latencyMs: found } = await clock.runUntil(linked(clock, { mbps, latencyMs, burstBytes }).measure('b'));
    assert.ok(Math.abs(bandwidthMbps / mbps - 1) < 0.01, `${bandwidthMbps} Mbps`);
    assert.ok(Math.abs(found / latencyMs - 1) < 0.01, `${found} ms`);
    // 10 Mbps are 2 MiB in 1.7 s at most, a gigabit 48 MiB.
    assert.ok(clock.now() < 2000, `${clock.now()} ms`);
  });
}
