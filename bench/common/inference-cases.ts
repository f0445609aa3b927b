// What bench/infer.ts runs: ten models, inputs that fit them, and plans of every form.

import { defined } from '../../dist/assert.js';
import type { PlanLayout } from '../../dist/cluster/cluster.js';
import type { CutTensor } from '../../dist/graph/layers.js';
import { allocate, elementCount, type Tensor, wrap } from '../../dist/graph/tensor.js';
import { createRandom, type Random } from '../../dist/random.js';

/** Of the zoo. */
export const builtIn = ['vit-base', 'deit-tiny', 'bert-base', 'mobilenet-v2', 'efficientnet-b1', 'resnet-50'] as const;

/** Of bench/infer_models.py. */
export const exported = [
  'timm-convnext-tiny',
  'timm-deit3-small',
  'transformers-distilbert',
  'transformers-bert',
] as const;

/** Ids that every vocabulary here has. */
const idCount = 1000;

/** Samples for a model: normal values, ids, types of 0 and 1, and masks that end somewhere. */
export function samplesOf(
  inputs: readonly CutTensor[],
  sampleCount: number,
  seed: number,
): ReadonlyMap<string, Tensor> {
  const random = createRandom(seed);
  return new Map(inputs.map((input) => [input.name, valuesOf(input, sampleCount, random)]));
}

function valuesOf({ name, type, shape }: CutTensor, sampleCount: number, random: Random): Tensor {
  const whole = shape.map((size) => (size === 'N' ? sampleCount : size));
  const count = elementCount(whole);
  if (type === 'float32') {
    const data = allocate('float32', count);
    for (let index = 0; index < count; index++) data[index] = random.normal();
    return wrap('float32', whole, data);
  }
  if (type !== 'int64') throw new Error(`${name} is ${type}: the benchmark has no samples for it`);
  const length = count / sampleCount;
  const data = new BigInt64Array(count);
  for (let sample = 0; sample < sampleCount; sample++) {
    const end = 1 + random.integer(length);
    for (let at = 0; at < length; at++) {
      const value = /mask/.test(name) ? Number(at < end) : random.integer(/type/.test(name) ? 2 : idCount);
      data[sample * length + at] = BigInt(value);
    }
  }
  return wrap('int64', whole, data);
}

/** A plan, and what it is called in the table. */
export interface NamedPlan {
  readonly name: string;
  readonly plan: PlanLayout;
}

/**
 * Four plans for a model of `layerCount` layers, cut at places of the seed: one device; three in a row; replicas with
 * unequal shares before and after one device; four devices with one sample at a time.
 */
export function plansOf(layerCount: number, seed: number): readonly NamedPlan[] {
  const random = createRandom(seed, 0x1f3);
  const forms: readonly (readonly [name: string, shares: readonly (readonly number[])[], microBatches: number])[] = [
    ['one device', [[4]], 1],
    ['three stages', [[4], [4], [4]], 2],
    ['replicas', [[2, 1], [3], [1, 2]], 1],
    ['one sample at a time', [[1], [1], [1], [1]], 3],
  ];
  return forms.map(([name, shares, microBatchCount]) => ({
    name,
    plan: planOf(shares, microBatchCount, cutsOf(shares.length, layerCount, random)),
  }));
}

function cutsOf(stageCount: number, layerCount: number, random: Random): readonly number[] {
  const cuts = new Set<number>();
  while (cuts.size < stageCount - 1) cuts.add(1 + random.integer(layerCount - 1));
  return [0, ...[...cuts].sort((a, b) => a - b), layerCount];
}

function planOf(
  shares: readonly (readonly number[])[],
  microBatchCount: number,
  borders: readonly number[],
): PlanLayout {
  const microBatchSize = defined(shares[0], 'a stage').reduce((sum, share) => sum + share, 0);
  let device = 0;
  return {
    ...{ planner: 'by hand', schedule: 'inference', microBatchSize, microBatchCount },
    batchSize: microBatchSize * microBatchCount,
    stages: shares.map((samples, stage) => ({
      layers: [defined(borders[stage], 'a border'), defined(borders[stage + 1], 'a border')],
      devices: samples.map(() => `worker-${++device}`),
      samples,
      inFlight: microBatchCount,
    })),
  };
}
