// Is a distributed run the same as training on one device? Runs both from the same weights and data and compares every
// loss and the final state.

import { defined } from '../../assert.ts';
import { elementCount, type Tensor } from '../../graph/tensor.ts';
import type { SessionInput } from './prepare.ts';
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

/**
 * Runs the session as it is, then again in this process with the same micro-batches, and compares. Undefined where it
 * was stopped before its end.
 */
export async function verifyWith(
  runSession: (input: SessionInput) => Promise<SessionResult>,
  input: SessionInput,
  onPart: (part: 'distributed' | 'single') => void,
): Promise<Comparison | undefined> {
  onPart('distributed');
  const distributed = await runSession(input);
  if (distributed.stopped) return undefined;
  onPart('single');
  const { microBatchSize } = defined(distributed.plan, 'the plan of a run that ended');
  const settings = { ...input.settings, workers: 0, remote: 0, microBatch: microBatchSize };
  const { plan: _, cluster: __, ...rest } = input;
  const single = await runSession({ ...rest, settings });
  return single.stopped ? undefined : compare(distributed, single);
}

/** Compares two runs of the same rounds. */
export function compare(distributed: SessionResult, single: SessionResult): Comparison {
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
function tensorDifference(a: Tensor, b: Tensor): number {
  let [difference, size] = [0, 0];
  for (let index = 0; index < elementCount(a.shape); index++) {
    const [x, y] = [Number(a.data[index]), Number(b.data[index])];
    if (!Number.isFinite(x) || !Number.isFinite(y)) return Number.POSITIVE_INFINITY;
    difference = Math.max(difference, Math.abs(x - y));
    size = Math.max(size, Math.abs(y));
  }
  return difference === 0 ? 0 : difference / size;
}
