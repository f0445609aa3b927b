// Reads all that a run needs from its files, before anything is written. A file that is missing or does not fit is one
// clear error.

import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { parseCluster, parsePlan } from '../cluster/validate.ts';
import { InputError } from '../errors.ts';
import { parseInputShape } from '../graph/onnx/input-shapes.ts';
import { loadModel } from '../runtime/host/models.ts';
import { prepareRun } from '../runtime/host/session-here.ts';
import type { PreparedRun, SessionInput } from '../runtime/run/prepare.ts';
import type { TrainSettings } from '../runtime/run/settings.ts';
import { loadLatestCheckpoint } from '../storage/checkpoints.ts';
import { loadDataset } from '../storage/node/datasets.ts';
import { nodeDisk } from '../storage/node/disk.ts';
import type { Dataset } from '../training/data/dataset.ts';
import { readText } from './files.ts';
import type { Output } from './output.ts';

/** A run from its settings; `resume` is the folder of the run to resume. */
export async function readRun(
  settings: TrainSettings,
  resume: string | undefined,
  output: Output,
): Promise<PreparedRun> {
  const { headClasses, batchNorm } = settings;
  const model = await loadModel(settings.model, settings.seed, {
    ...(headClasses === undefined ? {} : { headClasses }),
    ...(batchNorm === undefined ? {} : { batchNorm }),
    inputShapes: settings.inputShape.map(parseInputShape),
  });
  const { train, test } = await loadDataset(settings.data, { seed: settings.seed });
  const evaluation = settings.evalData === undefined ? test : await evaluationData(settings.evalData, settings.seed);
  const plan = settings.plan === undefined ? undefined : await readPlan(settings.plan);
  const cluster =
    settings.cluster === undefined ? undefined : parseCluster(await readText(settings.cluster), settings.cluster);
  const checkpoint = resume === undefined ? undefined : await lastCheckpoint(resume, output);
  const run = prepareRun({
    settings,
    model,
    train,
    test: evaluation,
    ...(plan === undefined ? {} : { plan }),
    ...(cluster === undefined ? {} : { cluster }),
    ...(checkpoint === undefined ? {} : { checkpoint }),
    ...(resume === undefined ? {} : { isUnwritten: !existsSync(join(resume, 'model.onnx')) }),
  });
  for (const message of run.notes) output.observe({ kind: 'note', message });
  return run;
}

async function evaluationData(spec: string, seed: number): Promise<Dataset> {
  const { train, test } = await loadDataset(spec, { seed });
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
