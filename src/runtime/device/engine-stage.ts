// One stage of the model on an engine: its state, its rounds, and its gradients on their way to the group; its passes
// are in engine-passes.ts. Everything heavy lives in the engine; calls queue work there and return.

import { assert, defined } from '../../assert.ts';
import type { Engine, Value } from '../../engine/engine.ts';
import { type CutTensor, cutBefore, cutBytes } from '../../graph/layers.ts';
import { elementCount, type Tensor } from '../../graph/tensor.ts';
import { aggregatedSpan, aggregatedVersions, versionName } from '../../training/aggregation.ts';
import type { StateRole } from '../protocol/messages.ts';
import { Residuals } from './codec.ts';
import type { CompiledStage } from './compiled-stages.ts';
import { EnginePasses, runGraph } from './engine-passes.ts';
import { GradientExchange } from './gradient-exchange.ts';
import { GradientSums, SumsByRound } from './gradient-sums.ts';
import { GrainedPasses, type GrainLayout, type RestGrain } from './grained-passes.ts';
import { InFlight } from './in-flight.ts';
import type { MicroBatchId, RoundRange } from './pieces.ts';
import { RestPasses, restOptionsOf, shorterOptionsOf, withPasses } from './rest-stage.ts';
import { OpenRounds, type RoundTotals } from './round-sums.ts';
import type { SegmentedVector } from './segmented-vector.ts';
import type { OwnGradients, RestShare, RoundStage, StageCuts, StagePasses, StagePort, TangentPort } from './stage.ts';
import type { StageOptions } from './stage-graphs.ts';
import { type EntryOptions, StageState, type StateEntry } from './stage-state.ts';
import { StageTangents } from './stage-tangents.ts';
import { StageUpdate, type UpdateOptions } from './stage-update.ts';
import { tangentCuts } from './tangent-design.ts';
import { TangentPasses } from './tangent-passes.ts';
import { WeightVersions } from './weight-versions.ts';

/** How a stage's shares are compiled. */
interface ShareOptions {
  /** Of a strict run, of which a stage's options are for one grain. */
  readonly grains: GrainLayout | undefined;
  /** Compiles passes for another share. */
  compile(options: StageOptions): Promise<CompiledStage>;
}

/** A stage that computes. Work is queued in the order of the calls. */
export class EngineStage implements StagePort {
  readonly inputs: readonly CutTensor[];
  readonly outputs: readonly CutTensor[];
  readonly label: CutTensor;
  readonly isLast: boolean;
  readonly tangents: TangentPort | undefined;
  readonly statisticCount: number;
  readonly residuals: Residuals = new Residuals();
  readonly #engine: Engine;
  readonly #options: StageOptions;
  readonly #compiled: CompiledStage;
  readonly #shares: ShareOptions;
  readonly #state: StageState;
  readonly #weights: WeightVersions;
  readonly #inFlight: InFlight;
  readonly #sums: SumsByRound;
  readonly #exchange: GradientExchange;
  readonly #update: StageUpdate;
  readonly #rounds: OpenRounds;
  /** Of a run by forward gradients. */
  readonly #tangents: StageTangents | undefined;
  readonly #passes: StagePasses;
  /** By share: the stage in rounds of fewer samples, and what they have compiled. */
  readonly #rests = new Map<string, Promise<RoundStage>>();
  readonly #restsCompiled: CompiledStage[] = [];
  readonly #byLength = new Map<number, Promise<RoundStage>>();
  #isDisposed = false;
  /** In a stream: the version that it began with. */
  #firstVersion = 0;
  #takenMs: number;

  /** Use `createStage`. */
  constructor(engine: Engine, options: StageOptions, compiled: CompiledStage, shares: ShareOptions) {
    const { sequence, layers } = options;
    const { forwardGradient } = options.training;
    const traveling = (layer: number): readonly CutTensor[] => {
      const cuts = cutBefore(sequence, layer);
      return forwardGradient === undefined ? cuts : [...cuts, ...tangentCuts(cuts, forwardGradient.tangentCount)];
    };
    this.inputs = traveling(layers[0]);
    this.outputs = traveling(layers[1]);
    this.label = options.label;
    this.isLast = layers[1] === sequence.layers.length;
    this.statisticCount = compiled.statistics.reduce((sum, { shape }) => sum + elementCount(shape), 0);
    this.#engine = engine;
    this.#options = options;
    this.#compiled = compiled;
    this.#shares = shares;
    const state = new StageState(engine, compiled.packs);
    const { filters } = compiled.graphs;
    const weights = new WeightVersions(state, (values) => (filters === undefined ? {} : runGraph(filters, [values])));
    const inFlight = new InFlight(state, weights);
    const sums = new SumsByRound(() => new GradientSums(engine, compiled));
    const update = new StageUpdate(engine, compiled, { state, rampRounds: options.training.rampRounds });
    const rounds = new OpenRounds(engine);
    const tangents = forwardGradient && new StageTangents(engine, options, compiled);
    this.#tangents = tangents;
    this.tangents = tangents && {
      count: tangents.count,
      draw: (round) => void (tangents.isOfActivities || tangents.of(round)),
      estimate: (round, derivatives) => this.#estimate(tangents, round, derivatives),
    };
    this.#exchange = new GradientExchange({ engine, compiled, sums, state });
    [this.#state, this.#weights, this.#inFlight] = [state, weights, inFlight];
    [this.#sums, this.#update, this.#rounds] = [sums, update, rounds];
    const passes = this.#passesOf(options, compiled);
    this.#passes = shares.grains === undefined ? passes : new GrainedPasses(passes, this, shares.grains);
    this.#takenMs = engine.busyMs();
  }

  #passesOf(options: StageOptions, compiled: CompiledStage, cuts: StageCuts = this): StagePasses {
    const [state, weights, inFlight] = [this.#state, this.#weights, this.#inFlight];
    const [sums, update, rounds] = [this.#sums, this.#update, this.#rounds];
    const parts = { state, weights, inFlight, sums, update, rounds };
    const all = { engine: this.#engine, options, compiled, cuts, ...parts };
    return this.#tangents === undefined ? new EnginePasses(all) : new TangentPasses(all, this.#tangents);
  }

  rest(share: RestShare): Promise<RoundStage> {
    const key = JSON.stringify(share);
    const known = this.#rests.get(key) ?? this.#makeRest(share);
    this.#rests.set(key, known);
    return known;
  }

  async #makeRest(share: RestShare): Promise<RoundStage> {
    const { grains } = this.#shares;
    const { lastMicroBatch, lastSampleCount, sampleShare } = share;
    const options = restOptionsOf(this.#options, share, this.#compiled.pass?.isUpdating === true);
    const whole = this.#passesOf(options.whole, this.#compiled);
    const odd = options.odd && { passes: await this.#oddPasses(options.odd), sampleCount: options.odd.sampleCount };
    const passesFor = (wholeCount: number, rest: RestGrain | undefined): StagePasses =>
      grains === undefined
        ? (rest?.passes ?? whole)
        : new GrainedPasses(whole, this, { ...grains, ownCount: wholeCount }, rest);
    const last = passesFor(Math.floor(lastSampleCount / Math.max(1, options.whole.sampleCount)), odd);
    const passes = new RestPasses(passesFor(grains?.ownCount ?? 1, undefined), last, lastMicroBatch);
    return withPasses(this, passes, (bucket, round) => this.#take(bucket, sampleShare, round));
  }

  async #oddPasses(options: StageOptions, cuts?: StageCuts): Promise<StagePasses> {
    const compiled = await this.#shares.compile(options);
    assert(compiled.pass?.isUpdating === this.#compiled.pass?.isUpdating, 'all steps of a round update, or none');
    if (this.#isDisposed) compiled.release();
    else this.#restsCompiled.push(compiled);
    return this.#passesOf(options, compiled, cuts);
  }

  get lengths(): readonly number[] {
    return [...(this.#options.sequence.shorter?.keys() ?? [])];
  }

  ofLength(length: number): Promise<RoundStage> {
    const known = this.#byLength.get(length) ?? this.#makeShorter(length);
    this.#byLength.set(length, known);
    return known;
  }

  async #makeShorter(length: number): Promise<RoundStage> {
    const { layers } = this.#options;
    const { grains } = this.#shares;
    const sequence = defined(this.#options.sequence.shorter?.get(length), 'the model for this length');
    const [inputs, outputs] = [cutBefore(sequence, layers[0]), cutBefore(sequence, layers[1])];
    const cuts = { inputs, outputs, label: this.label, isLast: this.isLast };
    const passes = await this.#oddPasses(shorterOptionsOf(this.#options, sequence), cuts);
    const own = grains === undefined ? passes : new GrainedPasses(passes, cuts, grains);
    return withPasses(this, own, (bucket, round) => this.takeGradients(bucket, round), cuts);
  }

  load(entry: StateEntry): void {
    if (entry.role === 'parameter') this.#weights.replace();
    this.#state.load(entry);
  }

  missingState(): readonly string[] {
    const { parameters, buffers } = this.#compiled;
    const missing = (specs: typeof parameters, role: StateRole): string[] =>
      specs.map(({ name }) => name).filter((name) => !this.#state.has(role, name));
    return [...missing(parameters, 'parameter'), ...missing(buffers, 'buffer')];
  }

  state(options: EntryOptions = {}): AsyncGenerator<StateEntry> {
    return this.#state.entries(options);
  }

  get versions(): readonly number[] {
    return this.#state.versions;
  }

  keepVersion(round: number): void {
    this.#state.keep(round);
  }

  dropVersion(round: number): void {
    this.#state.drop(round);
  }

  beginStream(first: number): void {
    this.#forget();
    this.#state.beginStream();
    // Without updates there is one version, and a pass with tangents reads what is live.
    const staleness = this.#tangents === undefined ? defined(this.#options.staleness, 'the staleness') : 0;
    if (this.#compiled.graphs.update === undefined) return;
    const { every = 0, versionCount = 1 } = this.#options.aggregation ?? {};
    this.#firstVersion = first;
    this.#weights.beginStream(first, staleness, aggregatedSpan({ every, versionCount }));
  }

  returnTo(round: number): void {
    this.#forget();
    this.#weights.endStream();
    this.#weights.replace();
    this.#state.returnTo(round);
  }

  dispose(): void {
    this.#forget();
    this.#weights.endStream();
    this.#weights.replace();
    this.#state.dispose();
    this.#isDisposed = true;
    for (const compiled of [this.#compiled, ...this.#restsCompiled]) compiled.release();
    this.#engine.trim();
  }

  takeBusyMs(): number {
    const beforeMs = this.#takenMs;
    this.#takenMs = this.#engine.busyMs();
    return this.#takenMs - beforeMs;
  }

  computed(): Promise<number> {
    return this.#engine.computed();
  }

  mailboxBytes(microBatchCount: number): number {
    const shareCount = microBatchCount * Math.max(1, this.#shares.grains?.ownCount ?? 1);
    const share = cutBytes([...this.inputs, ...this.outputs, this.label], this.#options.sampleCount);
    const gradientBytes = this.#compiled.trained.reduce((sum, { shape }) => sum + 4 * elementCount(shape), 0);
    return 2 * shareCount * share + 2 * gradientBytes + 2 ** 20;
  }

  beginRound(round: number, plannedUpdate?: UpdateOptions, firstInFlight: number = round): void {
    this.#forget([firstInFlight, round]);
    this.#state.keep(round);
    this.#update.plan(plannedUpdate);
    this.#rounds.current = round;
  }

  /** Forgets what rounds have left, all but what is of rounds in flight. */
  #forget(inFlight: RoundRange = [0, 0]): void {
    this.#inFlight.clear(inFlight);
    this.#sums.clear();
    this.#update.forget();
    this.#rounds.clear(inFlight);
    this.#tangents?.release();
  }

  forward(
    microBatch: MicroBatchId,
    firstSample: number,
    inputs: readonly Tensor[],
    labels: Tensor | undefined,
  ): Promise<readonly Tensor[]> {
    return this.#passes.forward(microBatch, firstSample, inputs, labels);
  }

  backward(microBatch: MicroBatchId, outputGradients: readonly Tensor[], bucket?: number): Promise<readonly Tensor[]> {
    return this.#passes.backward(microBatch, outputGradients, bucket);
  }

  backwardInput(microBatch: MicroBatchId, outputGradients: readonly Tensor[]): Promise<readonly Tensor[]> {
    return this.#passes.backwardInput(microBatch, outputGradients);
  }

  backwardWeight(microBatch: MicroBatchId, bucket?: number): void {
    this.#passes.backwardWeight(microBatch, bucket);
  }

  takeGradients(bucket?: number, round?: number): Promise<OwnGradients> {
    const { sampleCount, microBatchSize } = this.#options;
    return this.#take(bucket, sampleCount / microBatchSize, round);
  }

  /** `sampleShare`: this device's share of the round's samples. */
  #take(bucket: number | undefined, sampleShare: number, round: number = this.#rounds.current): Promise<OwnGradients> {
    return this.#shares.grains === undefined
      ? this.#exchange.take(bucket, sampleShare, round)
      : this.#exchange.takeParts(bucket, sampleShare > 0, round);
  }

  putGradients(values: SegmentedVector, bucket?: number, round: number = this.#rounds.current): void {
    this.#exchange.put(values, bucket, round);
  }

  /** (1/N) Σ d_j u_j in place of the round's gradients, where passes do not make the estimates. */
  #estimate(tangents: StageTangents, round: number, derivatives: readonly number[]): void {
    tangents.release();
    const ofMean = derivatives.map((derivative) => derivative / this.#options.training.batchSize);
    if (this.#compiled.trained.length > 0 && !tangents.isOfActivities)
      this.#sums.of(round).replace(tangents.estimate(round, ofMean));
    this.#rounds.current = round;
  }

  async finishRound(countNorm: boolean, round: number = this.#rounds.current): Promise<RoundTotals> {
    const { squaredNorm } = this.#compiled.graphs;
    const feeds = this.#sums.of(round).complete();
    if (squaredNorm !== undefined && feeds !== undefined)
      this.#rounds.of(round).addNorm(defined(Object.values(runGraph(squaredNorm, [feeds]))[0], 'the norm'));
    return this.#rounds.take(round).totals(countNorm);
  }

  update(options: UpdateOptions, round: number = this.#rounds.current): void {
    this.#updateState(options, round);
    this.#sums.drop(round);
    if (this.#options.staleness !== undefined) this.#state.keep(round + 1);
  }

  /** What the update is applied to in place of the weights, where it is the mean of versions (aggregation.ts). */
  #mean(round: number): Record<string, Value> {
    const { aggregation } = this.#options;
    if (aggregation === undefined) return {};
    const versions = aggregatedVersions(round, { ...aggregation, firstVersion: this.#firstVersion });
    if (versions.length < 2) return {};
    const feeds = versions.map((version, index) => {
      const weights = this.#weights.at(version);
      return this.#compiled.trained.map(
        ({ name }) => [versionName(name, index), defined(weights[name], name)] as const,
      );
    });
    const mean = defined(this.#compiled.graphs[`mean${versions.length}`], 'the mean');
    return runGraph(mean, [Object.fromEntries(feeds.flat())]);
  }

  #updateState(options: UpdateOptions, round: number): void {
    const { pass } = this.#compiled;
    const { update } = this.#compiled.graphs;
    if (update === undefined && pass?.isUpdating !== true) return;
    if (update === undefined) {
      this.#weights.replace();
      return this.#update.replaceEarly(options);
    }
    const own = { ...this.#mean(round), ...this.#sums.of(round).remove(), ...this.#update.scalars(options) };
    this.#weights.advance();
    const results = runGraph(update, [own, this.#update.optimizerState(), this.#state.values()]);
    for (const value of Object.values(own)) this.#state.release(value);
    this.#weights.predict(this.#update.replace(results));
    this.#weights.prepare(); // while the other devices end their round
  }
}
