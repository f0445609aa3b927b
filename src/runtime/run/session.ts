// One training run, prepared (prepare.ts), to its result: what the commands `train`, `quickstart` and `verify` share.
// It trains here or over workers, tests, and writes checkpoints and the trained model; events go to an observer.

import type { Clock } from '../../clock.ts';
import type { Plan } from '../../cluster/cluster.ts';
import { bytesInMiB } from '../../cluster/memory.ts';
import type { DeviceChoice } from '../../engine/engine.ts';
import { RunError } from '../../errors.ts';
import type { LayerSequence } from '../../graph/layers.ts';
import { wishOf } from '../../schedule/staleness.ts';
import { saveCheckpoint } from '../../storage/checkpoints.ts';
import type { RunFolder } from '../../storage/run-folder.ts';
import { epochOf, roundsPerEpoch } from '../../training/data/order.ts';
import { useEntries } from '../../training/data/preparation.ts';
import { countsCorrect } from '../../training/losses.ts';
import type { CoordinatorEnd, CoordinatorOptions, RunHooks } from '../coordinator/options.ts';
import type { StageStore } from '../device/compiled-stages.ts';
import { comparableMiB } from '../device/memory-need.ts';
import type { Observer, RunEvent } from '../protocol/events.ts';
import { NotFinite } from '../protocol/not-finite.ts';
import { batchAt } from '../protocol/round-batch.ts';
import { averagedParameters, type RunState, trainedParameters, withFrozen } from '../protocol/run-state.ts';
import { BatchesAhead } from './batches-ahead.ts';
import { type EngineFactory, type Evaluation, engineOf } from './evaluate.ts';
import { explainNotFinite } from './first-not-finite.ts';
import { trainHere } from './local.ts';
import { localPlan } from './local-plan.ts';
import type { LocalWorkers } from './local-workers.ts';
import type { PreparedRun } from './prepare.ts';
import { RunPlanner } from './run-planner.ts';
import { RunTests } from './run-tests.ts';
import { recoveryOf } from './settings.ts';

/** What a run has of the machine it runs on: its host gives the engine, sockets and processes. */
export interface SessionEnvironment {
  readonly clock: Clock;
  readonly observe: Observer;
  /** Aborted by Ctrl-C: the round in progress commits, a checkpoint is written. */
  readonly signal: AbortSignal;
  /** Keeps what a stage in this process is compiled to. Default: nowhere. */
  readonly stageStore?: StageStore;
  /** Keeps first plans for the next run. Default: nowhere. */
  readonly planStore?: StageStore;
  /** The run's local workers, if they have been started already. Default: they are started when they can join. */
  readonly localWorkers?: LocalWorkers | undefined;
}

/** Where to listen and whom to wait for. */
export interface ClusterOptions {
  readonly host: string;
  readonly port: number;
  /** ADDRESS[:PORT] that workers dial, if it is not where the coordinator listens. */
  readonly advertise?: string;
  /** Plain links beyond this machine. */
  readonly insecure: boolean;
  /** Files of an own certificate and key. */
  readonly tlsCert?: string;
  readonly tlsKey?: string;
  /** Worker processes to start on this machine. */
  readonly localCount: number;
  /** Compute threads of each of them. */
  readonly threads: number;
  readonly engine: 'onnxruntime' | 'reference';
  /** What they compute on. Default: 'cpu'. */
  readonly device?: DeviceChoice;
  /** These processes, if they have been started already. */
  readonly localWorkers?: LocalWorkers;
  /** Where `asteroid drain` leaves its requests. */
  readonly runFolder?: string;
  readonly clock: Clock;
  readonly signal: AbortSignal;
}

/** What the machine that a session runs on does for it. */
export interface SessionHost {
  readonly createEngine: EngineFactory;
  /** Memory of this machine for this process, in MiB. */
  memoryMiB(): number;
  /** Runs a coordinator to the run's end; all local workers are gone when it settles. */
  runCluster(
    options: Omit<CoordinatorOptions, 'peerToken' | 'clock'>,
    cluster: ClusterOptions,
  ): Promise<CoordinatorEnd>;
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
  /** The rounds that the model of the run has seen: fewer where the best is kept. */
  readonly modelRound: number;
  /** Undefined where the run was stopped before there was one. */
  readonly plan: Plan | undefined;
}

/**
 * Trains, tests, and writes into the folder; without a folder nothing is written. Throws RunError when the run fails,
 * InputError where the devices or the network do not allow it.
 */
export function runPreparedOn(
  host: SessionHost,
  run: PreparedRun,
  environment: SessionEnvironment,
  folder?: RunFolder,
): Promise<SessionResult> {
  return new TrainingSession(host, run, environment, folder).run();
}

class TrainingSession {
  readonly #host: SessionHost;
  readonly #prepared: PreparedRun;
  readonly #environment: SessionEnvironment;
  readonly #folder: RunFolder | undefined;
  readonly #sequence: LayerSequence;
  readonly #planner: RunPlanner;
  readonly #batches: BatchesAhead;
  readonly #losses: number[] = [];
  #plan: Plan | undefined;
  #state: RunState;
  /** The rounds that `#state` has seen. */
  #stateRound: number;
  /** Since the first layout stands; later ones go on. */
  #isTraining = false;
  #lastCommitMs = 0;
  #planReadyMs = 0;
  readonly #tests: RunTests;
  /** Aborted by Ctrl-C, and where further training makes nothing better. */
  readonly #end = new AbortController();

  constructor(host: SessionHost, run: PreparedRun, environment: SessionEnvironment, folder: RunFolder | undefined) {
    this.#host = host;
    this.#planner = new RunPlanner(run, environment);
    this.#prepared = run;
    this.#batches = new BatchesAhead(run.dataset, run.order, run.machine.endRound);
    this.#environment = environment;
    this.#folder = folder;
    this.#sequence = run.subject.sequence;
    this.#state = run.subject.state;
    this.#stateRound = run.machine.firstRound;
    const { clock, observe } = environment;
    this.#tests = new RunTests({ run, createEngine: host.createEngine, clock, observe, folder });
  }

  async run(): Promise<SessionResult> {
    const { machine } = this.#prepared;
    const { clock } = this.#environment;
    this.#planReadyMs = clock.now();
    const isDone = machine.firstRound >= machine.endRound;
    const { round, stopped: isShort } = isDone ? { round: machine.firstRound, stopped: false } : await this.#train();
    const stopped = isShort && !this.#tests.isExhausted;
    const trainSeconds = (clock.now() - this.#planReadyMs - this.#tests.spentMs) / 1000;
    if (stopped) this.#observe({ kind: 'stopped', round });
    // Stopped before the first round: there is nothing that was not there before.
    const bytes = isDone || round > machine.firstRound ? this.#trainedModel() : undefined;
    if (bytes !== undefined) await this.#folder?.write('model.onnx', bytes);
    const kept = stopped || bytes === undefined ? undefined : await this.#tests.result(round, bytes);
    if (kept !== undefined && kept.bytes !== bytes) await this.#folder?.write('model.onnx', kept.bytes);
    return {
      rounds: round,
      stopped,
      losses: this.#losses,
      trainSeconds,
      state: this.#state,
      evaluation: kept?.evaluation,
      modelRound: kept?.round ?? round,
      plan: this.#plan,
    };
  }

  #observe(event: RunEvent): void {
    this.#environment.observe(event);
  }

  #train(): Promise<CoordinatorEnd> {
    const { signal } = this.#environment;
    const end = (): void => this.#end.abort();
    signal.addEventListener('abort', end, { once: true });
    if (signal.aborted) end();
    const hooks: RunHooks = {
      batch: (round) => this.#batches.fed(round),
      observe: (event) => this.#watch(event),
      onCommitted: (round, loss, correctCount, rate, results) =>
        this.#committed(round, loss, correctCount, rate, results),
      onCheckpoint: (round, state) => this.#checkpoint(round, state),
    };
    const training = this.#prepared.machine.workerCount === 0 ? this.#trainHere(hooks) : this.#trainOverWorkers(hooks);
    const explained = training.catch(async (error: unknown) => {
      throw error instanceof NotFinite ? await this.#explained(error) : error;
    });
    return explained.finally(() => signal.removeEventListener('abort', end));
  }

  /** The error with the layer where numbers left the finite ones. */
  async #explained(error: NotFinite): Promise<RunError> {
    const { settings, subject } = this.#prepared;
    if (this.#stateRound !== error.round || this.#environment.signal.aborted) return error;
    const engine = await this.#host.createEngine({ engine: settings.engine, threadCount: settings.threads });
    try {
      const why = await explainNotFinite(engine, subject, {
        round: error.round,
        batch: await this.#batches.at(error.round),
        microBatchSize: this.#plan?.microBatchSize ?? settings.batch,
        state: this.#state,
      });
      return error.explained(why);
    } finally {
      await engine.close();
    }
  }

  async #trainHere(hooks: RunHooks): Promise<CoordinatorEnd> {
    const { settings } = this.#prepared;
    const { clock, stageStore } = this.#environment;
    const { signal } = this.#end;
    const microBatch = this.#sequence.fixedBatch ?? settings.microBatch;
    const plan = localPlan(this.#sequence.layers.length, settings.batch, microBatch, this.#prepared.subject.training);
    this.#plan = plan;
    const engine = await this.#host.createEngine(engineOf(settings));
    if (engine.warning !== undefined) this.#observe({ kind: 'warning', message: engine.warning });
    try {
      return await trainHere(this.#prepared.subject, hooks, this.#prepared.machine, plan, {
        engine,
        clock,
        signal,
        memoryBytes: comparableMiB(this.#host.memoryMiB(), engine.name) * bytesInMiB,
        ...(stageStore === undefined ? {} : { stageStore }),
      });
    } finally {
      await engine.close();
    }
  }

  #trainOverWorkers(hooks: RunHooks): Promise<CoordinatorEnd> {
    const { settings } = this.#prepared;
    const { clock, localWorkers } = this.#environment;
    const { signal } = this.#end;
    const given = this.#prepared.plan;
    if (given !== undefined) this.#plan = this.#planner.usedAsGiven(given);
    const planner = this.#planner;
    return this.#host.runCluster(
      {
        machine: this.#prepared.machine,
        subject: this.#prepared.subject,
        hooks,
        plan: async (profile, cluster, isOver) => {
          const plan = await planner.first(profile, cluster, isOver);
          if (plan !== undefined) this.#plan = plan;
          return plan;
        },
        planAgain: (profile, cluster, wish) => planner.again(profile, cluster, wish),
        ...planner.memoryWishes,
        recovery: recoveryOf(settings),
        staleness: this.#plan?.staleness === undefined ? settings : wishOf(this.#plan),
        ...(this.#plan === undefined ? {} : { givenPlan: this.#plan }),
        checkGiven: (plan, cluster) => planner.checkGiven(plan, cluster),
      },
      {
        host: settings.host,
        port: settings.port,
        ...(settings.advertise === undefined ? {} : { advertise: settings.advertise }),
        insecure: settings.insecure,
        ...(settings.tlsCert === undefined ? {} : { tlsCert: settings.tlsCert }),
        ...(settings.tlsKey === undefined ? {} : { tlsKey: settings.tlsKey }),
        localCount: settings.workers,
        threads: settings.threads,
        engine: settings.engine,
        device: settings.device,
        ...(localWorkers === undefined ? {} : { localWorkers }),
        clock,
        signal,
        ...(this.#folder === undefined ? {} : { runFolder: this.#folder.path }),
      },
    );
  }

  /** Draws the weights of a fresh model while devices measure, one tensor at a time: else all wait for it later. */
  #drawWeights(): void {
    const tensors = [...this.#state.parameter.values()];
    const next = (): void => {
      if (tensors.pop()?.data !== undefined) this.#environment.clock.after(0, next);
    };
    next();
  }

  /** Events pass through here on their way out; documents of the run folder are written from them. */
  #watch(event: RunEvent): void {
    this.#planner.observed(event);
    if (event.kind === 'phase' && event.phase === 'profiling') this.#drawWeights();
    if (event.kind === 'phase' && event.phase === 'training' && !this.#isTraining) {
      this.#isTraining = true;
      this.#planReadyMs = this.#environment.clock.now();
      this.#lastCommitMs = this.#planReadyMs;
      const { machine, order } = this.#prepared;
      this.#observe({
        kind: 'training',
        firstRound: machine.firstRound,
        endRound: machine.endRound,
        roundsPerEpoch: roundsPerEpoch(order),
      });
    }
    this.#observe(event);
  }

  #committed(
    round: number,
    loss: number,
    correctCount: number,
    rate: number,
    results: Parameters<RunHooks['onCommitted']>[4],
  ): void {
    const nowMs = this.#environment.clock.now();
    const seconds = Math.max(1e-9, (nowMs - this.#lastCommitMs) / 1000);
    this.#lastCommitMs = nowMs;
    this.#losses.push(loss);
    const { order, machine, settings, dataset } = this.#prepared;
    const { sampleCount, factor } = batchAt(machine, round);
    // Samples are counted alike, whatever their weight in the loss.
    const share = dataset.softening === undefined ? factor : settings.batch / sampleCount;
    const metrics = {
      round,
      epoch: epochOf(order, round),
      loss,
      samplesPerS: sampleCount / seconds,
      lr: rate,
      accuracy: countsCorrect(settings.loss) ? (correctCount / settings.batch) * share : null,
    };
    const busyFraction = Object.fromEntries(
      Object.entries(results).map(([device, { busyMs }]) => [device, Math.min(1, busyMs / (seconds * 1000))]),
    );
    const reported = Object.entries(results).filter(([, { processMs }]) => processMs !== undefined);
    const work = Object.fromEntries(
      reported.map(([device, { processMs = 0, linksMs, reducingMs }]) => [
        device,
        {
          processMs,
          ...(linksMs === undefined ? {} : { linksMs }),
          ...(reducingMs === undefined ? {} : { reducingMs }),
        },
      ]),
    );
    this.#observe({ kind: 'round', metrics, endRound: machine.endRound, busyFraction, work });
  }

  async #checkpoint(round: number, state: RunState): Promise<boolean> {
    [this.#state, this.#stateRound] = [withFrozen(state, this.#prepared.subject.state), round];
    const isSafe = await this.#save(round, state);
    const { evaluateEvery, endRound } = this.#prepared.machine;
    const isTested =
      evaluateEvery !== undefined &&
      round % evaluateEvery === 0 &&
      round < endRound &&
      !this.#environment.signal.aborted;
    if (isTested) await this.#tests.at(round, this.#trainedModel());
    if (isTested && this.#tests.isExhausted) this.#end.abort();
    this.#lastCommitMs = this.#environment.clock.now();
    return isSafe;
  }

  /** A checkpoint that the disk refuses is a warning; training goes on, and the one before stays the last. */
  async #save(round: number, state: RunState): Promise<boolean> {
    const { settings, model, subject } = this.#prepared;
    const folder = this.#folder;
    if (folder === undefined) return false;
    try {
      const path = await saveCheckpoint(
        folder.checkpointsPath,
        {
          round,
          parameters: trainedParameters(state, subject.training.frozen),
          buffers: state.buffer,
          optimizerState: state.optimizer,
          state: { model: model.name, batch: settings.batch, seed: settings.seed, optimizer: settings.optimizer },
        },
        { disk: folder.disk },
      );
      this.#observe({ kind: 'checkpoint', round, path });
      return true;
    } catch (error) {
      if (!(error instanceof RunError)) throw error;
      this.#observe({
        kind: 'warning',
        message: `No checkpoint after round ${round}: ${error.message} Training goes on.`,
      });
      return false;
    }
  }

  #trainedModel(): Uint8Array {
    const { model, train, settings, subject } = this.#prepared;
    const values = new Map([...trainedParameters(this.#state, subject.training.frozen), ...this.#state.buffer]);
    const entries = useEntries({ loss: settings.loss, preparation: train.preparation, classNames: train.classNames });
    return model.write(averagedParameters(values, this.#state.optimizer), entries);
  }
}
