// One training run, prepared (prepare.ts), to its result: what the commands `train`, `quickstart` and `verify` share.
// It trains here or over workers, tests, and writes checkpoints and the trained model; events go to an observer.

import type { Clock } from '../../clock.ts';
import type { Cluster, Plan, Profile } from '../../cluster/cluster.ts';
import { bytesInMiB } from '../../cluster/memory.ts';
import { createComputeThread } from '../../engine/node/compute-thread.ts';
import { deviceFacts } from '../../engine/node/host-node.ts';
import { InputError, RunError } from '../../errors.ts';
import type { LayerSequence } from '../../graph/layers.ts';
import { importModel } from '../../graph/onnx/import.ts';
import { checkGrains, planInSamples, profileInGrains } from '../../planner/grains.ts';
import { remaining } from '../../planner/replan/survivors.ts';
import { atLeisure, type Steps } from '../../planner/steps.ts';
import { checkProgram } from '../../schedule/check.ts';
import { program } from '../../schedule/generate.ts';
import { saveCheckpoint } from '../../storage/checkpoints.ts';
import type { RunFolder } from '../../storage/run-folder.ts';
import { gather } from '../../training/data/dataset.ts';
import { batchIndices, epochOf, roundsPerEpoch } from '../../training/data/order.ts';
import type { CoordinatorEnd, RunHooks } from '../coordinator/options.ts';
import type { StageStore } from '../device/compiled-stages.ts';
import { runCluster } from '../host/cluster-run.ts';
import { withLinks } from '../knowledge/link-watch.ts';
import type { PlanWish } from '../knowledge/planning-options.ts';
import type { LinkChange, Observer, RunEvent } from '../protocol/events.ts';
import type { RunState } from '../protocol/run-state.ts';
import { optimizerStateCount } from '../protocol/training-spec.ts';
import { choosePlanSteps } from './choose-plan.ts';
import { type Evaluation, evaluate } from './evaluate.ts';
import { withForwardOnly } from './fine-tuning.ts';
import { localPlan, trainHere } from './local.ts';
import { checkPlanMemory } from './plan-memory.ts';
import { checkPlanFits, type PreparedRun, prepareRun, type SessionInput } from './prepare.ts';
import { autoSchedule } from './settings.ts';

export interface SessionEnvironment {
  readonly clock: Clock;
  readonly observe: Observer;
  /** Aborted by Ctrl-C: the round in progress commits, a checkpoint is written. */
  readonly signal: AbortSignal;
  /** Keeps what a stage in this process is compiled to. Default: nowhere. */
  readonly stageStore?: StageStore;
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
  /** Undefined where the run was stopped before there was one. */
  readonly plan: Plan | undefined;
}

/** Prepares and runs. Without a folder nothing is written. */
export async function runSession(
  input: SessionInput,
  environment: SessionEnvironment,
  folder?: RunFolder,
): Promise<SessionResult> {
  return runPrepared(prepareRun(input), environment, folder);
}

/**
 * Trains, tests, and writes into the folder. Throws RunError when the run fails, InputError where the devices or the
 * network do not allow it.
 */
export function runPrepared(
  run: PreparedRun,
  environment: SessionEnvironment,
  folder?: RunFolder,
): Promise<SessionResult> {
  return new Session(run, environment, folder).run();
}

/** A search that is not over by then gives the best that it has found. */
const longestPlanningMs = 45_000;

/** The same before the first round, for which everybody waits. */
const firstPlanningMs = 15_000;

/** The same while devices wait in the middle of a run. What is found then may be bettered at leisure. */
const urgentPlanningMs = 5_000;

class Session {
  readonly #prepared: PreparedRun;
  readonly #environment: SessionEnvironment;
  readonly #folder: RunFolder | undefined;
  readonly #sequence: LayerSequence;
  readonly #losses: number[] = [];
  #plan: Plan | undefined;
  #state: RunState;
  /** Since the first layout stands; later ones go on. */
  #isTraining = false;
  /** By device: what is left to count on of its memory, whatever a given cluster says. */
  readonly #loweredMiB = new Map<string, number>();
  /** By pair of devices: links that were seen to be slow, or fast again. */
  readonly #linkChanges = new Map<string, LinkChange>();
  #lastCommitMs = 0;
  #planReadyMs = 0;
  #evaluationMs = 0;

  constructor(run: PreparedRun, environment: SessionEnvironment, folder: RunFolder | undefined) {
    this.#prepared = run;
    this.#environment = environment;
    this.#folder = folder;
    this.#sequence = run.subject.sequence;
    this.#state = run.subject.state;
  }

  async run(): Promise<SessionResult> {
    const { machine } = this.#prepared;
    const { clock } = this.#environment;
    this.#planReadyMs = clock.now();
    const isDone = machine.firstRound >= machine.endRound;
    const { round, stopped } = isDone ? { round: machine.firstRound, stopped: false } : await this.#train();
    const trainSeconds = (clock.now() - this.#planReadyMs - this.#evaluationMs) / 1000;
    if (stopped) this.#observe({ kind: 'stopped', round });
    // Stopped before the first round: there is nothing that was not there before.
    const bytes = isDone || round > machine.firstRound ? this.#trainedModel() : undefined;
    if (bytes !== undefined) await this.#folder?.write('model.onnx', bytes);
    const evaluation = stopped || bytes === undefined ? undefined : await this.#evaluate(bytes, round);
    return {
      rounds: round,
      stopped,
      losses: this.#losses,
      trainSeconds,
      state: this.#state,
      evaluation,
      plan: this.#plan,
    };
  }

  #observe(event: RunEvent): void {
    this.#environment.observe(event);
  }

  #train(): Promise<CoordinatorEnd> {
    const hooks: RunHooks = {
      batch: (round) => gather(this.#prepared.dataset, batchIndices(this.#prepared.order, round)),
      observe: (event) => this.#watch(event),
      onCommitted: (round, loss, correctCount, rate, results) =>
        this.#committed(round, loss, correctCount, rate, results),
      onCheckpoint: (round, state) => this.#checkpoint(round, state),
    };
    return this.#prepared.machine.workerCount === 0 ? this.#trainHere(hooks) : this.#trainOverWorkers(hooks);
  }

  async #trainHere(hooks: RunHooks): Promise<CoordinatorEnd> {
    const { settings } = this.#prepared;
    const { clock, signal, stageStore } = this.#environment;
    const microBatch = this.#sequence.fixedBatch ?? settings.microBatch ?? settings.batch;
    const plan = localPlan(this.#sequence.layers.length, settings.batch, microBatch);
    this.#plan = plan;
    const engine = await createComputeThread({ engine: settings.engine, threadCount: settings.threads });
    try {
      return await trainHere(this.#prepared.subject, hooks, this.#prepared.machine, plan, {
        engine,
        clock,
        signal,
        memoryBytes: deviceFacts().memoryMiB * bytesInMiB,
        ...(stageStore === undefined ? {} : { stageStore }),
      });
    } finally {
      await engine.close();
    }
  }

  #trainOverWorkers(hooks: RunHooks): Promise<CoordinatorEnd> {
    const { settings } = this.#prepared;
    const { clock, signal } = this.#environment;
    const plan = this.#prepared.plan === undefined ? undefined : this.#usePlan(this.#prepared.plan, 0);
    return runCluster(
      {
        machine: this.#prepared.machine,
        subject: this.#prepared.subject,
        hooks,
        plan: (profile, cluster, isOver) => this.#choosePlan(profile, cluster, isOver),
        planAgain: (profile, cluster, wish) => this.#planAgain(profile, cluster, wish),
        mayRecompute: this.#mayRecompute,
        ...(plan === undefined ? {} : { givenPlan: plan }),
        checkGiven: (given, cluster) => checkPlanMemory(given, this.#given(cluster), this.#prepared.subject),
      },
      {
        host: settings.host,
        port: settings.port,
        insecure: settings.insecure,
        ...(settings.tlsCert === undefined ? {} : { tlsCert: settings.tlsCert }),
        ...(settings.tlsKey === undefined ? {} : { tlsKey: settings.tlsKey }),
        localCount: settings.workers,
        threads: settings.threads,
        engine: settings.engine,
        clock,
        signal,
        ...(this.#folder === undefined ? {} : { runFolder: this.#folder.path }),
      },
    );
  }

  async #choosePlan(profile: Profile, measured: Cluster, isOver: () => boolean): Promise<Plan | undefined> {
    const cluster = this.#given(measured);
    const { clock } = this.#environment;
    const startMs = clock.now();
    const plan = await atLeisure(this.#planSteps(profile, cluster, firstPlanningMs), clock, isOver);
    return plan && this.#usePlan(plan, clock.now() - startMs);
  }

  /**
   * A plan for other devices than those that the run began with: with the same micro-batches, over which batches are
   * normalized, unless nothing fits with these and devices wait for it.
   */
  async #planAgain(
    profile: Profile,
    measured: Cluster,
    { from, isUrgent, isOver }: PlanWish,
  ): Promise<Plan | undefined> {
    const given = this.#given(measured);
    const { clock } = this.#environment;
    const cluster = remaining(
      given,
      given.devices.flatMap(({ name }) => (measured.devices.some((device) => device.name === name) ? [] : [name])),
    );
    const find = async (microBatchSize?: number): Promise<Plan | undefined> => {
      const steps = this.#planSteps(profile, cluster, isUrgent ? urgentPlanningMs : longestPlanningMs, microBatchSize);
      const found = await atLeisure(steps, clock, isOver);
      return found && this.#checked(found);
    };
    try {
      return await find(from.microBatchSize);
    } catch (error) {
      if (!(error instanceof InputError) || !isUrgent) throw error;
      const plan = await find();
      if (plan !== undefined && this.#sequence.layers.some(({ batchDependent }) => batchDependent)) {
        const message = `The devices left have no memory for micro-batches of ${from.microBatchSize} samples: from now on, batches are normalized over ${plan.microBatchSize}.`;
        this.#observe({ kind: 'warning', message });
      }
      return plan;
    }
  }

  /**
   * The cluster that the user describes, but for what devices and links have shown that they cannot hold and carry; by
   * default the measured one.
   */
  #given(measured: Cluster): Cluster {
    const { cluster } = this.#prepared;
    if (cluster === undefined) return measured;
    const devices = cluster.devices.map((device) => ({
      ...device,
      memoryMiB: Math.min(device.memoryMiB, this.#loweredMiB.get(device.name) ?? device.memoryMiB),
    }));
    return withLinks({ ...cluster, devices }, [...this.#linkChanges.values()]);
  }

  get #mayRecompute(): boolean {
    const { recompute, strict } = this.#prepared.settings;
    return recompute === 'auto' && !strict;
  }

  *#planSteps(profile: Profile, cluster: Cluster, limitMs: number, microBatchSize?: number): Steps<Plan> {
    const { settings } = this.#prepared;
    const { clock } = this.#environment;
    const endMs = clock.now() + limitMs;
    const microBatch = microBatchSize ?? settings.microBatch ?? this.#sequence.fixedBatch;
    const { grain = 1 } = this.#prepared.subject.training;
    const found = yield* choosePlanSteps(
      {
        isTimeUp: () => clock.now() > endMs,
        profile: grain === 1 ? profile : profileInGrains(profile, grain),
        cluster,
        batchSize: settings.batch / grain,
        ...(settings.schedule === autoSchedule ? {} : { schedule: settings.schedule }),
        planner: settings.planner,
        compress: settings.compress,
        optimizerState: optimizerStateCount(this.#prepared.subject.training),
        replicateBatchDependent: settings.replicateBatchNorm,
        mayRecompute: this.#mayRecompute,
        ...(microBatch === undefined ? {} : { microBatchSize: microBatch / grain }),
      },
      settings.useAll,
    );
    return grain === 1 ? found : planInSamples(found, grain);
  }

  /** Every plan is checked by machine before it runs, given ones too. */
  #checked(found: Plan): Plan {
    const plan = withForwardOnly(found, this.#sequence);
    const { grain } = this.#prepared.subject.training;
    checkPlanFits(plan, this.#sequence, this.#prepared.settings);
    if (grain !== undefined) checkGrains(plan, grain);
    checkProgram(program(plan), plan);
    return plan;
  }

  #usePlan(found: Plan, planningMs: number): Plan {
    const plan = this.#checked(found);
    this.#plan = plan;
    this.#observe({ kind: 'plan', plan, planningMs, layerNames: this.#sequence.layers.map((layer) => layer.name) });
    return plan;
  }

  /** Events pass through here on their way out; documents of the run folder are written from them. */
  #watch(event: RunEvent): void {
    if (event.kind === 'drift')
      for (const change of event.links) this.#linkChanges.set([...change.between].sort().join(' '), change);
    if (event.kind === 'memory-lowered') this.#loweredMiB.set(event.device, event.toMiB);
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
    const { order, machine, settings } = this.#prepared;
    const { batch } = settings;
    const metrics = {
      round,
      epoch: epochOf(order, round),
      loss,
      samplesPerS: batch / seconds,
      lr: rate,
      accuracy: settings.loss === 'cross-entropy' ? correctCount / batch : null,
    };
    const busyFraction = Object.fromEntries(
      Object.entries(results).map(([device, { busyMs }]) => [device, Math.min(1, busyMs / (seconds * 1000))]),
    );
    const told = Object.entries(results).filter(([, { processMs }]) => processMs !== undefined);
    const work = Object.fromEntries(
      told.map(([device, { processMs = 0, linksMs, reducingMs }]) => [
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
    this.#state = state;
    const isSafe = await this.#save(round, state);
    const { evaluateEvery, endRound } = this.#prepared.machine;
    const isTested =
      evaluateEvery !== undefined &&
      round % evaluateEvery === 0 &&
      round < endRound &&
      !this.#environment.signal.aborted;
    if (isTested) await this.#evaluate(this.#trainedModel(), round);
    this.#lastCommitMs = this.#environment.clock.now();
    return isSafe;
  }

  /** A disk that takes no checkpoint is no reason to stop computing: it is told, and the one before stays the last. */
  async #save(round: number, state: RunState): Promise<boolean> {
    const { settings, model } = this.#prepared;
    const folder = this.#folder;
    if (folder === undefined) return false;
    try {
      const path = await saveCheckpoint(folder.checkpointsPath, {
        round,
        parameters: state.parameter,
        buffers: state.buffer,
        optimizerState: state.optimizer,
        state: { model: model.name, batch: settings.batch, seed: settings.seed, optimizer: settings.optimizer },
      });
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
    return this.#prepared.model.write(new Map([...this.#state.parameter, ...this.#state.buffer]));
  }

  async #evaluate(bytes: Uint8Array, round: number): Promise<Evaluation | undefined> {
    const { test, settings } = this.#prepared;
    if (test === undefined) return undefined;
    const startMs = this.#environment.clock.now();
    const evaluation = await evaluate(importModel(bytes).graph, test, {
      loss: settings.loss,
      engine: settings.engine,
      threads: settings.threads,
    });
    this.#evaluationMs += this.#environment.clock.now() - startMs;
    this.#observe({ kind: 'evaluated', round, ...evaluation });
    return evaluation;
  }
}
