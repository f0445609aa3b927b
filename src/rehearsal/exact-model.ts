// A model of which every number is exact: arithmetic on integers modulo a prime, so that sums come out the same in any
// order and on any split, and one sample lost or counted twice, one stale tensor, one weight of another round changes
// all that follows. exact-oracle.ts has the same training on one device, written out.
//
// Sample rows are [value, sample, round, epoch], state is [value, version]; the version of weights, momentum and
// statistics is the number of rounds that they have seen.

import type { CutTensor, Layer, LayerSequence } from '../graph/layers.ts';
import { type Tensor, wrap } from '../graph/tensor.ts';
import { hash32 } from '../random.ts';
import type { Batch } from '../runtime/coordinator/options.ts';
import type { StateRole } from '../runtime/protocol/messages.ts';
import type { RunState } from '../runtime/protocol/run-state.ts';
import type { TrainingSpec } from '../runtime/protocol/training-spec.ts';

/** A sum over 64 samples of numbers below it is exact in float32. */
export const modulus = 65_521;
export const maxBatchSize = 64;

/** Elements of a sample's row. */
export const rowLength = 4;

const mod = (value: number): number => value % modulus;

/** What a layer's tangent depends on. `direction`: what its weight moves by. */
export interface MovedLayer {
  readonly weight: number;
  readonly direction: number;
  readonly input: number;
}

/** The rules of one layer; all values are integers in [0, modulus). */
export const layerRules = {
  forward: (input: number, weight: number, layer: number): number => mod(input * weight + layer + 1),
  inputGradient: (gradient: number, weight: number, input: number): number => mod(gradient * weight + input),
  weightGradient: (gradient: number, input: number, sample: number): number =>
    mod(gradient * 3 + input * 5 + sample + 7),
  loss: (output: number, label: number): number => mod(output + label),
  lossGradient: (output: number, label: number): number => mod(output * 11 + label * 13 + 1),
  /** What a layer makes of a tangent of its input, where its weight moves, too. */
  tangent: (tangent: number, { weight, direction, input }: MovedLayer): number =>
    mod(mod(tangent * weight) + mod(input * direction)),
  /** The derivative of a sample's loss along the tangent of its output. */
  derivative: (tangent: number, label: number): number => mod(tangent * 11 + label * 17 + 1),
  /** A layer's part of the norm that decides the scale of clipping. */
  norm: (gradientSum: number): number => mod(gradientSum) % 1000,
  statistic: (before: number, outputSum: number): number => mod(before + outputSum),
  momentum: (before: number, gradientSum: number, scale: number, weight: number, learningRate: number): number =>
    mod(before * 3 + mod(gradientSum) * scale + weight + learningRate),
  /** What stands for the mean of versions of a weight. Of one, it is that. */
  mean: (versions: readonly number[]): number =>
    versions.length === 1 ? (versions[0] as number) : mod(versions.reduce((sum, weight) => mod(sum * 3 + weight), 0)),
  weight: (before: number, momentum: number, step: number): number => mod(before + momentum * 7 + step),
} as const;

/** What a layer's weight moves by along a tangent of a round. */
export function directionAt(
  seed: number,
  { layer, round, tangent }: { readonly layer: number; readonly round: number; readonly tangent: number },
): number {
  return hash32(seed, 17, layer, round, tangent) % modulus;
}

/** What stands for the estimate of a gradient: of each tangent, the derivative of the losses times a direction. */
export function estimateOf(derivatives: readonly number[], direction: (tangent: number) => number): number {
  return derivatives.reduce((total, own, tangent) => mod(total + mod(own) * direction(tangent)), 0);
}

/** The rate of a round. */
export function learningRate(round: number): number {
  return 1 + (round % 5);
}

/** The scale for a global norm, where gradients are clipped. */
export function gradientScale(norm: number): number {
  return 1 + (norm % 3);
}

export const label: CutTensor = {
  name: 'label',
  type: 'float32',
  shape: ['N', 2],
  batchAxis: 0,
  differentiable: false,
};

/** Of a layer: its weight, its running statistic and its momentum. */
type StateNames = Readonly<Record<StateRole, string>>;

const knownNames: StateNames[] = [];

/** Names of a layer's state; always the identical strings, which makes looking them up fast. */
export function stateNames(layer: number): StateNames {
  let names = knownNames[layer];
  if (names === undefined) {
    names = {
      parameter: `layer${layer}.weight`,
      buffer: `layer${layer}.statistic`,
      optimizer: `layer${layer}.weight/momentum`,
    };
    knownNames[layer] = names;
  }
  return names;
}

const knownSequences: LayerSequence[] = [];

/** The model of `layerCount` layers, all state zero. It is shared: nobody may change it. */
export function exactSequence(layerCount: number): LayerSequence {
  const known = knownSequences[layerCount];
  if (known !== undefined) return known;
  const cut = (index: number): CutTensor => ({
    name: `cut${index}`,
    type: 'float32',
    shape: ['N', rowLength],
    batchAxis: 0,
    differentiable: index > 0,
  });
  const layers = Array.from({ length: layerCount }, (_, index): Layer => {
    const { parameter, buffer } = stateNames(index);
    return {
      name: `layer${index}`,
      nodes: [],
      parameters: [parameter],
      buffers: [buffer],
      outputs: [cut(index + 1)],
      batchDependent: false,
      signature: 'exact',
      flops: 1,
    };
  });
  const state = (role: 'parameter' | 'buffer'): string[] => layers.map((_, index) => stateNames(index)[role]);
  const [parameters, buffers] = [state('parameter'), state('buffer')];
  const sequence: LayerSequence = {
    graph: {
      name: 'exact',
      inputs: [{ name: 'cut0', type: 'float32', shape: ['N', rowLength] }],
      outputs: [{ name: `cut${layerCount}`, type: 'float32', shape: ['N', rowLength] }],
      initializers: new Map([...parameters, ...buffers].map((name) => [name, versioned(0, 0)])),
      parameters,
      buffers,
      nodes: [],
    },
    inputs: [cut(0)],
    layers,
  };
  knownSequences[layerCount] = sequence;
  return sequence;
}

/** The state before the first round; momentum starts from nothing, as optimizers do. */
export function initialRunState(seed: number, layerCount: number): RunState {
  const parameter = new Map<string, Tensor>();
  const buffer = new Map<string, Tensor>();
  for (let layer = 0; layer < layerCount; layer++) {
    const names = stateNames(layer);
    parameter.set(names.parameter, versioned(hash32(seed, 1, layer) % modulus, 0));
    buffer.set(names.buffer, versioned(hash32(seed, 2, layer) % modulus, 0));
  }
  return { parameter, buffer, optimizer: new Map() };
}

/** A piece of state: its value, and how many rounds it has seen. */
export function versioned(value: number, version: number): Tensor {
  const data = new Float32Array(2);
  data[0] = value;
  data[1] = version;
  return wrap('float32', [2], data);
}

/** One sample of a round's batch. */
export interface Sample {
  readonly id: number;
  readonly value: number;
  readonly label: number;
}

/** The sample at a place of a round's batch. */
export function sampleAt(seed: number, round: number, place: number): Sample {
  const id = sampleIdAt(seed, round, place);
  return { id, value: hash32(seed, 4, id) % modulus, label: hash32(seed, 5, id) % modulus };
}

/** Which sample it is. */
export function sampleIdAt(seed: number, round: number, place: number): number {
  return hash32(seed, 3, round, place) % modulus;
}

/** The sizes of batches: one of each `smallerEvery` has fewer samples, if there are any such. */
export interface BatchSizes {
  readonly batchSize: number;
  readonly smallerEvery?: number;
}

/** The samples of a round. */
export function samplesIn({ batchSize, smallerEvery }: BatchSizes, round: number): number {
  const isWhole = smallerEvery === undefined || round % smallerEvery < smallerEvery - 1 || batchSize === 1;
  return isWhole ? batchSize : 1 + (hash32(round, 6) % (batchSize - 1));
}

/** A round's batch as the coordinator feeds it. Its rows bear no epoch. */
export function batchOf(seed: number, round: number, batchSize: number): Batch {
  const inputs = new Float32Array(batchSize * rowLength);
  const labels = new Float32Array(batchSize * 2);
  for (let place = 0; place < batchSize; place++) {
    const sample = sampleAt(seed, round, place);
    writeRow(inputs, place, { value: sample.value, sample: sample.id, round, epoch: 0 });
    labels[2 * place] = sample.label;
    labels[2 * place + 1] = sample.id;
  }
  return { inputs: [wrap('float32', [batchSize, rowLength], inputs)], labels: wrap('float32', [batchSize, 2], labels) };
}

/** What a sample's row says. */
export interface Row {
  readonly value: number;
  readonly sample: number;
  readonly round: number;
  readonly epoch: number;
}

export function writeRow(rows: Float32Array, index: number, { value, sample, round, epoch }: Row): void {
  const start = index * rowLength;
  rows[start] = value;
  rows[start + 1] = sample;
  rows[start + 2] = round;
  rows[start + 3] = epoch;
}

/** What a run trains. */
interface Trained {
  readonly seed: number;
  readonly plan: { readonly batchSize: number };
  readonly isClipped: boolean;
  /** K of weight aggregation. Default 0: never. */
  readonly aggregate?: number;
  /** Layers whose weight is not trained. Default: none. */
  readonly frozenLayers?: readonly number[];
  /** Tangents of a round of forward gradients. Default 0: backward passes. */
  readonly tangentCount?: number;
}

/** The training as every device gets it; the momentum optimizer stands for there being optimizer state. */
export function trainingSpec(trained: Trained): TrainingSpec {
  const { seed, plan, isClipped, aggregate = 0, frozenLayers = [], tangentCount = 0 } = trained;
  const frozen = frozenLayers.map((layer) => stateNames(layer).parameter);
  const optimizer = {
    kind: 'sgd',
    momentum: 0.5,
    nesterov: false,
    weightDecay: 0,
    beta1: 0,
    beta2: 0,
    epsilon: 1,
  } as const;
  return {
    ...{ batchSize: plan.batchSize, loss: 'mse', optimizer, clipNorm: isClipped ? 1 : null, seed, frozen },
    ...(aggregate === 0 ? {} : { aggregate }),
    ...(tangentCount === 0
      ? {}
      : { forwardGradient: { tangentCount, kind: 'rademacher', scales: {}, roundsPerEpoch: 1 } }),
  };
}
