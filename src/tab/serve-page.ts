// A tab's part of a run: it dials the coordinator that served its page, shows the join code, and is a worker like any
// other from then on.

import { type Clock, systemClock } from '../clock.ts';
import { bytesInMiB } from '../cluster/memory.ts';
import type { Engine } from '../engine/engine.ts';
import { InputError } from '../errors.ts';
import { comparableMiB } from '../runtime/device/memory-need.ts';
import type { DeviceFacts } from '../runtime/protocol/device-facts.ts';
import type { WorkerEnd } from '../runtime/worker/options.ts';
import { runWorker } from '../runtime/worker/worker.ts';
import { protocolVersion } from '../transport/handshake.ts';
import { dial, type OpenSocket, socketLink } from './browser-socket.ts';
import { createPageNetwork } from './page-network.ts';

/** What a tab knows of its device. */
export type PageFacts = Pick<DeviceFacts, 'memoryMiB' | 'cores' | 'machine' | 'batteryPercent' | 'isDischarging'>;

export interface PageWorkerOptions {
  /** ws(s)://HOST:PORT/device */
  readonly url: string;
  readonly open: OpenSocket;
  /** As printed. */
  readonly joinCode: string;
  /** The name that the device would like. */
  readonly name: string;
  readonly facts: PageFacts;
  /** The caller closes it. */
  readonly engine: Engine;
  /** Aborted: asks to be let go. */
  readonly leave: AbortSignal;
  readonly clock?: Clock;
  onJoined(name: string): void;
}

/** Joins and serves until the run ends. Rejects with InputError where it is refused, RunError if nobody answers. */
export async function servePage(options: PageWorkerOptions): Promise<WorkerEnd> {
  const { url, open, joinCode, engine, leave, clock = systemClock } = options;
  const hello = {
    protocol: protocolVersion,
    purpose: 'worker',
    name: options.name,
    credential: joinCode,
    facts: { ...options.facts, engine: engine.name },
  } as const;
  const dialled = await dial(open, url, hello, clock);
  const { name, facts } = dialled.welcome;
  const relaySecret = facts?.['relaySecret'];
  if (typeof relaySecret !== 'string') throw new InputError('the run is of another version: reload the page');
  options.onJoined(name);
  return runWorker({
    ...{ name, clock, engine, leave },
    coordinator: socketLink(dialled, url.startsWith('wss:'), clock),
    memoryBytes: comparableMiB(options.facts.memoryMiB, engine.name) * bytesInMiB,
    createNetwork: async (own, token, onLink) =>
      createPageNetwork({ name: own, url, open, token, relaySecret, clock, onLink }),
  });
}
