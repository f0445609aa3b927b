// Reads all that a run needs from its files, before anything is written. A file that is missing or does not fit is one
// clear error.

import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { parseCluster, parsePlan } from '../cluster/validate.ts';
import { InputError } from '../errors.ts';
import { parseInputShape } from '../graph/onnx/input-shapes.ts';
import { isZooSpec } from '../models/zoo.ts';
import { type CheckoutSpec, checkoutSpec, openCheckoutModel } from '../runtime/host/checkouts.ts';
import { loadModel } from '../runtime/host/models.ts';
import { prepareRun } from '../runtime/host/session-here.ts';
import type { LoadedModel } from '../runtime/run/loaded-model.ts';
import type { PreparedRun, SessionInput } from '../runtime/run/prepare.ts';
import type { TrainSettings } from '../runtime/run/settings.ts';
import { loadLatestCheckpoint } from '../storage/checkpoints.ts';
import { type LoadOptions, loadDataset } from '../storage/node/datasets.ts';
import { nodeDisk } from '../storage/node/disk.ts';
import type { Datasets } from '../training/data/arrays.ts';
import type { Dataset } from '../training/data/dataset.ts';
import { readText } from './files.ts';
import { checkoutForData, withFilesBeside } from './fit-checkout.ts';
import { checkClasses, pictureInputOf, textInputOf, withClasses, withOption, zooGraph } from './fit-model.ts';
import type { Output } from './output.ts';

/** A run from its settings; `resume` is the folder of the run to resume. */
export async function readRun(wished: TrainSettings, resume: string | undefined, output: Output): Promise<PreparedRun> {
  const { settings, model, train, test, companions = {}, notes } = await readSubject(wished);
  const plan = settings.plan === undefined ? undefined : await readPlan(settings.plan);
  const cluster =
    settings.cluster === undefined ? undefined : parseCluster(await readText(settings.cluster), settings.cluster);
  const checkpoint = resume === undefined ? undefined : await lastCheckpoint(resume, output);
  const run = prepareRun({
    settings,
    model,
    train,
    test,
    companions,
    ...(plan === undefined ? {} : { plan }),
    ...(cluster === undefined ? {} : { cluster }),
    ...(checkpoint === undefined ? {} : { checkpoint }),
    ...(resume === undefined ? {} : { isUnwritten: !existsSync(join(resume, 'model.onnx')) }),
  });
  for (const message of [...run.notes, ...notes]) output.observe({ kind: 'note', message });
  return run;
}

/** Model and data, and the settings with the model's name as it fits the data. */
async function readSubject(
  wished: TrainSettings,
): Promise<
  Pick<SessionInput, 'settings' | 'model' | 'train' | 'test' | 'companions'> & { readonly notes: readonly string[] }
> {
  const checkout = checkoutSpec(wished.model);
  return checkout === undefined ? readPlainSubject(withFilesBeside(wished)) : readCheckout(wished, checkout);
}

type Subject = Awaited<ReturnType<typeof readSubject>>;

async function readPlainSubject(wished: TrainSettings): Promise<Subject> {
  const spec = withOption(wished.model, 'input', wished.imageSize);
  const fromFile = isZooSpec(spec) ? undefined : await readModel({ ...wished, model: spec });
  const graph = fromFile?.graph ?? zooGraph(spec);
  const takes = { picture: pictureInputOf(graph), text: textInputOf(graph) };
  const loaded = await loadDataset(wished.data, { seed: wished.seed, settings: wished, ...takes });
  const settings = { ...wished, model: withClasses(spec, loaded.train, wished.loss) };
  return fitted(settings, fromFile ?? (await readModel(settings)), takes, loaded);
}

/** A checkout is built twice: to see what it takes, and again as the data have it. */
async function readCheckout(wished: TrainSettings, spec: CheckoutSpec): Promise<Subject> {
  const { graph, task, positions } = openCheckoutModel(spec, wished.seed);
  const { length, ...text } = textInputOf(graph);
  const takes = {
    picture: pictureInputOf(graph),
    text: spec.options.sequence === undefined || length === undefined ? text : { ...text, length },
  };
  const fitting = withFilesBeside(wished, positions);
  const loaded = await loadDataset(wished.data, { seed: wished.seed, settings: fitting, ...takes });
  const settings = { ...fitting, model: checkoutForData(spec, task, loaded.train) };
  return fitted(settings, await readModel(settings), takes, loaded);
}

type Takes = Required<Pick<LoadOptions, 'picture' | 'text'>>;

async function fitted(settings: TrainSettings, model: LoadedModel, takes: Takes, loaded: Datasets): Promise<Subject> {
  const { train, test, findings = [], companions = {} } = loaded;
  const evaluation = settings.evalData === undefined ? test : await evaluationData(settings, takes, train);
  return {
    settings,
    model,
    train,
    test: evaluation,
    companions,
    notes: [...findings, ...checkClasses(model.graph, train)],
  };
}

function readModel({ model, seed, ...settings }: TrainSettings): Promise<LoadedModel> {
  const { headClasses, batchNorm, inputShape, lora, adapter, modulesToSave } = settings;
  return loadModel(model, seed, {
    ...(headClasses === undefined ? {} : { headClasses }),
    ...(batchNorm === undefined ? {} : { batchNorm }),
    inputShapes: inputShape.map(parseInputShape),
    ...(adapter === undefined ? {} : { adapter }),
    ...{ lora, modulesToSave },
  });
}

/** The data of --eval-data, whose classes have the numbers of the training data's. */
async function evaluationData(
  { evalData = '', seed, ...settings }: TrainSettings,
  takes: Takes,
  { classNames, preparation }: Dataset,
): Promise<Dataset> {
  const data = { ...settings, evalSplit: 0 };
  const known = classNames === undefined ? {} : { classNames };
  const { train, test } = await loadDataset(evalData, { seed, settings: data, ...takes, preparation, ...known });
  return test ?? train;
}

/** A plan written by hand has no prediction. */
async function readPlan(path: string): Promise<NonNullable<SessionInput['plan']>> {
  const plan = parsePlan(await readText(path), path);
  return { ...plan, predicted: plan.predicted ?? { roundMs: 0, samplesPerS: 0, peakMemoryMiB: {} } };
}

async function lastCheckpoint(folder: string, output: Output): Promise<NonNullable<SessionInput['checkpoint']>> {
  const { checkpoint, warnings } = await loadLatestCheckpoint(`${folder}/checkpoints`, { disk: nodeDisk });
  if (checkpoint === undefined) {
    const damaged = warnings.length > 0 ? ` (${warnings.length} are damaged)` : '';
    throw new InputError(`${folder} holds no whole checkpoint to resume from${damaged}: start a new run.`);
  }
  for (const message of warnings) output.observe({ kind: 'warning', message });
  return checkpoint;
}
