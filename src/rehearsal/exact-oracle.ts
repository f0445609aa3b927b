// The training of the exact model on one device, written out: what every run must come to. Where rounds overlap, round
// t of a layer reads version max(first, t − its staleness), and a stream begins anew, from a version of the one before,
// where the run says so.

import { defined } from '../assert.ts';
import type { Tensor } from '../graph/tensor.ts';
import type { RunState } from '../runtime/protocol/run-state.ts';
import { aggregatedVersions } from '../training/aggregation.ts';
import {
  type BatchSizes,
  directionAt,
  estimateOf,
  gradientScale,
  initialRunState,
  layerRules,
  learningRate,
  sampleAt,
  samplesIn,
  stateNames,
} from './exact-model.ts';

/** [weight, momentum, statistic] of each layer. */
type LayerStates = readonly (readonly [number, number, number])[];

/** How the layers of a stage read and aggregate. */
export interface OracleStage {
  /** Half-open range. */
  readonly layers: readonly [number, number];
  readonly staleness: number;
  /** Versions that it trains with at once. */
  readonly versionCount: number;
}

/** What the samples of a round come to; gradients and outputs by layer. */
interface RoundSums {
  readonly gradientSums: readonly number[];
  readonly outputSums: readonly number[];
  readonly lossSum: number;
}

/** The training on one device: what every run must come to. */
export class Oracle {
  readonly #seed: number;
  readonly #layerCount: number;
  readonly #sizes: BatchSizes;
  readonly #isClipped: boolean;
  /** K of weight aggregation; 0: never. */
  readonly #aggregate: number;
  readonly #frozen: ReadonlySet<number>;
  /** 0: gradients come of backward passes. */
  readonly #tangentCount: number;
  /** By layer. */
  #stages: readonly OracleStage[];
  /** The version that the stream began with; 0 where rounds follow each other. */
  #first = 0;
  /** By round: the state before it. */
  readonly #states: LayerStates[];
  readonly #losses: number[] = [];
  /** By round: states that were saved. */
  readonly #saved = new Map<number, LayerStates>();

  constructor(
    options: BatchSizes & {
      readonly seed: number;
      readonly layerCount: number;
      readonly isClipped: boolean;
      /** K of weight aggregation. Default 0: never. */
      readonly aggregate?: number;
      /** Layers whose weight is not trained. Default: none. */
      readonly frozenLayers?: readonly number[];
      /** Tangents of a round of forward gradients. Default 0: backward passes. */
      readonly tangentCount?: number;
    },
  ) {
    this.#seed = options.seed;
    this.#layerCount = options.layerCount;
    this.#sizes = options;
    this.#isClipped = options.isClipped;
    this.#aggregate = options.aggregate ?? 0;
    this.#frozen = new Set(options.frozenLayers);
    this.#tangentCount = options.tangentCount ?? 0;
    const { layerCount } = options;
    this.#stages = new Array<OracleStage>(layerCount).fill({ layers: [0, layerCount], staleness: 0, versionCount: 1 });
    const { parameter, buffer } = initialRunState(options.seed, options.layerCount);
    const first = Array.from({ length: options.layerCount }, (_, layer) => {
      const names = stateNames(layer);
      return [valueIn(parameter.get(names.parameter)), 0, valueIn(buffer.get(names.buffer))] as const;
    });
    this.#states = [first];
  }

  /** The state after `round` rounds has been saved. */
  save(round: number): void {
    this.#trainTo(round);
    this.#saved.set(round, defined(this.#states[round], 'a state'));
  }

  /**
   * A stream begins after `round` rounds: rounds from there on are computed, perhaps again. `isSaved`: from the state
   * that was saved then; otherwise from that of the stream before.
   */
  restart(round: number, stages: readonly OracleStage[], isSaved: boolean): void {
    this.#trainTo(round);
    const saved = isSaved ? this.#saved.get(round) : undefined;
    if (saved !== undefined) this.#states[round] = saved;
    this.#states.length = round + 1;
    this.#losses.length = round;
    this.#first = round;
    this.#stages = stages.flatMap((stage) => new Array<OracleStage>(stage.layers[1] - stage.layers[0]).fill(stage));
  }

  /** The sum of the losses of a round's samples. */
  lossSum(round: number): number {
    this.#trainTo(round + 1);
    return defined(this.#losses[round], 'a loss');
  }

  /**
   * What is wrong with a state that should be that after `round` rounds, with or without frozen weights; undefined when
   * nothing is. `isSaved`: the one that was saved then, if any was.
   */
  difference(state: RunState, round: number, isSaved = false): string | undefined {
    this.#trainTo(round);
    const layers = defined((isSaved ? this.#saved.get(round) : undefined) ?? this.#states[round], 'a state');
    for (const [layer, [weight, momentum, statistic]] of layers.entries()) {
      const names = stateNames(layer);
      const expected = [
        ['parameter', names.parameter, weight],
        ['buffer', names.buffer, statistic],
        ['optimizer', names.optimizer, momentum],
      ] as const;
      for (const [role, name, value] of expected) {
        if (role === 'optimizer' && round === 0 && !state.optimizer.has(name)) continue;
        const isFrozen = role !== 'buffer' && this.#frozen.has(layer);
        if (isFrozen && !state[role].has(name)) continue;
        const version = isFrozen ? 0 : round;
        const found = state[role].get(name)?.data;
        if (found === undefined) return `${name} is missing`;
        if (found[0] !== value || found[1] !== version)
          return `${name} is ${found[0]} of round ${found[1]}, not the ${value} of round ${version}`;
      }
    }
    return undefined;
  }

  #trainTo(round: number): void {
    while (this.#states.length <= round) this.#trainRound(this.#states.length - 1);
  }

  #weightAt(version: number, layer: number): number {
    return defined(defined(this.#states[version], 'a state')[layer], 'a layer')[0];
  }

  /** By layer: the weight that a round reads. */
  #readBy(round: number): readonly number[] {
    return this.#stages.map(({ staleness }, layer) => this.#weightAt(Math.max(this.#first, round - staleness), layer));
  }

  /** The weight that a round's update is applied to. */
  #baseOf(round: number, layer: number): number {
    const { versionCount } = defined(this.#stages[layer], 'a stage');
    const aggregation = { every: this.#aggregate, versionCount, firstVersion: this.#first };
    const versions = aggregatedVersions(round, aggregation);
    return layerRules.mean(versions.map((version) => this.#weightAt(version, layer)));
  }

  #trainRound(round: number): void {
    const before = defined(this.#states[round], 'a state');
    const read = this.#readBy(round);
    const sums = this.#tangentCount === 0 ? this.#backpropagated(round, read) : this.#estimated(round, read);
    const { gradientSums, outputSums, lossSum } = sums;
    this.#losses.push(lossSum);
    const norm = gradientSums.reduce((total, gradient) => total + layerRules.norm(gradient), 0);
    const scale = this.#isClipped ? gradientScale(norm) : 1;
    this.#states.push(
      before.map(([own, momentum, statistic], layer) => {
        const moving = layerRules.statistic(statistic, outputSums[layer] as number);
        if (this.#frozen.has(layer)) return [own, momentum, moving] as const;
        const weight = this.#baseOf(round, layer);
        const moved = layerRules.momentum(momentum, gradientSums[layer] as number, scale, weight, learningRate(round));
        return [layerRules.weight(weight, moved, round + 1), moved, moving] as const;
      }),
    );
  }

  /** With backward passes. */
  #backpropagated(round: number, read: readonly number[]): RoundSums {
    const gradientSums = new Array<number>(this.#layerCount).fill(0);
    const outputSums = new Array<number>(this.#layerCount).fill(0);
    let lossSum = 0;
    for (let place = 0; place < samplesIn(this.#sizes, round); place++) {
      const sample = sampleAt(this.#seed, round, place);
      const values = [sample.value];
      for (const [layer, weight] of read.entries()) {
        values.push(layerRules.forward(values[layer] as number, weight, layer));
        outputSums[layer] = (outputSums[layer] as number) + (values[layer + 1] as number);
      }
      const output = values[this.#layerCount] as number;
      lossSum += layerRules.loss(output, sample.label);
      let gradient = layerRules.lossGradient(output, sample.label);
      for (let layer = this.#layerCount - 1; layer >= 0; layer--) {
        const input = values[layer] as number;
        gradientSums[layer] = (gradientSums[layer] as number) + layerRules.weightGradient(gradient, input, sample.id);
        gradient = layerRules.inputGradient(gradient, read[layer] as number, input);
      }
    }
    return { gradientSums, outputSums, lossSum };
  }

  /** With tangents in the forward passes; statistics stay. */
  #estimated(round: number, read: readonly number[]): RoundSums {
    const derivatives = new Array<number>(this.#tangentCount).fill(0);
    const directionOf = (layer: number, tangent: number): number =>
      this.#frozen.has(layer) ? 0 : directionAt(this.#seed, { layer, round, tangent });
    let lossSum = 0;
    for (let place = 0; place < samplesIn(this.#sizes, round); place++) {
      const sample = sampleAt(this.#seed, round, place);
      let input = sample.value;
      const tangents = derivatives.map(() => 0);
      for (const [layer, weight] of read.entries()) {
        for (const [tangent, own] of tangents.entries())
          tangents[tangent] = layerRules.tangent(own, { weight, direction: directionOf(layer, tangent), input });
        input = layerRules.forward(input, weight, layer);
      }
      lossSum += layerRules.loss(input, sample.label);
      for (const [tangent, own] of tangents.entries())
        derivatives[tangent] = (derivatives[tangent] as number) + layerRules.derivative(own, sample.label);
    }
    const gradientSums = read.map((_, layer) => estimateOf(derivatives, (tangent) => directionOf(layer, tangent)));
    return { gradientSums, outputSums: read.map(() => 0), lossSum };
  }
}

function valueIn(tensor: Tensor | undefined): number {
  return Number(defined(tensor, 'a value').data[0]);
}
