// The oracle of asynchronous pipelines: training on one device where the gradient of round t is that at an older
// version of the weights, max(first, t − s), s being the staleness; with a staleness for each stage, each layer reads
// its stage's version. Everything else goes by t: data, dropout, learning rate, clipping, and the running statistics,
// of which there is one copy. A plain loop over graphs on an engine: no schedule, links, stages or executor, so that it
// shares no mistake with what it is held against.

import { defined } from '../../assert.ts';
import type { Engine, Executable, Value } from '../../engine/engine.ts';
import { gradientName } from '../../graph/gradient-name.ts';
import { allocate, elementCount, scalar, type Tensor, wrap } from '../../graph/tensor.ts';
import { aggregatedSpan, aggregatedVersions, meanGraph, versionName } from '../../training/aggregation.ts';
import { squaredNormGraph } from '../../training/clipping.ts';
import type { Parameter } from '../../training/names.ts';
import { accumulateGraph, type OptimizerGraph, sumName } from '../../training/optimizers.ts';
import type { Batch } from '../coordinator/options.ts';
import { CarriedStates } from '../device/carried-states.ts';
import { ownCopy, sliceSamples } from '../device/samples.ts';
import { stepNames } from '../device/stage-graphs.ts';
import { batchAt, scaleOf } from '../protocol/round-batch.ts';
import type { RunState } from '../protocol/run-state.ts';
import { type DelayedRun, type Part, partOf } from './delayed-run.ts';
import { masksOf, type Step, stepOf } from './delayed-step.ts';
import { activityFeeds, Directions, tangentStepOf } from './delayed-tangents.ts';

type Values = Record<string, Value>;

/** What came of a delayed run. */
export interface DelayedResult {
  /** Of each round from the first. */
  readonly losses: readonly number[];
  readonly state: RunState;
}

/** Runs all rounds, or those before `signal` aborts. */
export async function trainDelayed(engine: Engine, run: DelayedRun): Promise<DelayedResult> {
  const training = await DelayedTraining.create(engine, run);
  const losses: number[] = [];
  const { firstRound, endRound } = run.config;
  for (let round = firstRound; round < endRound && run.signal?.aborted !== true; round++)
    losses.push((await training.next()).loss);
  const state = await training.state();
  training.dispose();
  return { losses, state };
}

/** A delayed run, round by round. */
export class DelayedTraining {
  readonly #engine: Engine;
  readonly #run: DelayedRun;
  readonly #trained: readonly Parameter[];
  readonly #parts: readonly Part[];
  readonly #accumulate: Executable;
  readonly #squaredNorm: Executable;
  readonly #steps = new Map<number, Promise<Step>>();
  /** By number of values: the graph that averages versions, by part. */
  readonly #means = new Map<string, Promise<Executable>>();
  /** By version: the trained parameters. */
  readonly #versions = new Map<number, Values>();
  /** By version: the parameters that passes read others in place of, and these. */
  readonly #predicted = new Map<number, Values>();
  /** Of recurrent cells: what a time step, a micro-batch, hands to the next of its round. */
  readonly #carried: CarriedStates;
  readonly #frozen: Values = {};
  readonly #buffers: Values = {};
  readonly #optimizer: Values = {};
  #round: number;
  /** The version that the stream began with. */
  readonly #first: number;

  private constructor(
    engine: Engine,
    run: DelayedRun,
    parts: readonly Part[],
    graphs: { readonly accumulate: Executable; readonly squaredNorm: Executable },
  ) {
    this.#engine = engine;
    this.#run = run;
    this.#parts = parts;
    this.#trained = parts.flatMap(({ trained }) => trained);
    this.#accumulate = graphs.accumulate;
    this.#squaredNorm = graphs.squaredNorm;
    this.#round = run.config.firstRound;
    this.#first = this.#round;
    const { sequence, training } = run.subject;
    this.#carried = new CarriedStates(
      engine,
      { sequence, layers: [0, sequence.layers.length], sampleCount: run.microBatchSize },
      training.forwardGradient?.tangentCount ?? 0,
    );
    this.#load(run.subject.state);
  }

  /** Compiles what a run needs, and hands its state to the engine. */
  static async create(engine: Engine, run: DelayedRun): Promise<DelayedTraining> {
    const parts = await Promise.all(run.stages.map((_, index) => partOf(engine, run, index)));
    const trained = parts.flatMap((part) => part.trained);
    const [accumulate, squaredNorm] = await Promise.all([
      engine.compile(accumulateGraph(trained)),
      engine.compile(squaredNormGraph(trained)),
    ]);
    return new DelayedTraining(engine, run, parts, { accumulate, squaredNorm });
  }

  #load(state: RunState): void {
    const trained = new Set(this.#trained.map(({ name }) => name));
    const first: Values = {};
    for (const [name, value] of state.parameter)
      (trained.has(name) ? first : this.#frozen)[name] = this.#engine.upload(ownCopy(value));
    this.#versions.set(this.#round, first);
    for (const [name, value] of state.buffer) this.#buffers[name] = this.#engine.upload(ownCopy(value));
    for (const { name, type, shape } of this.#parts.flatMap(({ optimizer }) => optimizer.state)) {
      const known = state.optimizer.get(name);
      const zeros = (): Tensor => wrap(type, shape, allocate(type, elementCount(shape)));
      this.#optimizer[name] = this.#engine.upload(known === undefined ? zeros() : ownCopy(known));
    }
  }

  /** Computes the next round. The loss is that of the versions that it read. */
  async next(): Promise<{ readonly loss: number; readonly correctCount: number }> {
    const round = this.#round;
    const { config } = this.#run;
    const { gradients, loss, correctCount } = await this.#gradientsOf(round);
    const batch = batchAt(config, round);
    const gradientScale = await this.#scaleOf(round, gradients);
    const { rampRounds } = this.#run.subject.training;
    const settings = { learningRate: config.learningRate(round), gradientScale, step: round + 1, rampRounds };
    const [next, predicted]: [Values, Values] = [{}, {}];
    for (const part of this.#parts) {
      const results = await this.#update(part, gradients, settings);
      const { updatedName, readName } = part.optimizer;
      for (const { name } of part.trained) {
        next[name] = defined(results[updatedName(name)], name);
        if (readName(name) !== updatedName(name)) predicted[name] = defined(results[readName(name)], name);
      }
    }
    this.#releaseAll(gradients);
    this.#versions.set(round + 1, next);
    this.#predicted.set(round + 1, predicted);
    this.#round = round + 1;
    this.#dropVersions();
    return {
      loss: (loss / config.batchSize) * batch.factor,
      correctCount,
    };
  }

  /** The state after the rounds so far: the newest version. */
  async state(): Promise<RunState> {
    const parameters = { ...this.#frozen, ...this.#newest() };
    const { state } = this.#run.subject;
    const ordered = Object.fromEntries(
      [...state.parameter.keys()].map((name) => [name, defined(parameters[name], name)]),
    );
    return {
      parameter: await this.#downloaded(ordered),
      buffer: await this.#downloaded(this.#buffers),
      optimizer: await this.#downloaded(this.#optimizer),
    };
  }

  /** Lets go of all values and graphs. */
  dispose(): void {
    const versions = [...this.#versions.values(), ...this.#predicted.values()];
    for (const values of [...versions, this.#frozen, this.#buffers, this.#optimizer]) this.#releaseAll(values);
    this.#carried.release();
    for (const executable of [this.#accumulate, this.#squaredNorm, ...this.#parts.map(({ update }) => update)])
      executable.release();
    for (const step of this.#steps.values()) void step.then(({ executable }) => executable.release());
    for (const mean of this.#means.values()) void mean.then((executable) => executable.release());
  }

  /** The sums over the micro-batches of a round: gradients of all trained parameters, losses, right predictions. */
  async #gradientsOf(round: number): Promise<{ gradients: Values; loss: number; correctCount: number }> {
    const { config, batch, microBatchSize } = this.#run;
    const { inputs, labels } = batch(round);
    const { sampleCount } = batchAt(config, round);
    let gradients: Values | undefined;
    let [loss, correctCount] = [0, 0];
    for (let first = 0; first < sampleCount; first += microBatchSize) {
      const end = Math.min(sampleCount, first + microBatchSize);
      const cut = (value: Tensor): Tensor => ownCopy(sliceSamples(value, 0, first, end));
      const found = await this.#microBatch(round, { first, inputs: inputs.map(cut), labels: cut(labels) });
      gradients = gradients === undefined ? found.gradients : this.#sum(gradients, found.gradients);
      loss += found.loss;
      correctCount += found.correctCount;
    }
    return { gradients: gradients ?? {}, loss, correctCount };
  }

  async #microBatch(
    round: number,
    { first, inputs, labels }: { readonly first: number } & Batch,
  ): Promise<{ gradients: Values; loss: number; correctCount: number }> {
    const { executable, graphs, dropouts, activities } = await this.#step(labels.shape[0] as number);
    const { sequence, training } = this.#run.subject;
    const own: Values = {
      [stepNames.labels]: this.#engine.upload(labels),
      [stepNames.scale]: this.#engine.upload(scalar('float32', 1 / training.batchSize)),
    };
    for (const [index, value] of inputs.entries())
      own[defined(sequence.inputs[index], 'an input').name] = this.#engine.upload(value);
    for (const [name, mask] of masksOf(dropouts, {
      seed: training.seed,
      round,
      first,
      sampleCount: labels.shape[0] as number,
    }))
      own[name] = this.#engine.upload(mask);
    const isOfWeights = training.forwardGradient !== undefined && activities === undefined;
    const directions = isOfWeights ? new Directions(training, this.#trained, round) : undefined;
    const noise = activities && activityFeeds(training, activities, { round, firstSample: first });
    for (const [name, value] of noise ?? directions?.feeds() ?? []) own[name] = this.#engine.upload(value);
    const states = this.#carried.of(first === 0);
    const results = pick(executable, [own, states, this.#read(round), this.#frozen, this.#buffers]);
    this.#releaseAll(own);
    this.#carried.keep(results);
    for (const { buffer, output } of graphs.bufferUpdates) {
      this.#engine.release(defined(this.#buffers[buffer], buffer));
      this.#buffers[buffer] = defined(results[output], output);
    }
    const number = async (name: string): Promise<number> => {
      const value = results[name];
      return value === undefined ? 0 : Number((await this.#engine.take(value)).data[0]);
    };
    const [loss, correctCount] = [await number(stepNames.loss), await number(stepNames.correct)];
    const gradients = (await directions?.gradients(this.#engine, results)) ?? this.#gradientsIn(results);
    return { gradients, loss, correctCount };
  }

  /** The gradients of all trained parameters, by their own names; zeros where the loss does not depend on one. */
  #gradientsIn(results: Readonly<Values>): Values {
    const zeros = ({ shape, type = 'float32' }: Parameter): Value =>
      this.#engine.upload(wrap(type, shape, allocate(type, elementCount(shape))));
    return Object.fromEntries(
      this.#trained.map((parameter) => [parameter.name, results[gradientName(parameter.name)] ?? zeros(parameter)]),
    );
  }

  /** The trained parameters as round `round` reads them. */
  #read(round: number): Values {
    return Object.fromEntries(
      this.#parts.flatMap(({ trained, staleness }) => {
        const version = Math.max(this.#first, round - staleness);
        const values = { ...this.#versions.get(version), ...this.#predicted.get(version) };
        return trained.map(({ name }) => [name, defined(values[name], `${name} of version ${version}`)] as const);
      }),
    );
  }

  /** a + b; both are released. */
  #sum(a: Values, b: Values): Values {
    const feeds = { ...renamed(a, sumName), ...renamed(b, gradientName) };
    const sum = this.#accumulate.run(feeds);
    this.#releaseAll(feeds);
    return sum;
  }

  async #scaleOf(round: number, gradients: Readonly<Values>): Promise<number> {
    const { config, subject } = this.#run;
    const batch = batchAt(config, round);
    if (subject.training.clipNorm === null) return batch.factor;
    const { squaredNorm } = this.#squaredNorm.run(renamed(gradients, gradientName));
    const { data } = await this.#engine.take(defined(squaredNorm, 'the norm'));
    return scaleOf(batch, Number(data[0]), config.gradientScale);
  }

  /** What a part's update gives. Its optimizer state is replaced; parameters are the caller's. */
  async #update(
    { trained, optimizer, update, versionCount }: Part,
    gradients: Readonly<Values>,
    settings: Parameters<OptimizerGraph['scalars']>[0],
  ): Promise<Values> {
    if (trained.length === 0) return {};
    const scalars = Object.fromEntries(
      Object.entries(optimizer.scalars(settings)).map(([name, value]) => [
        name,
        this.#engine.upload(scalar('float32', value)),
      ]),
    );
    const { firstRound: firstVersion } = this.#run.config;
    const every = this.#run.aggregateEvery ?? 0;
    const versions = aggregatedVersions(this.#round, { every, versionCount, firstVersion });
    const mean = versions.length > 1 ? await this.#mean(trained, versions) : undefined;
    const results = pick(update, [scalars, mean ?? this.#newest(), renamed(gradients, gradientName), this.#optimizer]);
    this.#releaseAll({ ...scalars, ...mean });
    for (const { name } of optimizer.state) {
      this.#engine.release(defined(this.#optimizer[name], name));
      this.#optimizer[name] = defined(results[optimizer.updatedName(name)], name);
    }
    return results;
  }

  async #mean(trained: readonly Parameter[], versions: readonly number[]): Promise<Values> {
    const key = `${trained[0]?.name} ${versions.length}`;
    const compiled = this.#means.get(key) ?? this.#engine.compile(meanGraph(trained, versions.length));
    this.#means.set(key, compiled);
    const feeds: Values = {};
    for (const [index, version] of versions.entries()) {
      const values = defined(this.#versions.get(version), `version ${version}`);
      for (const { name } of trained) feeds[versionName(name, index)] = defined(values[name], name);
    }
    return (await compiled).run(feeds);
  }

  #newest(): Values {
    return defined(this.#versions.get(this.#round), 'the newest version');
  }

  /** Lets go of versions that neither a round to come nor an aggregation reads. */
  #dropVersions(): void {
    const { firstRound, stages, aggregateEvery: every = 0 } = { ...this.#run, ...this.#run.config };
    const spans = this.#parts.map(({ versionCount }) => aggregatedSpan({ every, versionCount }));
    const oldest = this.#round - Math.max(...stages.map(({ staleness }) => staleness), ...spans);
    for (const [version, values] of this.#versions) {
      if (version >= Math.max(firstRound, oldest)) continue;
      for (const kept of [values, this.#predicted.get(version) ?? {}]) this.#releaseAll(kept);
      this.#versions.delete(version);
      this.#predicted.delete(version);
    }
  }

  #step(sampleCount: number): Promise<Step> {
    const { subject } = this.#run;
    const make = subject.training.forwardGradient === undefined ? stepOf : tangentStepOf;
    const known = this.#steps.get(sampleCount) ?? make(this.#engine, subject, sampleCount);
    this.#steps.set(sampleCount, known);
    return known;
  }

  async #downloaded(values: Readonly<Values>): Promise<Map<string, Tensor>> {
    const entries = Object.entries(values).map(
      async ([name, value]) => [name, await this.#engine.download(value)] as const,
    );
    return new Map(await Promise.all(entries));
  }

  #releaseAll(values: Readonly<Values>): void {
    for (const value of Object.values(values)) this.#engine.release(value);
  }
}

function renamed(values: Readonly<Values>, rename: (name: string) => string): Values {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [rename(name), value]));
}

/** Runs a graph with the values that it reads, each from the first source that has it. */
function pick(executable: Executable, sources: readonly Readonly<Values>[]): Values {
  const feeds = executable.inputs.map((name) => {
    const value = sources.find((source) => source[name] !== undefined)?.[name];
    return [name, defined(value, name)] as const;
  });
  return executable.run(Object.fromEntries(feeds));
}
