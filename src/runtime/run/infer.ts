// A run that only infers, from its settings to its end: the pipeline over workers that answers what is submitted to its
// rounds (inference-rounds.ts). `asteroid infer` submits a data set, `asteroid serve` requests as they come. Who runs
// the coordinator, and where, is the host's.

import type { Clock } from '../../clock.ts';
import type { BitsWish } from '../../cluster/activation-bits.ts';
import type { Cluster, Plan, Profile } from '../../cluster/cluster.ts';
import { InputError, RunError } from '../../errors.ts';
import type { Graph } from '../../graph/graph.ts';
import { type CutTensor, type LayerSequence, layers } from '../../graph/layers.ts';
import { adaptivePlanSteps } from '../../planner/inference/adaptive.ts';
import type { Objective } from '../../planner/inference/evaluate.ts';
import { planInferenceSteps } from '../../planner/inference/plan.ts';
import { runInSlices } from '../../planner/steps.ts';
import { checkProgram } from '../../schedule/check.ts';
import { program } from '../../schedule/generate.ts';
import { inferenceSchedule } from '../../schedule/schedules.ts';
import type { MachineConfig } from '../coordinator/machine-types.ts';
import type { CoordinatorEnd, CoordinatorOptions } from '../coordinator/options.ts';
import type { PlanWish } from '../knowledge/planning-options.ts';
import type { Observer, RunEvent } from '../protocol/events.ts';
import { profilePoints } from '../protocol/profile-points.ts';
import type { RunSubject } from '../protocol/run-subject.ts';
import type { TrainingSpec } from '../protocol/training-spec.ts';
import { graphWeights } from './graph-weights.ts';
import { checkInferenceMemory, plannedInferenceMiB } from './inference-memory.ts';
import type { Comparison, InferenceRounds } from './inference-rounds.ts';
import type { ClusterOptions, SessionHost } from './session.ts';
import { checkBatchesFirst } from './subject.ts';
import { type RoundSize, unmeasuredPlan, unmeasuredPlanner } from './unmeasured-plan.ts';

/** The settings of a run that only infers. */
export interface InferenceSettings extends RoundSize {
  /** Where to listen, and for whom to wait. */
  readonly cluster: Omit<ClusterOptions, 'clock' | 'signal'>;
  /** Workers on other machines. */
  readonly remoteCount: number;
  /** Otherwise the planner chooses among the divisors of the batch. */
  readonly isMicroBatchGiven: boolean;
  readonly planner: string;
  readonly objective: Objective;
  /** In how many bits activations travel. Absent: as they are. */
  readonly bits?: BitsWish;
  /** Numbers of samples that micro-batches may have. */
  readonly sizeCount: number;
}

/** A model that answers. */
export interface InferenceModel {
  readonly name: string;
  /** In inference mode, with all sizes but the batch's known. */
  readonly graph: Graph;
}

export interface InferenceInput {
  readonly settings: InferenceSettings;
  readonly model: InferenceModel;
  readonly plan?: Plan;
}

/** A run whose settings and model fit together. */
export interface PreparedInference extends InferenceInput {
  readonly sequence: LayerSequence;
  readonly input: readonly CutTensor[];
  /** In the model's order. */
  readonly outputs: readonly CutTensor[];
}

export interface InferenceEnvironment {
  readonly clock: Clock;
  readonly observe: Observer;
  /** Aborted: what is in flight is answered, then the run ends. */
  readonly signal: AbortSignal;
}

/** How long the search for a plan may take: at a run's beginning, and while devices stand still. */
const [longestPlanningMs, urgentPlanningMs] = [5_000, 500];

/** One micro-batch in so many rounds is sent once more as it is: 16 times as much as in 2 bits, and 2 % of the time. */
const exactEvery = 256;

/** Rounds in flight for each device: one computes, one travels, and none waits where both take equally long. */
const roundsPerDevice = 2;

/** Fits settings and model together. Throws InputError where they do not fit. */
export function prepareInference(given: InferenceInput): PreparedInference {
  const { model, plan, settings } = given;
  const sequence = layers(model.graph, { outputs: 'all' });
  checkBatchesFirst(sequence);
  const outputs = sequence.layers.at(-1)?.outputs;
  if (outputs === undefined) throw new InputError(`${model.name} has no layers: there is nothing to compute.`);
  if (sequence.fixedBatch !== undefined && settings.microBatchSize !== sequence.fixedBatch)
    throw new InputError(
      `${model.name} was exported for a batch of exactly ${sequence.fixedBatch}: use --micro-batch ` +
        `${sequence.fixedBatch}, or export it with a dynamic batch axis.`,
    );
  if (plan !== undefined) checkPlan(plan, sequence, settings);
  return { ...given, sequence, input: sequence.inputs, outputs };
}

function checkPlan(plan: Plan, { layers: all }: LayerSequence, { cluster, remoteCount }: InferenceSettings): void {
  const end = plan.stages.at(-1)?.layers[1];
  if (plan.schedule !== inferenceSchedule)
    throw new InputError(
      `The plan's schedule is ${plan.schedule}, which trains: make one with asteroid plan --schedule inference.`,
    );
  if (end !== all.length)
    throw new InputError(
      `The plan is for a model of ${end} layers, this model has ${all.length}: make a plan from this model's profile.`,
    );
  const deviceCount = new Set(plan.stages.flatMap(({ devices }) => devices)).size;
  const workerCount = cluster.localCount + remoteCount;
  if (deviceCount > workerCount)
    throw new InputError(
      `The plan needs ${deviceCount} devices, the run has ${workerCount}: raise --workers or --remote.`,
    );
  checkProgram(program(plan), plan);
}

/** Settings of training that nothing reads where nothing is trained. */
function notTrained(batchSize: number): TrainingSpec {
  const none = { momentum: 0, nesterov: false, weightDecay: 0, beta1: 0, beta2: 0, epsilon: 1 };
  const optimizer = { kind: 'sgd', ...none } as const;
  return { isInference: true, batchSize, loss: 'mse', optimizer, clipNorm: null, seed: 0, frozen: [] };
}

function subjectOf({ model, sequence, settings }: PreparedInference): RunSubject {
  const label: CutTensor = { name: 'label', type: 'float32', shape: ['N'], batchAxis: 0, differentiable: false };
  return {
    modelName: model.name,
    sequence,
    training: notTrained(settings.batchSize),
    label,
    state: { parameter: new Map(), buffer: new Map(), optimizer: new Map() },
  };
}

/** Answers what is submitted to `rounds` until their end. Throws RunError when the run fails. */
export async function inferOn(
  host: Pick<SessionHost, 'runCluster'>,
  run: PreparedInference,
  rounds: InferenceRounds,
  environment: InferenceEnvironment,
): Promise<CoordinatorEnd> {
  try {
    const end = await host.runCluster(coordinatorOptions(run, rounds, environment), {
      ...run.settings.cluster,
      clock: environment.clock,
      signal: environment.signal,
    });
    rounds.fail(new RunError('The run has ended.'));
    return end;
  } catch (error) {
    const failure = error instanceof Error ? error : new Error(String(error));
    rounds.fail(failure);
    throw failure;
  }
}

interface Planned {
  readonly found: Plan;
  readonly planningMs: number;
}

/** What plans within so many milliseconds, in slices. */
function plannerOf(
  { settings }: PreparedInference,
  batchSize: number,
  clock: Clock,
): (limitMs: number) => (profile: Profile, cluster: Cluster, isOver: () => boolean) => Promise<Planned | undefined> {
  return (limitMs) => async (profile, cluster, isOver) => {
    const startMs = clock.now();
    const input = {
      ...{ profile, cluster, batchSize, planner: settings.planner, objective: settings.objective },
      sizeCount: settings.sizeCount,
      ...(settings.isMicroBatchGiven ? { microBatchSize: settings.microBatchSize } : {}),
    };
    const isTimeUp = (fraction = 1): boolean => clock.now() - startMs > fraction * limitMs;
    const steps = settings.bits?.isAdaptive
      ? adaptivePlanSteps({ ...input, isTimeUp })
      : planInferenceSteps({ ...input, ...settings.bits, isTimeUp: () => isTimeUp() });
    const found = await runInSlices(steps, clock, isOver);
    return found && { found: compared(found), planningMs: clock.now() - startMs };
  };
}

function coordinatorOptions(
  run: PreparedInference,
  rounds: InferenceRounds,
  { observe, clock }: InferenceEnvironment,
): Omit<CoordinatorOptions, 'peerToken' | 'clock'> {
  const { settings, sequence, plan: given } = run;
  const workerCount = settings.cluster.localCount + settings.remoteCount;
  const names = Array.from({ length: workerCount }, (_, index) => `worker-${index + 1}`);
  const isMeasured = given === undefined && settings.planner !== unmeasuredPlanner;
  const unpredicted = given ?? (isMeasured ? undefined : compared(unmeasuredPlan(sequence, names, settings)));
  const plan = unpredicted && withMemory(unpredicted, run);
  const batchSize = plan?.batchSize ?? settings.batchSize;
  const used = (found: Plan, planningMs: number): Plan => {
    checkProgram(program(found), found);
    const layerNames = sequence.layers.map(({ name }) => name);
    observe({ kind: 'plan', plan: found, planningMs, layerNames });
    return found;
  };
  if (plan !== undefined) used(plan, 0);
  const planWith = plannerOf(run, batchSize, clock);
  return {
    subject: subjectOf(run),
    weights: graphWeights(sequence),
    onReady: (offer) => rounds.begin(offer),
    plan: async (profile, cluster, isOver) => {
      const planned = await planWith(longestPlanningMs)(profile, cluster, isOver);
      return planned && used(planned.found, planned.planningMs);
    },
    ...(isMeasured
      ? {
          planAgain: async (profile: Profile, cluster: Cluster, { isUrgent, isOver }: PlanWish) =>
            (await planWith(isUrgent ? urgentPlanningMs : longestPlanningMs)(profile, cluster, isOver))?.found,
        }
      : {}),
    ...(plan === undefined ? {} : { givenPlan: plan }),
    checkGiven: (fitted, cluster) => checkInferenceMemory(fitted, sequence, cluster),
    hooks: {
      batch: (round) => rounds.batch(round),
      onResults: (round, outputs) => rounds.results(round, outputs),
      observe: (event: RunEvent) => observe(event),
      onCommitted: () => {},
      onCheckpoint: async () => false,
    },
    machine: machineConfig(run, rounds, { workerCount, batchSize, planGiven: plan !== undefined }),
  };
}

/** The plan with what its devices hold, where that was not predicted. */
function withMemory(plan: Plan, { sequence, settings }: PreparedInference): Plan {
  const { predicted } = plan;
  if (Object.keys(predicted.peakMemoryMiB).length > 0) return plan;
  const peakMemoryMiB = plannedInferenceMiB(plan, sequence, settings.sizeCount);
  return { ...plan, predicted: { ...predicted, peakMemoryMiB } };
}

/** When the outputs of a run are compared; undefined where activations travel as they are. */
export function comparisonOf({ plan, settings }: InferenceInput): Comparison | undefined {
  const every = plan === undefined ? settings.bits && exactEvery : plan.compression?.exactEvery;
  return every === undefined ? undefined : { every, sampleCount: settings.microBatchSize };
}

/** The plan with rounds in which the error of outputs is measured, where activations travel in fewer bits. */
function compared(plan: Plan): Plan {
  const { compression } = plan;
  return compression?.activation === undefined ? plan : { ...plan, compression: { ...compression, exactEvery } };
}

/** Rounds in flight beyond the oldest: enough for all devices to compute. */
export function windowOf(workerCount: number): number {
  return roundsPerDevice * workerCount;
}

function machineConfig(
  { settings, sequence }: PreparedInference,
  rounds: InferenceRounds,
  given: Pick<MachineConfig, 'workerCount' | 'batchSize' | 'planGiven'>,
): MachineConfig {
  return {
    ...given,
    firstRound: 0,
    endRound: Number.MAX_SAFE_INTEGER,
    checkpointEvery: Number.MAX_SAFE_INTEGER,
    isStateConstant: true,
    awaitsOffers: true,
    replicateEvery: 0,
    window: windowOf(given.workerCount),
    batchAt: (round) => rounds.batchAt(round),
    batchSizesToProfile: profilePoints(settings.microBatchSize, sequence.fixedBatch, 'quick'),
    thoroughness: 'quick',
    waitForDevices: settings.remoteCount > 0,
    learningRate: () => 0,
    gradientScale: () => 1,
  };
}
