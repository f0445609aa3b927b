// One training run from settings to result: what the commands `train`, `quickstart` and `verify` share. It prepares model and data, opens the run
// folder, trains here or over workers, and writes metrics, events, checkpoints and the trained model.

import { defined } from '../assert.ts';
import type { Clock } from '../clock.ts';
import type { Cluster, Plan, Profile } from '../cluster/cluster.ts';
import { createComputeThread } from '../engine/compute-thread.ts';
import { InputError } from '../errors.ts';
import { type LayerSequence, layers } from '../graph/layers.ts';
import { type Tensor, sameShape } from '../graph/tensor.ts';
import { plan as makePlan } from '../planner/plan.ts';
import { checkProgram } from '../schedule/check.ts';
import { program } from '../schedule/generate.ts';
import { type Checkpoint, saveCheckpoint } from '../storage/checkpoints.ts';
import type { RunFolder } from '../storage/run-folder.ts';
import { clipScale } from '../training/clipping.ts';
import { type Dataset, gather } from '../training/data/dataset.ts';
import { type BatchOrder, batchIndices, epochOf, roundsPerEpoch } from '../training/data/order.ts';
import { type LearningRateSchedule, learningRate, parseSchedule } from '../training/schedules.ts';
import { runCluster } from './coordinator/cluster-run.ts';
import type { CoordinatorEnd, RunHooks, RunSubject } from './coordinator/coordinator.ts';
import type { MachineConfig } from './coordinator/machine.ts';
import { type Evaluation, evaluate } from './evaluate.ts';
import type { Observer, RunEvent } from './events.ts';
import { localPlan, trainHere } from './local.ts';
import type { LoadedModel } from './models.ts';
import { profilePoints } from './profile-points.ts';
import type { RunState } from './run-state.ts';
import type { TrainSettings } from './settings.ts';
import { bindToModel, frozenNames, labelCut } from './subject.ts';
import type { TrainingSpec } from './training-spec.ts';

/** What a session works on. Files have been read and checked. */
export interface SessionInput {
  readonly settings: TrainSettings;
  readonly model: LoadedModel;
  readonly train: Dataset;
  readonly test: Dataset | undefined;
  readonly plan?: Plan;
  readonly cluster?: Cluster;
  /** To go on from. */
  readonly checkpoint?: Checkpoint;
  /** Absent: nothing is written. */
  readonly folder?: RunFolder;
}

export interface SessionEnvironment {
  readonly clock: Clock;
  readonly observe: Observer;
  /** Aborted by Ctrl-C: the round in progress commits, a checkpoint is written. */
  readonly signal: AbortSignal;
}

/** What a run came to. */
export interface SessionResult {
  /** Rounds committed, those before a resume included. */
  readonly rounds: number;
  readonly stopped: boolean;
  /** Loss of each round of this session. */
  readonly losses: readonly number[];
  readonly trainSeconds: number;
  readonly state: RunState;
  readonly evaluation: Evaluation | undefined;
  readonly plan: Plan;
}

/** Trains, tests, and writes the trained model. Throws InputError before anything starts, RunError when the run fails. */
export async function runSession(input: SessionInput, environment: SessionEnvironment): Promise<SessionResult> {
  const session = new Session(input, environment);
  return session.run();
}

class Session {
  readonly #input: SessionInput;
  readonly #environment: SessionEnvironment;
  readonly #sequence: LayerSequence;
  readonly #dataset: Dataset;
  readonly #subject: RunSubject;
  readonly #order: BatchOrder;
  readonly #machine: MachineConfig;
  readonly #schedule: LearningRateSchedule;
  readonly #losses: number[] = [];
  #plan: Plan | undefined;
  #state: RunState;
  #lastCommitMs = 0;
  #planReadyMs = 0;

  constructor(input: SessionInput, environment: SessionEnvironment) {
    const { settings, model, checkpoint } = input;
    this.#input = input;
    this.#environment = environment;
    this.#sequence = layers(model.graph);
    this.#dataset = bindToModel(input.train, this.#sequence, settings.loss);
    this.#order = { sampleCount: this.#dataset.sampleCount, batchSize: settings.batch, seed: settings.seed, shuffle: settings.shuffle };
    this.#state = checkpoint === undefined ? initialRunState(this.#sequence) : resumedState(this.#sequence, checkpoint);
    const training = trainingSpec(settings, this.#sequence);
    this.#subject = { modelName: model.name, sequence: this.#sequence, training, label: labelCut(this.#dataset), state: this.#state };
    this.#schedule = parseSchedule(settings.lrSchedule);
    this.#machine = this.#machineConfig(training);
  }

  async run(): Promise<SessionResult> {
    const { folder, model } = this.#input;
    const { clock } = this.#environment;
    this.#planReadyMs = clock.now();
    const end = await this.#train();
    const trainSeconds = (clock.now() - this.#planReadyMs) / 1000;
    if (end.stopped) this.#observe({ kind: 'stopped', round: end.round });
    const trained = new Map([...this.#state.parameter, ...this.#state.buffer]);
    const bytes = model.write(trained);
    await folder?.write('model.onnx', bytes);
    const evaluation = end.stopped ? undefined : await this.#evaluate(bytes, end.round);
    const plan = defined(this.#plan, 'the plan');
    return { rounds: end.round, stopped: end.stopped, losses: this.#losses, trainSeconds, state: this.#state, evaluation, plan };
  }

  #observe(event: RunEvent): void {
    this.#environment.observe(event);
  }

  #machineConfig(training: TrainingSpec): MachineConfig {
    const { settings, checkpoint } = this.#input;
    const perEpoch = roundsPerEpoch(this.#order);
    const endRound = settings.steps ?? (settings.epochs ?? 1) * perEpoch;
    const firstRound = checkpoint?.round ?? 0;
    if (firstRound >= endRound) throw new InputError(`The run has done its ${endRound} rounds already: give more with --epochs or --steps.`);
    const { clipNorm } = training;
    return {
      workerCount: settings.workers + settings.remote,
      firstRound,
      endRound,
      checkpointEvery: settings.checkpointEvery ?? Math.min(perEpoch, 500),
      batchSize: settings.batch,
      batchSizesToProfile: profilePoints(settings.microBatch ?? Math.min(settings.batch, 64), this.#sequence.fixedBatch),
      planGiven: this.#input.plan !== undefined,
      learningRate: (round) => learningRate(this.#schedule, settings.lr, round, endRound),
      gradientScale: (squaredNorm) => (clipNorm === null ? 1 : clipScale(squaredNorm, clipNorm)),
    };
  }

  #train(): Promise<CoordinatorEnd> {
    const hooks: RunHooks = {
      batch: (round) => gather(this.#dataset, batchIndices(this.#order, round)),
      observe: (event) => this.#watch(event),
      onCommitted: (round, loss, correctCount, rate, results) => this.#committed(round, loss, correctCount, rate, results),
      onCheckpoint: (round, state) => this.#checkpoint(round, state),
    };
    return this.#machine.workerCount === 0 ? this.#trainHere(hooks) : this.#trainOverWorkers(hooks);
  }

  async #trainHere(hooks: RunHooks): Promise<CoordinatorEnd> {
    const { settings } = this.#input;
    const { clock, signal } = this.#environment;
    const microBatch = this.#sequence.fixedBatch ?? settings.microBatch ?? settings.batch;
    checkFixedBatch(this.#sequence, settings);
    const plan = localPlan(this.#sequence.layers.length, settings.batch, microBatch);
    this.#plan = plan;
    const engine = await createComputeThread({ engine: settings.engine, threadCount: settings.threads });
    try {
      return await trainHere(this.#subject, hooks, this.#machine, plan, { engine, clock, signal });
    } finally {
      await engine.close();
    }
  }

  #trainOverWorkers(hooks: RunHooks): Promise<CoordinatorEnd> {
    const { settings, plan } = this.#input;
    const { clock, signal } = this.#environment;
    checkFixedBatch(this.#sequence, settings);
    if (plan !== undefined) this.#usePlan(plan, 0);
    return runCluster(
      {
        machine: this.#machine,
        subject: this.#subject,
        hooks,
        plan: (profile, cluster) => this.#choosePlan(profile, cluster),
        ...(plan === undefined ? {} : { givenPlan: plan }),
      },
      {
        host: settings.host,
        port: settings.port,
        insecure: settings.insecure,
        localCount: settings.workers,
        threads: settings.threads,
        engine: settings.engine,
        clock,
        signal,
      },
    );
  }

  #choosePlan(profile: Profile, measured: Cluster): Plan {
    const { settings, cluster = measured } = this.#input;
    const startMs = this.#environment.clock.now();
    const microBatch = settings.microBatch ?? this.#sequence.fixedBatch;
    const plan = makePlan({
      profile,
      cluster,
      batchSize: settings.batch,
      schedule: settings.schedule,
      planner: settings.planner,
      optimizerState: optimizerCopies(settings),
      replicateBatchDependent: settings.replicateBatchNorm,
      ...(microBatch === undefined ? {} : { microBatchSize: microBatch }),
    });
    this.#usePlan(plan, this.#environment.clock.now() - startMs);
    return plan;
  }

  /** Every plan is checked by machine before it runs, given ones too. */
  #usePlan(plan: Plan, planningMs: number): void {
    checkPlanFits(plan, this.#sequence, this.#input.settings);
    checkProgram(program(plan), plan);
    this.#plan = plan;
    this.#observe({ kind: 'plan', plan, planningMs, layerNames: this.#sequence.layers.map((layer) => layer.name) });
  }

  /** Events pass through here on their way out; documents of the run folder are written from them. */
  #watch(event: RunEvent): void {
    if (event.kind === 'phase' && event.phase === 'training') {
      this.#planReadyMs = this.#environment.clock.now();
      this.#lastCommitMs = this.#planReadyMs;
      this.#observe({ kind: 'training', firstRound: this.#machine.firstRound, endRound: this.#machine.endRound, roundsPerEpoch: roundsPerEpoch(this.#order) });
    }
    this.#observe(event);
  }

  #committed(round: number, loss: number, correctCount: number, rate: number, results: Parameters<RunHooks['onCommitted']>[4]): void {
    const nowMs = this.#environment.clock.now();
    const seconds = Math.max(1e-9, (nowMs - this.#lastCommitMs) / 1000);
    this.#lastCommitMs = nowMs;
    this.#losses.push(loss);
    const { batch } = this.#input.settings;
    const metrics = { round, epoch: epochOf(this.#order, round), loss, samplesPerS: batch / seconds, lr: rate, accuracy: correctCount / batch };
    const busyFraction = Object.fromEntries(Object.entries(results).map(([device, { busyMs }]) => [device, Math.min(1, busyMs / (seconds * 1000))]));
    this.#observe({ kind: 'round', metrics, endRound: this.#machine.endRound, busyFraction });
  }

  async #checkpoint(round: number, state: RunState): Promise<void> {
    this.#state = state;
    const { folder, settings, model } = this.#input;
    if (folder === undefined) return;
    const path = await saveCheckpoint(folder.checkpointsPath, {
      round,
      parameters: state.parameter,
      buffers: state.buffer,
      optimizerState: state.optimizer,
      state: { model: model.name, batch: settings.batch, seed: settings.seed, optimizer: settings.optimizer },
    });
    this.#observe({ kind: 'checkpoint', round, path });
    this.#lastCommitMs = this.#environment.clock.now();
  }

  async #evaluate(bytes: Uint8Array, round: number): Promise<Evaluation | undefined> {
    const { test, settings } = this.#input;
    if (test === undefined) return undefined;
    const evaluation = await evaluate(bytes, test, { loss: settings.loss, engine: settings.engine, threads: settings.threads });
    this.#observe({ kind: 'evaluated', round, ...evaluation });
    return evaluation;
  }
}

function trainingSpec(settings: TrainSettings, sequence: LayerSequence): TrainingSpec {
  const { optimizer: kind, momentum, nesterov, weightDecay, beta1, beta2, epsilon } = settings;
  return {
    batchSize: settings.batch,
    loss: settings.loss,
    optimizer: { kind, momentum, nesterov, weightDecay, beta1, beta2, epsilon },
    clipNorm: settings.clipNorm ?? null,
    seed: settings.seed,
    frozen: frozenNames(sequence, settings.freeze),
  };
}

function optimizerCopies({ optimizer, momentum }: TrainSettings): 0 | 1 | 2 {
  return optimizer !== 'sgd' ? 2 : momentum > 0 ? 1 : 0;
}

function initialRunState({ graph }: LayerSequence): RunState {
  const pick = (names: readonly string[]): Map<string, Tensor> => new Map(names.map((name) => [name, defined(graph.initializers.get(name), name)]));
  return { parameter: pick(graph.parameters), buffer: pick(graph.buffers), optimizer: new Map() };
}

/** A checkpoint's state, if it belongs to this model. */
function resumedState(sequence: LayerSequence, checkpoint: Checkpoint): RunState {
  const { parameters, buffers, optimizerState } = checkpoint;
  for (const [names, found] of [[sequence.graph.parameters, parameters], [sequence.graph.buffers, buffers]] as const) {
    for (const name of names) {
      const value = found.get(name);
      if (value === undefined || !sameShape(value.shape, defined(sequence.graph.initializers.get(name), name).shape)) {
        throw new InputError(`The checkpoint does not belong to this model: ${name} is ${value === undefined ? 'missing' : `of another shape, [${value.shape.join(', ')}]`}.`);
      }
    }
  }
  return { parameter: parameters, buffer: buffers, optimizer: optimizerState };
}

function checkFixedBatch({ fixedBatch }: LayerSequence, { batch, microBatch }: TrainSettings): void {
  if (fixedBatch === undefined) return;
  if (microBatch !== undefined && microBatch !== fixedBatch) {
    throw new InputError(`The model was exported for a batch of exactly ${fixedBatch}: use --micro-batch ${fixedBatch}, or export it with a dynamic batch axis.`);
  }
  if (batch % fixedBatch !== 0) throw new InputError(`The model was exported for a batch of exactly ${fixedBatch}: use a --batch that is a multiple of it, or export it with a dynamic batch axis.`);
}

/** A plan from a file must be for this model, batch and number of devices. */
function checkPlanFits(plan: Plan, sequence: LayerSequence, { batch, workers, remote }: TrainSettings): void {
  const layerCount = sequence.layers.length;
  const end = defined(plan.stages.at(-1), 'a stage').layers[1];
  if (end !== layerCount) throw new InputError(`The plan is for a model of ${end} layers, this model has ${layerCount}: make a plan from this model's profile.`);
  if (plan.batchSize !== batch) throw new InputError(`The plan is for a batch of ${plan.batchSize}, the run's is ${batch}: give --batch ${plan.batchSize} or make a new plan.`);
  const deviceCount = new Set(plan.stages.flatMap((stage) => stage.devices)).size;
  if (deviceCount > workers + remote) throw new InputError(`The plan needs ${deviceCount} devices, the run has ${workers + remote}: raise --workers or --remote.`);
}

