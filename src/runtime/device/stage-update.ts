// A stage's updates: new parameters and optimizer state from the round's gradients, by a graph of their own or within
// the step that made the gradients.

import { assert, defined } from '../../assert.ts';
import type { Engine, Value } from '../../engine/engine.ts';
import { allocate, elementCount, scalar, wrap } from '../../graph/tensor.ts';
import type { CompiledStage } from './compiled-stages.ts';
import type { StageState } from './stage-state.ts';

type Values = Record<string, Value>;

/** What an update needs to know. */
export interface UpdateOptions {
  readonly learningRate: number;
  /** Multiplies all gradients (clipping). */
  readonly gradientScale: number;
  /** Updates so far, this one included: from 1 (Adam's bias correction). */
  readonly step: number;
}

/** What graphs that update take and give. The state before an update stays where a version has it. */
export class StageUpdate {
  readonly #engine: Engine;
  readonly #compiled: Pick<CompiledStage, 'trained' | 'optimizer'>;
  readonly #state: StageState;
  readonly #rampRounds: number | undefined;
  /** How the round will be updated with, where that is known when it begins. */
  #planned: UpdateOptions | undefined;
  /** What a step that updates has made, until it is said that it counts. */
  #early: Values = {};

  constructor(
    engine: Engine,
    compiled: Pick<CompiledStage, 'trained' | 'optimizer'>,
    { state, rampRounds }: { readonly state: StageState; readonly rampRounds: number | undefined },
  ) {
    this.#engine = engine;
    this.#compiled = compiled;
    this.#state = state;
    this.#rampRounds = rampRounds;
  }

  /** How the round that begins will be updated with; a step that updates takes that. */
  plan(options: UpdateOptions | undefined): void {
    this.#planned = options;
  }

  /** The scalars that a step that updates takes: the caller's, to be released. */
  plannedScalars(): Values {
    return this.scalars(defined(this.#planned, 'how the round will be updated with'));
  }

  /** The scalars of an update with these options: the caller's, to be released. */
  scalars(options: UpdateOptions): Values {
    const settings = { ...options, rampRounds: this.#rampRounds };
    const scalars = Object.entries(this.#compiled.optimizer.scalars(settings));
    return Object.fromEntries(scalars.map(([name, value]) => [name, this.#engine.upload(scalar('float32', value))]));
  }

  /** The optimizer's state by name: zeros before its first update. They stay the state's. */
  optimizerState(): Values {
    const { state } = this.#compiled.optimizer;
    for (const { name, shape } of state) {
      if (this.#state.get('optimizer', name) === undefined)
        this.#state.set(
          'optimizer',
          name,
          this.#engine.upload(wrap('float32', shape, allocate('float32', elementCount(shape)))),
        );
    }
    return Object.fromEntries(state.map(({ name }) => [name, defined(this.#state.get('optimizer', name), name)]));
  }

  /** Keeps what a step has made of the state, until `replaceEarly`. Takes it over. */
  keepEarly(results: Readonly<Values>): void {
    const { trained, optimizer } = this.#compiled;
    const names = [...trained, ...optimizer.state].map(({ name }) => optimizer.updatedName(name));
    this.#early = Object.fromEntries(names.map((name) => [name, defined(results[name], name)]));
  }

  /** What was kept is the state. `options` have to be the planned ones. */
  replaceEarly(options: UpdateOptions): void {
    assert(isSameUpdate(options, this.#planned), 'a round is updated as it was said when it began');
    const updated = this.#early;
    this.#early = {};
    this.replace(updated);
  }

  /**
   * An update's results take the place of what they were made from. Returns what passes read in place of some of them:
   * predicted weights, which are the caller's.
   */
  replace(results: Readonly<Values>): Values {
    const { trained, optimizer } = this.#compiled;
    for (const [role, parts] of [
      ['parameter', trained],
      ['optimizer', optimizer.state],
    ] as const) {
      for (const { name } of parts) this.#state.set(role, name, defined(results[optimizer.updatedName(name)], name));
    }
    const { readName, updatedName } = optimizer;
    const predicted = trained.filter(({ name }) => readName(name) !== updatedName(name));
    return Object.fromEntries(predicted.map(({ name }) => [name, defined(results[readName(name)], name)]));
  }

  /** Lets go of what does not count. */
  forget(): void {
    for (const value of Object.values(this.#early)) this.#engine.release(value);
    this.#early = {};
  }
}

function isSameUpdate(a: UpdateOptions, b: UpdateOptions | undefined): boolean {
  return a.learningRate === b?.learningRate && a.gradientScale === b.gradientScale && a.step === b.step;
}
