// A round's weight gradients on one device, summed in the engine in the order of the micro-batches. They are kept in
// buckets of layers, each of which can be taken out, to be summed over the group, while others still grow; and by
// position, where strict runs sum each part of a micro-batch by itself.

import { assert, defined } from '../../assert.ts';
import type { Engine, Value } from '../../engine/engine.ts';
import { gradientName } from '../../graph/gradient-name.ts';
import { allocate, elementCount, scalar, type Tensor, wrap } from '../../graph/tensor.ts';
import { summedName, sumName } from '../../training/optimizers.ts';
import type { TensorSpec } from '../protocol/model-message.ts';
import type { CompiledStage } from './compiled-stages.ts';

type Values = Record<string, Value>;

/** Which gradients a graph makes. */
export interface SumPart {
  /** The parameters that get one. */
  readonly gradients: readonly string[];
  /** The bucket that it makes final. Default: all. */
  readonly bucket?: number | undefined;
  /** Default: 0. */
  readonly position?: number | undefined;
}

/** The sums by round. Where rounds follow each other there is one at a time. */
export class SumsByRound {
  readonly #make: () => GradientSums;
  readonly #rounds = new Map<number, GradientSums>();

  /** `make`: a round's sums, empty. */
  constructor(make: () => GradientSums) {
    this.#make = make;
  }

  /** A round's sums, which begin when they are first asked for. */
  of(round: number): GradientSums {
    const sums = this.#rounds.get(round) ?? this.#make();
    this.#rounds.set(round, sums);
    return sums;
  }

  /** Lets go of a round's sums. */
  drop(round: number): void {
    this.#rounds.get(round)?.clear();
    this.#rounds.delete(round);
  }

  /** Lets go of all sums. */
  clear(): void {
    for (const round of [...this.#rounds.keys()]) this.drop(round);
  }
}

/** The sums. Queues work and returns; a value belongs to whoever took it out. */
export class GradientSums {
  readonly #engine: Engine;
  readonly #compiled: Pick<CompiledStage, 'pass' | 'trained' | 'buckets' | 'graphs'>;
  /** By position, by parameter; a bucket is there as a whole or not at all. */
  readonly #sums = new Map<number, Values>();

  constructor(engine: Engine, compiled: Pick<CompiledStage, 'pass' | 'trained' | 'buckets' | 'graphs'>) {
    this.#engine = engine;
    this.#compiled = compiled;
  }

  /**
   * Adds a micro-batch's gradients, which `run` queues: given the sums so far, which its graph takes under `sumName`,
   * it returns the new ones under `summedName`, which replace them (see `Executable.run`); or, given none, the only
   * gradients of a round under `gradientName`. Takes them over, and returns all that `run` did.
   */
  add(part: SumPart, run: (sums: Readonly<Values>, replaced: Readonly<Record<string, string>>) => Values): Values {
    const { gradients, bucket, position = 0 } = part;
    const isSumming = this.#compiled.pass?.isSumming === true;
    const old = isSumming ? this.#begun(part) : {};
    const results = run(
      old,
      isSumming ? Object.fromEntries(gradients.map((name) => [summedName(name), sumName(name)])) : {},
    );
    if (gradients.length === 0) return results;
    const nameOf = isSumming ? summedName : gradientName;
    const sums = this.#at(position);
    for (const name of gradients) {
      assert(isSumming || sums[name] === undefined, 'graphs without sums make the only gradients of a round');
      sums[name] = defined(results[nameOf(name)], name);
    }
    for (const spec of this.#trainedOf(bucket)) sums[spec.name] ??= this.#zeros(spec);
    return results;
  }

  /** The sums so far by `sumName`, zeros where there are none. */
  #begun({ gradients, position = 0 }: SumPart): Values {
    const { graphs } = this.#compiled;
    const sums = this.#at(position);
    const missing = gradients.filter((name) => sums[name] === undefined);
    if (missing.length > 0) {
      const zero = this.#engine.upload(scalar('float32', 0));
      Object.assign(sums, defined(graphs.zeros, 'the zeros').run({ zero }, missing));
      this.#engine.release(zero);
    }
    return Object.fromEntries(gradients.map((name) => [sumName(name), defined(sums[name], name)]));
  }

  #at(position: number): Values {
    const sums = this.#sums.get(position) ?? {};
    this.#sums.set(position, sums);
    return sums;
  }

  /** The positions that have sums, ascending. */
  #positions(): number[] {
    return [...this.#sums.keys()].sort((a, b) => a - b);
  }

  /** Adds the positions up, in their order: then there is one. */
  fold(): void {
    const [first = 0, ...others] = this.#positions();
    const sums = this.#sums.get(first);
    for (const position of others) {
      const more = defined(this.#sums.get(position), 'sums');
      this.#sums.delete(position);
      this.#fold(defined(sums, 'sums'), more);
    }
  }

  /** sums ← sums + more, whose values are released. */
  #fold(sums: Values, more: Readonly<Values>): void {
    const { trained, graphs } = this.#compiled;
    const feeds: Values = {};
    for (const { name } of trained) {
      feeds[sumName(name)] = defined(sums[name], name);
      feeds[gradientName(name)] = defined(more[name], name);
    }
    const replaced = Object.fromEntries(trained.map(({ name }) => [name, sumName(name)]));
    const results = defined(graphs.accumulate, 'the sum').run(feeds, undefined, replaced);
    this.#release(more);
    for (const { name } of trained) sums[name] = defined(results[name], name);
  }

  /**
   * Moves a bucket out: by position, in their order, its tensors as they arrive; undefined stands for zeros. Never
   * fewer than one position.
   */
  take(bucket: number | undefined): readonly (readonly (Promise<Tensor> | undefined)[])[] {
    const trained = this.#trainedOf(bucket);
    const positions = this.#positions();
    return (positions.length === 0 ? [0] : positions).map((position) => {
      const sums = this.#sums.get(position) ?? {};
      return trained.map(({ name }) => {
        const value = sums[name];
        delete sums[name];
        return value === undefined ? undefined : this.#engine.take(value);
      });
    });
  }

  /** Puts the group's sums in the place of what was taken: an array for each parameter, in their order. */
  put(bucket: number | undefined, values: readonly Float32Array[]): void {
    const [first = 0] = this.#positions();
    const sums = this.#sums.get(first) ?? {};
    this.#sums.set(first, sums);
    for (const [index, { name, shape }] of this.#trainedOf(bucket).entries())
      sums[name] = this.#engine.upload(wrap('float32', shape, defined(values[index], name)));
  }

  /** Puts a round's gradients in place, made elsewhere: a value for each trained parameter. Takes them over. */
  replace(values: Values): void {
    this.clear();
    this.#sums.set(0, values);
  }

  #trainedOf(bucket: number | undefined): readonly TensorSpec[] {
    return bucket === undefined ? this.#compiled.trained : defined(this.#compiled.buckets[bucket], 'a bucket');
  }

  /** The sums of all positions by `gradientName`, if there are any; they stay. */
  complete(): Values | undefined {
    const { trained } = this.#compiled;
    this.#dropEmpty();
    this.fold();
    const sums = this.#sums.get(this.#positions()[0] ?? 0) ?? {};
    if (trained.length === 0 || trained.some(({ name }) => sums[name] === undefined)) return undefined;
    return Object.fromEntries(trained.map(({ name }) => [gradientName(name), defined(sums[name], name)]));
  }

  /**
   * The sums by `gradientName`, zeros where there are none. They are the caller's, and the next round begins without.
   */
  remove(): Values {
    const found =
      this.complete() ??
      Object.fromEntries(this.#compiled.trained.map((spec) => [gradientName(spec.name), this.#zeros(spec)]));
    this.#sums.clear();
    return found;
  }

  /** Lets go of all sums. */
  clear(): void {
    for (const sums of this.#sums.values()) this.#release(sums);
    this.#sums.clear();
  }

  #dropEmpty(): void {
    for (const [position, sums] of this.#sums) if (Object.keys(sums).length === 0) this.#sums.delete(position);
  }

  #zeros({ shape }: TensorSpec): Value {
    return this.#engine.upload(wrap('float32', shape, allocate('float32', elementCount(shape))));
  }

  #release(values: Readonly<Values>): void {
    for (const value of Object.values(values)) this.#engine.release(value);
  }
}

/** A position's gradients when they have arrived, an array for each parameter; undefined stands for zeros. */
export async function gradientArrays(
  specs: readonly TensorSpec[],
  parts: readonly (Promise<Tensor> | undefined)[],
): Promise<readonly Float32Array[]> {
  assert(parts.length === specs.length, 'a tensor for each parameter');
  const tensors = await Promise.all(parts);
  return specs.map(
    ({ shape }, index) => (tensors[index]?.data as Float32Array | undefined) ?? new Float32Array(elementCount(shape)),
  );
}
