// Is a distributed run the same as training on one device? Runs both from the same weights and data and compares every
// loss and the final state. Where rounds overlap, the one device computes with weights as old as the run's plans have
// them (delayed-streams.ts).

import { defined } from '../../assert.ts';
import { elementCount, type Tensor } from '../../graph/tensor.ts';
import { gather } from '../../training/data/dataset.ts';
import { batchIndices } from '../../training/data/order.ts';
import type { Observer } from '../protocol/events.ts';
import type { RunSubject } from '../protocol/run-subject.ts';
import { type StreamPart, StreamParts, trainStreams } from './delayed-streams.ts';
import type { DelayedResult } from './delayed-training.ts';
import type { EngineFactory } from './evaluate.ts';
import type { PreparedRun, SessionInput } from './prepare.ts';
import type { SessionResult } from './session.ts';

/** What was compared. Differences are relative. */
export interface Comparison {
  /** Loss of each round: distributed, on one device. */
  readonly losses: readonly (readonly [distributed: number, single: number])[];
  /** max over the rounds of |a − b| / |b|. */
  readonly lossDifference: number;
  /** max over the tensors of max|a − b| / max|b|: weights, running statistics. */
  readonly weightDifference: number;
  /** The tensor of that maximum. */
  readonly worstWeight: string;
  readonly distributed: SessionResult;
}

/** The largest relative differences that rounding explains. */
export interface Tolerances {
  readonly losses: number;
  readonly weights: number;
}

/**
 * What two runs that compute the same may differ by: 1e-5, and 1e-3 where something amplifies rounding. Batch
 * normalization does, in losses too. Adam divides each gradient by its own size, so that one that is nearly zero moves
 * its weight by as much as any other, into a direction that is rounding; losses hardly know such weights.
 */
export function tolerancesOf({ sequence, training }: RunSubject): Tolerances {
  const hasBatchNorm = sequence.graph.buffers.length > 0;
  const losses = hasBatchNorm ? 1e-3 : 1e-5;
  return { losses, weights: training.optimizer.kind === 'sgd' ? losses : 1e-3 };
}

/** What a comparison runs with. */
export interface VerifyHost {
  /** `observe` is told of everything, besides the caller's own observer. */
  runSession(input: SessionInput, observe: Observer): Promise<SessionResult>;
  prepareRun(input: SessionInput): PreparedRun;
  readonly createEngine: EngineFactory;
  /** Aborted by Ctrl-C. */
  readonly signal: AbortSignal;
}

/**
 * Runs the session as it is, then again in this process with the same micro-batches, and compares. Undefined where it
 * was stopped before its end.
 */
export async function verifyWith(
  host: VerifyHost,
  input: SessionInput,
  onPart: (part: 'distributed' | 'single') => void,
): Promise<Comparison | undefined> {
  const streams = new StreamParts();
  let recorded = 0;
  const noted: Observer = (event) => {
    if (event.kind === 'round') recorded = event.metrics.round + 1;
    streams.observe(event, recorded);
  };
  onPart('distributed');
  const distributed = await host.runSession(input, noted);
  if (distributed.stopped) return undefined;
  onPart('single');
  const plan = defined(distributed.plan, 'the plan of a run that ended');
  const settings = { ...input.settings, workers: 0, remote: 0, microBatch: plan.microBatchSize };
  const { plan: _, cluster: __, ...rest } = input;
  const alone = { ...rest, settings };
  const isStream = streams.parts.length > 0;
  const single = await (isStream ? runDelayed(host, alone, streams.parts) : host.runSession(alone, () => {}));
  return single.stopped ? undefined : compare(distributed, single);
}

/** The rounds on one device, with the versions of weights that the stages of the run's streams read. */
async function runDelayed(
  { prepareRun, createEngine, signal }: VerifyHost,
  input: SessionInput,
  parts: readonly StreamPart[],
): Promise<DelayedResult & Pick<SessionResult, 'stopped'>> {
  const { subject, machine, dataset, order, settings } = prepareRun(input);
  const engine = await createEngine({ engine: settings.engine, threadCount: settings.threads });
  try {
    const run: Parameters<typeof trainStreams>[1] = {
      subject,
      config: machine,
      batch: (round) => gather(dataset, batchIndices(order, round)),
      aggregateEvery: settings.aggregate,
      correction: subject.training.stalenessCorrection ?? 'none',
      signal,
    };
    return { ...(await trainStreams(engine, run, parts)), stopped: signal.aborted };
  } finally {
    await engine.close();
  }
}

/** Compares two runs of the same rounds. */
export function compare(distributed: SessionResult, single: DelayedResult): Comparison {
  const losses = distributed.losses.map((loss, index) => [loss, defined(single.losses[index], 'a loss')] as const);
  let [weightDifference, worstWeight] = [0, ''];
  for (const role of ['parameter', 'buffer'] as const) {
    for (const [name, value] of distributed.state[role]) {
      const difference = tensorDifference(value, defined(single.state[role].get(name), name));
      if (difference >= weightDifference) [weightDifference, worstWeight] = [difference, name];
    }
  }
  const lossDifference = losses.reduce(
    (most, [a, b]) => Math.max(most, Math.abs(a - b) / Math.max(Math.abs(b), 1e-12)),
    0,
  );
  return { losses, lossDifference, weightDifference, worstWeight, distributed };
}

/** max|a − b| / max|b|; infinite where a number is not finite. */
export function tensorDifference(a: Tensor, b: Tensor): number {
  let [difference, size] = [0, 0];
  for (let index = 0; index < elementCount(a.shape); index++) {
    const [x, y] = [Number(a.data[index]), Number(b.data[index])];
    if (!Number.isFinite(x) || !Number.isFinite(y)) return Number.POSITIVE_INFINITY;
    difference = Math.max(difference, Math.abs(x - y));
    size = Math.max(size, Math.abs(y));
  }
  return difference === 0 ? 0 : difference / size;
}
