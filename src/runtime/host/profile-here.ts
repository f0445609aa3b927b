// The profile of a model on this device alone, as a document for planning.

import type { Clock } from '../../clock.ts';
import type { Profile } from '../../cluster/cluster.ts';
import { bytesInMiB } from '../../cluster/memory.ts';
import { createComputeThread } from '../../engine/node/compute-thread.ts';
import { deviceFacts } from '../../engine/node/host-node.ts';
import { createProcessClock } from '../../engine/node/work-clock.ts';
import { type CutTensor, cutBefore, cutBytes, type LayerSequence } from '../../graph/layers.ts';
import { profileLayers } from '../device/measure/profiler.ts';
import { trainingMiB } from '../device/memory-need.ts';
import { profilePoints } from '../protocol/profile-points.ts';
import type { TrainingSpec } from '../protocol/training-spec.ts';
import { trainedLayers } from '../run/fine-tuning.ts';
import type { LoadedModel } from '../run/loaded-model.ts';

export interface MeasureOptions {
  readonly largestBatch: number;
  /** The device's (or kind's) name in the profile. */
  readonly device: string;
  readonly threads: number;
  readonly engine: 'onnxruntime' | 'reference';
  /** Patterns as in --freeze and --freeze-all-but. Default: everything is trained. */
  readonly freeze?: readonly string[];
  readonly freezeAllBut?: readonly string[];
  /** Patterns as in --train. Default: none. */
  readonly train?: readonly string[];
  /** Measures passes with so many tangents, too. Default: none. */
  readonly tangentCount?: number;
  readonly clock: Clock;
  onProgress(done: number, total: number): void;
  /** The engine is a far slower one than this device could have. */
  onWarning?(message: string): void;
}

/** A label is assumed to be one int64. */
const labelBytes = 8;

/** Plain SGD on class numbers: a run's defaults. */
export function assumedTraining(batchSize: number, frozen: readonly string[]): TrainingSpec {
  const optimizer = {
    kind: 'sgd',
    momentum: 0,
    nesterov: false,
    weightDecay: 0,
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
  } as const;
  return { batchSize, loss: 'cross-entropy', optimizer, clipNorm: null, seed: 0, frozen };
}

/** A class number for each sample, or for each position after the axis of the classes. */
export function assumedLabel(sequence: LayerSequence): CutTensor {
  const [logits] = cutBefore(sequence, sequence.layers.length);
  const positions = (logits?.shape ?? []).slice(2);
  return { name: 'label', type: 'int64', shape: ['N', ...positions], batchAxis: 0, differentiable: false };
}

/** Measures all layers here. */
export async function measureHere(model: LoadedModel, options: MeasureOptions): Promise<Profile> {
  const { freeze = [], freezeAllBut = [], train = [] } = options;
  const tuning = { loss: 'cross-entropy', freeze, freezeAllBut, train } as const;
  const { sequence, frozen } = trainedLayers(model.graph, tuning, model.choices);
  const engine = await createComputeThread({ engine: options.engine, threadCount: options.threads });
  if (engine.warning !== undefined) options.onWarning?.(engine.warning);
  try {
    const batchSizes = profilePoints(options.largestBatch, sequence.fixedBatch);
    const training = assumedTraining(options.largestBatch, frozen);
    const common = {
      batchSizes,
      label: assumedLabel(sequence),
      memoryBytes: trainingMiB(deviceFacts().memoryMiB, engine.name) * bytesInMiB,
      clock: options.clock,
      processWork: createProcessClock({ threadCount: options.threads, maxCpu: 1, isCourteous: false }),
      onProgress: options.onProgress,
    };
    const { tangentCount = 0 } = options;
    const forwardGradient = { tangentCount, kind: 'rademacher', scales: {}, roundsPerEpoch: 1 } as const;
    const withTangents =
      tangentCount === 0
        ? undefined
        : await profileLayers(engine, sequence, { ...common, training: { ...training, forwardGradient } });
    const tangentMs = withTangents?.times.tangentMs;
    // A recurrent cell has no backward passes here: as in a run by forward gradients, its forward ones have tangents.
    const { layers: layerProfiles, times } =
      model.graph.states === undefined || withTangents === undefined
        ? await profileLayers(engine, sequence, { ...common, training })
        : withTangents;
    return {
      model: model.name,
      inputBytes: cutBytes(sequence.inputs),
      labelBytes,
      ...(sequence.fixedBatch === undefined ? {} : { fixedBatch: sequence.fixedBatch }),
      layers: layerProfiles,
      batchSizes,
      devices: { [options.device]: { ...times, ...(tangentMs === undefined ? {} : { tangentMs }) } },
    };
  } finally {
    await engine.close();
  }
}
