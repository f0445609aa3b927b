// From settings, model and data to a run that can start: everything that can be found wrong before a folder is made or
// a device is asked is found here, as InputError. Starts nothing and writes nothing.

import { defined } from '../../assert.ts';
import { differentiate } from '../../autodiff/differentiate.ts';
import type { Cluster, Plan, PlanLayout } from '../../cluster/cluster.ts';
import { InputError } from '../../errors.ts';
import type { Graph } from '../../graph/graph.ts';
import { bufferBytes, type LayerSequence, parameterBytes } from '../../graph/layers.ts';
import { extractStage } from '../../graph/stage.ts';
import { sameShape, type Tensor } from '../../graph/tensor.ts';
import { plannerOf } from '../../planner/planners.ts';
import { checkProgram } from '../../schedule/check.ts';
import { program } from '../../schedule/generate.ts';
import { scheduleNames, scheduleOf } from '../../schedule/schedules.ts';
import { withStaleness } from '../../schedule/staleness.ts';
import type { Checkpoint } from '../../storage/checkpoints.ts';
import { clipScale } from '../../training/clipping.ts';
import type { Datasets } from '../../training/data/arrays.ts';
import type { Dataset } from '../../training/data/dataset.ts';
import { type BatchOrder, roundsPerEpoch } from '../../training/data/order.ts';
import { lossGraph } from '../../training/losses.ts';
import { learningRate, parseSchedule } from '../../training/schedules.ts';
import type { MachineConfig } from '../coordinator/machine-types.ts';
import { differentiableNames } from '../device/stage-graphs.ts';
import { profilePoints } from '../protocol/profile-points.ts';
import type { RoundBatches } from '../protocol/round-batch.ts';
import type { RunState } from '../protocol/run-state.ts';
import type { RunSubject } from '../protocol/run-subject.ts';
import type { TrainingSpec } from '../protocol/training-spec.ts';
import { batchesOf, batchOrder, comingRestSize, leftOut, paddingNotes } from './batches.ts';
import { checkBest } from './best-metric.ts';
import { type TrainedLayers, trainedLayers } from './fine-tuning.ts';
import type { LoadedModel } from './loaded-model.ts';
import { overSequences } from './sequences.ts';
import { autoSchedule, correctionIn, rampOf, recoveryOf, type TrainSettings } from './settings.ts';
import { withShorter } from './shorter.ts';
import { bindToModel, labelCut, sizedByData, withSoftening } from './subject.ts';
import { tangentScales } from './tangent-scales.ts';

/** What a session works on. Files have been read and checked. */
export interface SessionInput {
  readonly settings: TrainSettings;
  readonly model: LoadedModel;
  readonly train: Dataset;
  readonly test: Dataset | undefined;
  /** Files that belong to the trained model (`Datasets.companions`). */
  readonly companions?: Datasets['companions'];
  readonly plan?: Plan;
  readonly cluster?: Cluster;
  /** To go on from. */
  readonly checkpoint?: Checkpoint;
  /** The run may have done all its rounds and been killed before its model was written. */
  readonly isUnwritten?: boolean;
}

/** A run whose settings, model and data fit together. */
export interface PreparedRun extends SessionInput {
  readonly subject: RunSubject;
  /** The training data, bound to the model's inputs. */
  readonly dataset: Dataset;
  readonly order: BatchOrder;
  readonly machine: MachineConfig;
  /** What the user should know of how the model is trained, one sentence each. */
  readonly notes: readonly string[];
}

/** Throws InputError for an address or certificate files that a coordinator on this machine cannot use. */
export type HostCheck = (settings: Pick<TrainSettings, 'host' | 'advertise' | 'tlsCert' | 'tlsKey'>) => void;

/** Fits settings, model, data and the host's addresses together. Throws InputError where they do not fit. */
export function prepareRunOn(checkHost: HostCheck, given: SessionInput): PreparedRun {
  const input = overSequences(given);
  const { settings, model, checkpoint, test } = input;
  const trained = (graph: Graph): TrainedLayers =>
    trainedLayers(graph, { ...settings, onlyTrained: model.onlyTrained }, model.choices);
  const { sequence: usual, frozen, notes } = trained(sizedByData(model.graph, input.train));
  const dataset = withSoftening(bindToModel(input.train, usual, settings), usual, settings);
  if (test !== undefined) bindToModel(test, usual, settings);
  const order = batchOrder(dataset, settings, usual);
  const sequence = withShorter(usual, input, { order, layersOf: (graph) => trained(graph).sequence });
  const hasIgnored = dataset.labels.ignored !== undefined;
  const training = {
    ...trainingSpec(settings, sequence, { frozen, hasIgnored, restSize: comingRestSize(order, settings) }),
    ...correctionOf(input, roundCount(settings, order)),
    ...forwardGradientOf(input, sequence, roundsPerEpoch(order)),
  };
  const state = checkpoint === undefined ? initialRunState(sequence) : resumedState(sequence, checkpoint, frozen);
  const subject = { modelName: model.name, sequence, training, label: labelCut(dataset), state };
  const machine = machineConfig(input, { order, subject, batchAt: batchesOf(dataset, order) });
  checkFixedBatch(sequence, settings);
  checkTrainable(subject, settings);
  checkDistribution(input, sequence, checkHost);
  const left = leftOut(order, settings, sequence);
  const told = [...model.notes, ...notes, ...left, ...paddingNotes(order)];
  return { ...input, subject, dataset, order, machine, notes: told };
}

/** Tests of a run that does not say how often: after every epoch, or every few. */
const maxTestCount = 20;

function machineConfig(
  { settings, checkpoint, plan, test, isUnwritten = false }: SessionInput,
  { order, subject, batchAt }: Pick<PreparedRun, 'order' | 'subject'> & Pick<Required<RoundBatches>, 'batchAt'>,
): MachineConfig {
  const { sequence, training } = subject;
  const perEpoch = roundsPerEpoch(order);
  const endRound = roundCount(settings, order);
  const firstRound = checkpoint?.round ?? 0;
  if (firstRound >= endRound && !isUnwritten)
    throw new InputError(`The run has done its ${endRound} rounds already: give more with --epochs or --steps.`);
  const { clipNorm } = training;
  const schedule = parseSchedule(settings.lrSchedule);
  const epochsPerTest = Math.max(1, Math.ceil(endRound / perEpoch / maxTestCount));
  const recovery = recoveryOf(settings);
  const replicateEvery = settings.replicateEvery ?? recovery.copyEvery;
  const evaluateEvery = test === undefined ? 0 : (settings.evalEvery ?? perEpoch * epochsPerTest);
  checkBest(settings, { hasTest: test !== undefined, evaluateEvery });
  return {
    workerCount: settings.workers + settings.remote,
    ...(replicateEvery === undefined ? {} : { replicateEvery }),
    ...(recovery.copyEvery === undefined ? {} : { replicatesAtMultiples: true }),
    firstRound,
    endRound,
    checkpointEvery: settings.checkpointEvery ?? recovery.checkpointEvery ?? Math.min(perEpoch, 500),
    ...(evaluateEvery > 0 ? { evaluateEvery } : {}),
    batchSize: settings.batch,
    batchAt,
    batchSizesToProfile: profilePoints(
      settings.microBatch ?? Math.min(settings.batch, 64),
      sequence.fixedBatch,
      settings.profile,
    ),
    thoroughness: settings.profile,
    layerBytes: sequence.layers.map((layer) => parameterBytes(sequence, layer) + bufferBytes(sequence, layer)),
    planGiven: plan !== undefined,
    waitForDevices: settings.remote > 0,
    learningRate: (round) => learningRate(schedule, settings.lr, round, endRound),
    gradientScale: (squaredNorm) => (clipNorm === null ? 1 : clipScale(squaredNorm, clipNorm)),
  };
}

/** Grains of a micro-batch where nobody says how many: shares can differ by a quarter. */
const grainCount = 4;

/**
 * Samples of a grain. Batch normalization sees a grain alone: where there is any, a grain is the micro-batch unless
 * asked otherwise.
 */
function grainOf({ grain, microBatch = 1 }: TrainSettings, sequence: LayerSequence): number {
  if (grain !== undefined) return grain;
  if (sequence.fixedBatch !== undefined || sequence.layers.some((layer) => layer.batchDependent)) return microBatch;
  let found = Math.max(1, Math.floor(microBatch / grainCount));
  while (microBatch % found !== 0) found--;
  return found;
}

function trainingSpec(
  settings: TrainSettings,
  sequence: LayerSequence,
  {
    frozen,
    hasIgnored,
    restSize,
  }: { readonly frozen: readonly string[]; readonly hasIgnored: boolean; readonly restSize: number },
): TrainingSpec {
  const { optimizer: kind, momentum, nesterov, weightDecay, beta1, beta2, epsilon } = settings;
  return {
    batchSize: settings.batch,
    ...(restSize > 0 ? { restSize } : {}),
    loss: settings.loss,
    ...(hasIgnored ? { ignoresNegative: true } : {}),
    optimizer: {
      ...{ kind, momentum, nesterov, weightDecay, beta1, beta2, epsilon },
      ...(settings.ema === undefined ? {} : { averageDecay: settings.ema }),
    },
    clipNorm: settings.clipNorm ?? null,
    seed: settings.seed,
    frozen,
    ...(settings.recompute === 'none' || settings.strict ? {} : { recompute: settings.recompute }),
    ...(settings.strict ? { grain: grainOf(settings, sequence) } : {}),
    ...(settings.aggregate > 0 ? { aggregate: settings.aggregate } : {}),
  };
}

/** The round before which a run ends. */
function roundCount({ steps, epochs = 1 }: TrainSettings, order: BatchOrder): number {
  return steps ?? epochs * roundsPerEpoch(order);
}

/** What makes up for old weights where rounds overlap, or may; nothing elsewhere. */
function correctionOf(
  { settings, plan }: SessionInput,
  rounds: number,
): Pick<TrainingSpec, 'stalenessCorrection' | 'rampRounds'> {
  const isStream = (settings.mode ?? plan?.schedule) === 'async' || settings.mode === 'auto';
  const correction = correctionIn(settings);
  if (!isStream || correction === 'none') return {};
  return { stalenessCorrection: correction, ...rampOf(settings, correction, rounds) };
}

/** What a run by forward gradients needs besides; nothing for others. */
function forwardGradientOf(
  { settings, plan }: SessionInput,
  { graph }: LayerSequence,
  perEpoch: number,
): Pick<TrainingSpec, 'forwardGradient'> {
  const { mode, tangents, tangent, tangentScale, perturb, tangentDifference: difference } = settings;
  if (mode !== 'forward-gradient' && (mode !== undefined || plan?.schedule !== 'forward-gradient')) return {};
  const { scales } = tangentScales(graph.parameters, tangentScale);
  const tangentCount = plan?.tangentCount ?? tangents;
  if (difference !== undefined && tangentCount > 1)
    throw new InputError('--tangent-difference moves along one direction a round: leave out --tangents.');
  const step = difference === undefined ? {} : { difference };
  const moved = perturb === 'activations' ? { perturbs: perturb } : {};
  return { forwardGradient: { tangentCount, kind: tangent, scales, roundsPerEpoch: perEpoch, ...moved, ...step } };
}

function initialRunState({ graph }: LayerSequence): RunState {
  const pick = (names: readonly string[]): Map<string, Tensor> =>
    new Map(names.map((name) => [name, defined(graph.initializers.get(name), name)]));
  return { parameter: pick(graph.parameters), buffer: pick(graph.buffers), optimizer: new Map() };
}

/** A checkpoint's state, if it belongs to this model, whose frozen parameters it does not hold. */
function resumedState(sequence: LayerSequence, checkpoint: Checkpoint, frozen: readonly string[]): RunState {
  const { buffers, optimizerState } = checkpoint;
  const kept = frozen.map((name) => [name, defined(sequence.graph.initializers.get(name), name)] as const);
  const parameters = new Map([...kept, ...checkpoint.parameters]);
  for (const [names, found] of [
    [sequence.graph.parameters, parameters],
    [sequence.graph.buffers, buffers],
  ] as const) {
    for (const name of names) {
      const value = found.get(name);
      if (value === undefined || !sameShape(value.shape, defined(sequence.graph.initializers.get(name), name).shape)) {
        const what = value === undefined ? 'is missing' : `is of another shape, [${value.shape.join(', ')}]`;
        throw new InputError(
          `The checkpoint does not belong to this model: ${name} ${what}; resume the run with the model that it ` +
            'began with.',
        );
      }
    }
  }
  return { parameter: parameters, buffer: buffers, optimizer: optimizerState };
}

function checkFixedBatch({ fixedBatch }: LayerSequence, { batch, microBatch }: TrainSettings): void {
  if (fixedBatch === undefined) return;
  const fix = 'or export it with a dynamic batch axis';
  if (microBatch !== undefined && microBatch !== fixedBatch) {
    throw new InputError(
      `The model was exported for a batch of exactly ${fixedBatch}: use --micro-batch ${fixedBatch}, ${fix}.`,
    );
  }
  if (batch % fixedBatch !== 0) {
    throw new InputError(
      `The model was exported for a batch of exactly ${fixedBatch}: use a --batch that is a multiple of it, ${fix}.`,
    );
  }
}

/**
 * Differentiates the model whole, so that an operator without a gradient or a size that does not fit is known before
 * any device starts.
 */
function checkTrainable({ sequence, training, label }: RunSubject, { batch, microBatch }: TrainSettings): void {
  const sampleCount = microBatch ?? sequence.fixedBatch ?? batch;
  const stage = extractStage(sequence, 0, sequence.layers.length, sampleCount);
  const frozen = new Set(training.frozen);
  const logits = defined(stage.graph.outputs[0], 'the output');
  differentiate(stage, {
    inputs: differentiableNames(stage.inputs),
    parameters: sequence.graph.parameters.filter((name) => !frozen.has(name)),
    outputs: [logits.name],
  });
  const labels = { type: label.type, shape: [sampleCount, ...(label.shape.slice(1) as number[])] };
  const { loss, ignoresNegative = false } = training;
  lossGraph(loss, { type: logits.type, shape: logits.shape as number[] }, labels, { ignoresNegative });
}

/** Planner, schedule, addresses, and a given plan. */
function checkDistribution({ settings, plan }: SessionInput, sequence: LayerSequence, checkHost: HostCheck): void {
  plannerOf(settings.planner);
  checkSchedule(settings.schedule);
  if (settings.workers + settings.remote > 0) checkHost(settings);
  if (plan === undefined) return;
  checkPlanMode(plan, settings);
  checkPlanFits(plan, sequence, settings);
  const stale = withStaleness(plan, settings);
  checkProgram(program(stale), stale);
}

/** A plan from a file must be for the mode that is asked for. */
function checkPlanMode({ schedule }: Plan, { mode, ...settings }: TrainSettings): void {
  const { isStream } = scheduleOf(schedule);
  if (mode !== undefined && mode !== (isStream ? schedule : 'sync'))
    throw new InputError(
      `The plan has schedule "${schedule}", which --mode ${mode} does not run: leave --mode out, or make a plan with ` +
        'that mode.',
    );
  if (isStream) return;
  const { staleness, verticalSync, aggregate, stalenessCorrection } = settings;
  if (staleness !== undefined || !verticalSync || aggregate > 0 || (stalenessCorrection ?? 'none') !== 'none')
    throw new InputError(
      `The plan has schedule "${schedule}", whose rounds do not overlap: leave out --staleness and what belongs to it.`,
    );
}

function checkSchedule(name: string): void {
  const names: readonly string[] = [...scheduleNames, autoSchedule];
  if (!names.includes(name)) throw new InputError(`There is no schedule "${name}"; use one of ${names.join(', ')}.`);
}

/** A plan from a file must be for this model, batch and number of devices. */
export function checkPlanFits(
  plan: PlanLayout,
  sequence: LayerSequence,
  { batch, microBatch, workers, remote, perturb }: TrainSettings,
): void {
  const layerCount = sequence.layers.length;
  const end = defined(plan.stages.at(-1), 'a stage').layers[1];
  if (end !== layerCount) {
    throw new InputError(
      `The plan is for a model of ${end} layers, this model has ${layerCount}: make a plan from this model's profile.`,
    );
  }
  if (plan.batchSize !== batch) {
    throw new InputError(
      `The plan is for a batch of ${plan.batchSize}, the run's is ${batch}: give --batch ${plan.batchSize} or ` +
        'make a new plan.',
    );
  }
  const size = plan.microBatchSize;
  if (microBatch !== undefined && size !== microBatch) {
    throw new InputError(
      `The plan is for micro-batches of ${size}, --micro-batch is ${microBatch}: give --micro-batch ${size} or ` +
        'make a new plan.',
    );
  }
  const deviceCount = new Set(plan.stages.flatMap((stage) => stage.devices)).size;
  if (deviceCount > workers + remote) {
    throw new InputError(
      `The plan needs ${deviceCount} devices, the run has ${workers + remote}: raise --workers or --remote.`,
    );
  }
  const last = defined(plan.stages.at(-1), 'a stage').samples.filter((share) => share > 0).length;
  if (perturb === 'activations' && last > 1)
    throw new InputError(
      `The plan shares the last stage out to ${last} devices, and --perturb activations trains it on one: give it ` +
        'one device, or leave --perturb out.',
    );
}
