// The state of an exact stage: each layer's weight, momentum and running statistic, with the rounds that each has seen.
// The production's StageState and WeightVersions hold it.

import { defined } from '../assert.ts';
import type { StageOptions } from '../runtime/device/stage-graphs.ts';
import { StageState } from '../runtime/device/stage-state.ts';
import type { UpdateOptions } from '../runtime/device/stage-update.ts';
import { type Weights, WeightVersions } from '../runtime/device/weight-versions.ts';
import type { StateRole } from '../runtime/protocol/messages.ts';
import { type Aggregation, aggregatedSpan, aggregatedVersions } from '../training/aggregation.ts';
import type { ExactEngine } from './exact-engine.ts';
import { layerRules, stateNames, versioned } from './exact-model.ts';

/** A number of the state, and the rounds that it has seen. */
export type Versioned = readonly [value: number, version: number];

/** A layer's weight, momentum and running statistic. */
export type LayerState = Readonly<Record<StateRole, Versioned>>;

/** The state before the last commit, the one before the round, and a few that devices may have to return to. */
const maxVersionCount = 6;

/** The numbers of a stage's layers. */
export class ExactState {
  readonly kept: StageState;
  readonly weights: WeightVersions;
  readonly #engine: ExactEngine;
  readonly #layers: readonly number[];
  readonly #violate: (what: string) => void;
  /** Names of weights that are not trained. */
  readonly #frozen: ReadonlySet<string>;
  /** Of a stream whose weights are aggregated. */
  #aggregation: Aggregation | undefined;
  #versionLimit = maxVersionCount;

  constructor(
    engine: ExactEngine,
    { layers, frozen }: { readonly layers: readonly number[]; readonly frozen: readonly string[] },
    violate: (what: string) => void,
  ) {
    this.kept = new StageState(engine, []);
    this.weights = new WeightVersions(this.kept, () => ({}));
    this.#engine = engine;
    this.#layers = layers;
    this.#frozen = new Set(frozen);
    this.#violate = violate;
  }

  /** The parameters and buffers that have not been loaded. */
  missing(): readonly string[] {
    return this.#layers.flatMap((layer) => {
      const { parameter, buffer } = stateNames(layer);
      return [
        this.kept.has('parameter', parameter) ? [] : parameter,
        this.kept.has('buffer', buffer) ? [] : buffer,
      ].flat();
    });
  }

  /** Keeps the live state as the one after `round` rounds. Too many versions are a violation. */
  keepVersion(round: number): void {
    this.kept.keep(round);
    const { versions } = this.kept;
    if (versions.length > this.#versionLimit) this.#violate(`the versions ${versions.join(' ')} are kept`);
  }

  /** A layer's live state. */
  layer(layer: number): LayerState {
    return {
      parameter: defined(this.#held('parameter', layer), 'parameter'),
      // nobody has sent it: there was no update yet, or it comes before the next
      optimizer: this.#held('optimizer', layer) ?? [0, 0],
      buffer: defined(this.#held('buffer', layer), 'buffer'),
    };
  }

  /** A layer's weight in a version of the weights. */
  weight(layer: number, { parameters }: Weights): number {
    const held = defined(parameters[stateNames(layer).parameter], 'a weight');
    return this.#engine.peek(held).data[0] as number;
  }

  /** Whether a layer's weight is not trained. */
  isFrozen(layer: number): boolean {
    return this.#frozen.has(stateNames(layer).parameter);
  }

  /** The rounds that each trained weight has seen in a version of the weights. */
  readVersions({ parameters }: Weights): readonly number[] {
    return this.#layers.flatMap((layer) => {
      const held = defined(parameters[stateNames(layer).parameter], 'a weight');
      return this.isFrozen(layer) ? [] : [this.#engine.peek(held).data[1] as number];
    });
  }

  #held(role: StateRole, layer: number): Versioned | undefined {
    const held = this.kept.get(role, stateNames(layer)[role]);
    return held && (this.#engine.peek(held).data as unknown as Versioned);
  }

  /** Replaces a number of the live state. */
  set(role: StateRole, layer: number, [value, version]: Versioned): void {
    this.kept.set(role, stateNames(layer)[role], this.#engine.upload(versioned(value, version)));
  }

  /** A stream begins with what is live, as version `first`. */
  beginStream(first: number, staleness: number, aggregation: StageOptions['aggregation']): void {
    this.#aggregation = aggregation && { ...aggregation, firstVersion: first };
    this.weights.beginStream(first, staleness, aggregation === undefined ? 0 : aggregatedSpan(aggregation));
    this.#versionLimit = maxVersionCount + staleness + 2;
  }

  /** A planted mistake: lets go of a version of the weights that rounds to come read. */
  forget(version: number): void {
    for (const value of Object.values(this.weights.at(version))) this.kept.release(value);
  }

  /** By layer: what stands for the mean of versions that a round's update is applied to; nothing where none is due. */
  meansFor(round: number): readonly number[] {
    if (this.#aggregation === undefined || round < this.#aggregation.firstVersion) return [];
    const versions = aggregatedVersions(round, this.#aggregation);
    if (versions.length < 2) return [];
    return this.#layers.map((layer) =>
      layerRules.mean(
        versions.map((version) => this.weight(layer, { parameters: this.weights.at(version), filters: () => ({}) })),
      ),
    );
  }

  /**
   * A layer's update with a round's sums. `output`: what its statistic grows by now. `mean`: what is updated in place
   * of the weight.
   */
  update(
    layer: number,
    { gradient, output }: { readonly gradient: number; readonly output: number | undefined },
    { learningRate, gradientScale, step }: UpdateOptions,
    mean: number | undefined,
  ): void {
    const { parameter, optimizer, buffer } = this.layer(layer);
    if (!this.isFrozen(layer)) {
      const base = mean ?? parameter[0];
      const moved = layerRules.momentum(optimizer[0], gradient, gradientScale, base, learningRate);
      this.set('parameter', layer, [layerRules.weight(base, moved, step), parameter[1] + 1]);
      this.set('optimizer', layer, [moved, optimizer[1] + 1]);
    }
    const statistic = output === undefined ? buffer[0] : layerRules.statistic(buffer[0], output);
    this.set('buffer', layer, [statistic, buffer[1] + 1]);
  }

  /** The statistics become what they were, in `before`, with what has come since, in `outputs`. */
  setStatistics(before: readonly Versioned[], outputs: readonly number[]): void {
    for (const [index, layer] of this.#layers.entries()) {
      const [value, version] = before[index] as Versioned;
      this.set('buffer', layer, [layerRules.statistic(value, outputs[index] as number), version]);
    }
  }

  /** A layer's state has to have seen this many rounds; what is not trained has seen none. */
  checkVersions(layer: number, roles: readonly StateRole[], expected: number): void {
    const state = this.layer(layer);
    for (const role of roles) {
      const version = state[role][1];
      const due = role !== 'buffer' && this.isFrozen(layer) ? 0 : expected;
      if (version !== due) this.#violate(`the ${role} of layer ${layer} is that of round ${version}`);
    }
  }
}
