// What a worker measures: its links, the layers of the model on this device, and its process.

import { bytesInMiB } from '../../cluster/memory.ts';
import { RunError } from '../../errors.ts';
import { cachedProfile } from '../device/measure/cached-profile.ts';
import type { MeasuredProfile } from '../device/measure/measurement.ts';
import { profileLayers } from '../device/measure/profiler.ts';
import { trainingMiB } from '../device/memory-need.ts';
import type { ToCoordinator, ToWorker } from '../protocol/messages.ts';
import type { WorkerContext } from './context.ts';
import { measureLinks, usualTries } from './measure-links.ts';
import type { Model } from './model.ts';
import type { ProcessMeters } from './options.ts';
import type { Peers } from './peers.ts';

/** The statistics of a worker's process, of which the memory is looked at after each round. */
export class Statistics {
  readonly #meters: ProcessMeters;
  #peakMemoryBytes = 0;

  constructor(meters: ProcessMeters) {
    this.#meters = meters;
  }

  roundBegins(): void {
    this.#meters.start();
  }

  roundIsQueued(): void {
    this.#peakMemoryBytes = Math.max(this.#peakMemoryBytes, this.#meters.residentBytes());
  }

  report(): ToCoordinator['statistics'] {
    return {
      eventLoopDelayP99Ms: this.#meters.eventLoopDelayP99Ms(),
      eventLoopDelayMaxMs: this.#meters.eventLoopDelayMaxMs(),
      peakMemoryMiB: Math.max(this.#peakMemoryBytes, this.#meters.residentBytes()) / bytesInMiB,
    };
  }

  stop(): void {
    this.#meters.stop();
  }
}

/** Of a worker's links. */
type Measurer = Pick<Peers, 'measure'>;

/** Measures the links to these peers, one after the other, and reports them. */
export async function measureAll(
  context: WorkerContext,
  peers: Measurer,
  { peers: names, isBrief = false }: ToWorker['measure'],
): Promise<void> {
  const tries = isBrief ? 1 : usualTries;
  const links = await measureLinks(names, (peer) => context.guard(peers.measure(peer)), tries);
  await context.send('measured', { links });
}

/** Measures a link while training continues, behind all that is more urgent, and reports it. */
export function measureAgain(context: WorkerContext, peers: Measurer, peer: string): void {
  const measured = async (): Promise<void> => context.send('link-measured', await peers.measure(peer, 'bulk'));
  measured().catch((error: unknown) => {
    if (!(error instanceof RunError)) context.session.failure.fail(error); // a lost link reports itself
  });
}

/** Measures the model's layers at these batch sizes, unless that is known, and reports their times. */
export async function profile(context: WorkerContext, request: ToWorker['profile']): Promise<void> {
  const { engine, profileCache } = context.options;
  const model = context.modelFor('profile');
  const { sequence, label, message } = model;
  const subject = { engineName: engine.name, sequence, ...request, training: message.training, label };
  await context.send(
    'profiled',
    await context.guard(cachedProfile(profileCache, subject, () => measureModel(context, model, request))),
  );
}

async function measureModel(
  context: WorkerContext,
  { message, graph, sequence, label }: Model,
  request: ToWorker['profile'],
): Promise<MeasuredProfile> {
  const { engine, clock, memoryBytes, startProfile, processWork } = context.options;
  const onProgress = (done: number, total: number): void => context.notify('profile-progress', { done, total });
  if (startProfile === undefined || graph === undefined) {
    const { training } = message;
    const options = { ...request, training, label, memoryBytes, clock, processWork, onProgress };
    return profileLayers(engine, sequence, options);
  }
  const trialBytes = memoryBytes && trainingMiB(memoryBytes / bytesInMiB) * bytesInMiB;
  const measuring = startProfile({ message, graph, ...request, memoryBytes: trialBytes }, onProgress);
  try {
    return await context.guard(measuring.profile);
  } finally {
    measuring.end();
  }
}
