// The trained model of a run, from its folder: its settings name the model, its last whole checkpoint holds the
// weights.

import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { readDocument } from '../../cluster/document.ts';
import { InputError } from '../../errors.ts';
import { parseInputShape } from '../../graph/onnx/input-shapes.ts';
import type { Tensor } from '../../graph/tensor.ts';
import { loadLatestCheckpoint } from '../../storage/checkpoints.ts';
import { nodeDisk } from '../../storage/node/disk.ts';
import { averagedParameters } from '../protocol/run-state.ts';
import type { LoadedModel } from '../run/loaded-model.ts';
import { loadModel } from './models.ts';

/** A run's model as it began, and what its last checkpoint holds of it. */
export interface TrainedRun {
  readonly model: LoadedModel;
  readonly settings: ModelSettings;
  /** Parameters that were trained, and buffers. */
  readonly values: ReadonlyMap<string, Tensor>;
  /** Rounds that it has done. */
  readonly round: number;
}

/** The ONNX bytes, for inference, of a run's last checkpoint, and the rounds that it has done. Throws InputError. */
export async function modelOfRun(
  folder: string,
  onWarning: (warning: string) => void = () => {},
): Promise<{ bytes: Uint8Array; round: number }> {
  const { model, values, round } = await trainedRun(folder, onWarning);
  return { bytes: model.write(values, await readEntries(folder)), round };
}

/** A run's last checkpoint. Throws InputError. */
export async function trainedRun(folder: string, onWarning: (warning: string) => void = () => {}): Promise<TrainedRun> {
  const settings = await readSettings(folder);
  const { model, seed, inputShape = [], ...head } = settings;
  const { checkpoint, warnings } = await loadLatestCheckpoint(join(folder, 'checkpoints'), { disk: nodeDisk });
  warnings.forEach(onWarning);
  if (checkpoint === undefined)
    throw new InputError(`${folder} holds no whole checkpoint: the run was stopped before its first one.`);
  const loaded = await loadModel(model, seed, { ...head, inputShapes: inputShape.map(parseInputShape) });
  const values = new Map([
    ...averagedParameters(checkpoint.parameters, checkpoint.optimizerState),
    ...checkpoint.buffers,
  ]);
  return { model: loaded, settings, values, round: checkpoint.round };
}

const entriesSchema = z.record(z.string(), z.string());

/** The metadata of the run's model, as data.json holds them; none for data without names or preparation. */
async function readEntries(folder: string): Promise<ReadonlyMap<string, string>> {
  const path = join(folder, 'data.json');
  const text = await readFile(path, 'utf8').catch(() => undefined);
  if (text === undefined) return new Map();
  try {
    return new Map(Object.entries(entriesSchema.parse(JSON.parse(text))));
  } catch {
    throw new InputError(`${path} is damaged: remove it, and give what it said (--loss) by flags.`);
  }
}

/** What a run's settings say of its model. */
export interface ModelSettings {
  readonly model: string;
  readonly seed: number;
  readonly headClasses?: number;
  readonly inputShape?: readonly string[];
  readonly lora?: readonly string[];
  readonly modulesToSave?: readonly string[];
  readonly adapter?: string;
}

async function readSettings(folder: string): Promise<ModelSettings> {
  const path = join(folder, 'config.yaml');
  try {
    return modelSettings(await readFile(path, 'utf8'), path);
  } catch (error) {
    if (error instanceof InputError) throw error;
    throw new InputError(
      `${folder} is not the folder of a run (it has no config.yaml): name the folder that --out or the run's ` +
        'last lines named.',
    );
  }
}

/** The model in the text of a run's config.yaml, which lies at `path`. Throws InputError. */
export function modelSettings(text: string, path: string): ModelSettings {
  const settings = readDocument(text, path);
  if (
    typeof settings !== 'object' ||
    settings === null ||
    !('model' in settings) ||
    typeof settings.model !== 'string'
  ) {
    throw new InputError(`${path} does not name the model of the run.`);
  }
  const seed = 'seed' in settings && typeof settings.seed === 'number' ? settings.seed : 0;
  const head =
    'head-classes' in settings && typeof settings['head-classes'] === 'number'
      ? { headClasses: settings['head-classes'] }
      : {};
  const fields: Readonly<Record<string, unknown>> = { ...settings };
  const texts = (key: string): readonly string[] => {
    const values = fields[key];
    return Array.isArray(values) ? values.filter((value) => typeof value === 'string') : [];
  };
  const [inputShape, lora, modulesToSave] = [texts('input-shape'), texts('lora'), texts('modules-to-save')];
  const { adapter } = fields;
  return {
    ...{ model: settings.model, seed, ...head },
    ...(inputShape.length > 0 ? { inputShape } : {}),
    ...(lora.length > 0 ? { lora } : {}),
    ...(modulesToSave.length > 0 ? { modulesToSave } : {}),
    ...(typeof adapter === 'string' ? { adapter } : {}),
  };
}
