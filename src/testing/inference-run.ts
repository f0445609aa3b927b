// What a run over memory links needs so that it only infers: devices compute what is asked of its rounds.

import { tensor } from '../graph/tensor.ts';
import type { RunSubject } from '../runtime/protocol/run-subject.ts';
import { graphWeights } from '../runtime/run/graph-weights.ts';
import type { InferenceRounds } from '../runtime/run/inference-rounds.ts';
import type { MemoryRun } from './memory-cluster.ts';

type Needed = 'subject' | 'weights' | 'batch' | 'onResults' | 'onReady' | 'machine';

const noLabels = tensor('int64', [0], []);

/** `window`: how many rounds may be under way. It has no plan. */
export function inferenceRun(
  subject: RunSubject,
  rounds: InferenceRounds,
  window: number,
): Required<Pick<MemoryRun, Needed>> {
  return {
    subject,
    weights: graphWeights(subject.sequence),
    batch: (round) => ({ ...rounds.batch(round), labels: noLabels }),
    onResults: (round, outputs) => rounds.results(round, outputs),
    onReady: (offer) => rounds.begin(offer),
    machine: {
      ...{ endRound: Number.MAX_SAFE_INTEGER, isStateConstant: true, awaitsOffers: true, replicateEvery: 0, window },
      batchAt: (round) => rounds.batchAt(round),
    },
  };
}
