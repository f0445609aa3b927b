// The trained model of a run, from its folder: its settings name the model, its last whole checkpoint holds the weights.

import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parse as parseYaml } from 'yaml';
import { InputError } from '../errors.ts';
import { loadLatestCheckpoint } from '../storage/checkpoints.ts';
import { loadModel } from './models.ts';

/** The ONNX bytes, for inference, of a run's last checkpoint, and the rounds that it has done. Throws InputError. */
export async function modelOfRun(
  folder: string,
  onWarning: (warning: string) => void = () => {},
): Promise<{ bytes: Uint8Array; round: number }> {
  const { model, seed, ...head } = await readSettings(folder);
  const { checkpoint, warnings } = await loadLatestCheckpoint(join(folder, 'checkpoints'));
  warnings.forEach(onWarning);
  if (checkpoint === undefined) throw new InputError(`${folder} holds no whole checkpoint: the run was stopped before its first one.`);
  const loaded = await loadModel(model, seed, head);
  return { bytes: loaded.write(new Map([...checkpoint.parameters, ...checkpoint.buffers])), round: checkpoint.round };
}

async function readSettings(folder: string): Promise<{ model: string; seed: number; headClasses?: number }> {
  let text: string;
  try {
    text = await readFile(join(folder, 'config.yaml'), 'utf8');
  } catch {
    throw new InputError(
      `${folder} is not the folder of a run (it has no config.yaml): name the folder that --out or the run's last lines named.`,
    );
  }
  const settings: unknown = parseYaml(text);
  if (typeof settings !== 'object' || settings === null || !('model' in settings) || typeof settings.model !== 'string') {
    throw new InputError(`${join(folder, 'config.yaml')} does not name the model of the run.`);
  }
  const seed = 'seed' in settings && typeof settings.seed === 'number' ? settings.seed : 0;
  const head = 'head-classes' in settings && typeof settings['head-classes'] === 'number' ? { headClasses: settings['head-classes'] } : {};
  return { model: settings.model, seed, ...head };
}
