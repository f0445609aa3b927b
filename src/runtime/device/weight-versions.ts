// The weights that passes read, by version. In a stream, round t reads version max(first, t − staleness); where rounds
// follow each other, what is live. A micro-batch holds the version that its forward pass read until its
// backward pass is queued, so that an update between the two does not take it away. Copy-on-write: holding costs a
// count; only an update, or whatever else replaces weights, while somebody holds them keeps the old values, by their
// handles. Nothing is ever copied.

import type { Value } from '../../engine/engine.ts';
import type { StageState } from './stage-state.ts';

type Values = Readonly<Record<string, Value>>;

/** A version of a stage's weights, as passes read it. */
export interface Weights {
  readonly parameters: Values;
  /** What is made of the parameters once for all passes (kept-filters.ts); made when it is first asked for. */
  filters(): Values;
}

class Version implements Weights {
  /** The state's. */
  readonly weights: Values;
  readonly parameters: Values;
  /** Of these, what is no state: weights that were predicted, and go with the version. */
  readonly predicted: Values;
  readonly #makeFilters: (parameters: Values) => Values;
  #filters: Values | undefined;
  /** What the state has replaced and somebody still reads. */
  kept: readonly Value[] = [];
  holderCount = 0;
  /** Other weights have taken its place; its parameters are kept for its holders. */
  isReplaced = false;

  constructor(weights: Values, predicted: Values, makeFilters: (parameters: Values) => Values) {
    this.weights = weights;
    this.predicted = predicted;
    this.parameters = { ...weights, ...predicted };
    this.#makeFilters = makeFilters;
  }

  filters(): Values {
    this.#filters ??= this.#makeFilters(this.parameters);
    return this.#filters;
  }

  takeFilters(): readonly Value[] {
    const filters = Object.values(this.#filters ?? {});
    this.#filters = undefined;
    return filters;
  }
}

/** The live weights of a stage, and versions that micro-batches still hold. */
export class WeightVersions {
  readonly #state: Pick<StageState, 'parameters' | 'retain' | 'release'>;
  readonly #makeFilters: (parameters: Values) => Values;
  readonly #versions = new Map<Weights, Version>();
  #live: Version | undefined;
  #stream:
    | { readonly first: number; readonly live: number; readonly staleness: number; readonly span: number }
    | undefined;
  /** What passes are to read in place of the weights that are live, until they do. */
  #predicted: Values = {};
  /** Of a stream, by number: the versions before the live one that rounds to come read, held. */
  readonly #former = new Map<number, Weights>();

  /** `makeFilters` queues the work; its results are the version's. */
  constructor(
    state: Pick<StageState, 'parameters' | 'retain' | 'release'>,
    makeFilters: (parameters: Values) => Values,
  ) {
    this.#state = state;
    this.#makeFilters = makeFilters;
  }

  /** The weights as they are now; not to be used beyond their next replacement. */
  live(): Weights {
    if (this.#live === undefined) {
      this.#live = new Version(this.#state.parameters(), this.#predicted, this.#makeFilters);
      this.#predicted = {};
      this.#versions.set(this.#live, this.#live);
    }
    return this.#live;
  }

  /** The live weights, which stay as they are until `release`. */
  hold(): Weights {
    const weights = this.live();
    this.#versionOf(weights).holderCount++;
    return weights;
  }

  /**
   * A stream begins: what is live is version `first`, and rounds read the version of `staleness` rounds before them, or
   * the first. `span`: versions before the live one that updates may need.
   */
  beginStream(first: number, staleness: number, span = 0): void {
    this.endStream();
    this.#stream = { first, live: first, staleness, span };
  }

  /** The weights themselves in a version of the stream that is kept: the state's, not to be released. */
  at(number: number): Values {
    const weights = number === this.#stream?.live ? this.live() : this.#former.get(number);
    if (weights === undefined) throw new Error(`version ${number} is not kept`);
    return this.#versionOf(weights).weights;
  }

  /**
   * After an update: queues what the next passes want of the new weights. Where rounds overlap, these read older ones,
   * and each version's filters are made when its round begins: they would only take memory until then.
   */
  prepare(): void {
    if (this.#stream === undefined || this.#stream.staleness === 0) this.live().filters();
  }

  /** After an update: what passes read in place of the new weights. Takes the values over. */
  predict(predicted: Values): void {
    this.#predicted = predicted;
  }

  /** The weights that a round reads, which stay as they are until `release`. */
  holdFor(round: number): Weights {
    if (this.#stream === undefined) return this.hold();
    const { first, live, staleness } = this.#stream;
    const number = Math.max(first, round - staleness);
    if (number === live) return this.hold();
    const weights = this.#former.get(number);
    if (weights === undefined) throw new Error(`round ${round} reads version ${number}, which is not kept`);
    this.#versionOf(weights).holderCount++;
    return weights;
  }

  /** To be called before an update of a stream replaces the weights by the next version. */
  advance(): void {
    if (this.#stream === undefined) return this.replace();
    const { live, staleness, span } = this.#stream;
    this.#former.set(live, this.hold());
    this.replace();
    this.#stream = { ...this.#stream, live: live + 1 };
    for (const [number, weights] of this.#former) {
      if (number >= live + 1 - Math.max(staleness, span)) continue;
      this.#former.delete(number);
      this.release(weights);
    }
  }

  /** The stream has ended. */
  endStream(): void {
    for (const weights of this.#former.values()) this.release(weights);
    this.#former.clear();
    this.#stream = undefined;
    // What was predicted is of the stream: another begins with the weights themselves.
    if (Object.keys(this.#live?.predicted ?? this.#predicted).length === 0) return;
    this.replace();
    for (const value of Object.values(this.#predicted)) this.#state.release(value);
    this.#predicted = {};
  }

  /** One holder fewer; with the last, a version that was replaced goes. */
  release(weights: Weights): void {
    const version = this.#versionOf(weights);
    version.holderCount--;
    if (version.holderCount > 0 || !version.isReplaced) return;
    this.#drop(version);
    for (const value of version.kept) this.#state.release(value);
  }

  /** To be called before any of the weights is replaced. */
  replace(): void {
    const version = this.#live;
    this.#live = undefined;
    if (version === undefined) return;
    if (version.holderCount === 0) {
      this.#drop(version);
      return;
    }
    version.isReplaced = true;
    // Where passes read what was predicted, only updates that read former versions need the weights themselves.
    const isRead = (name: string): boolean => (this.#stream?.span ?? 0) > 0 || version.predicted[name] === undefined;
    version.kept = Object.entries(version.weights).flatMap(([name, value]) => (isRead(name) ? [value] : []));
    for (const value of version.kept) this.#state.retain(value);
  }

  #drop(version: Version): void {
    this.#versions.delete(version);
    for (const value of [...version.takeFilters(), ...Object.values(version.predicted)]) this.#state.release(value);
  }

  #versionOf(weights: Weights): Version {
    const version = this.#versions.get(weights);
    if (version === undefined) throw new Error('these weights are not held');
    return version;
  }
}
