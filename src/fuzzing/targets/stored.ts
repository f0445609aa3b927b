// The files of a run's folder: checkpoints, logs, settings, on a disk in memory.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { isDeepStrictEqual } from 'node:util';
import { panels } from '../../cli/curve/chart.ts';
import { curveSvg } from '../../cli/curve/svg-chart.ts';
import { drawPanel } from '../../cli/curve/terminal-chart.ts';
import { InputError } from '../../errors.ts';
import type { Random } from '../../random.ts';
import { modelSettings } from '../../runtime/host/trained.ts';
import { readLearningCurve } from '../../runtime/run/learning-curve.ts';
import { type Checkpoint, loadLatestCheckpoint, saveCheckpoint } from '../../storage/checkpoints.ts';
import { coded, type Disk } from '../../storage/disk.ts';
import { createMemoryDisk } from '../../storage/memory-disk.ts';
import { damagedBytes, damagedDocument, damagedText, damagedValue, oneOf, randomBytes } from '../inputs.ts';
import type { Target } from '../target.ts';
import { sameTensors, sampleTensors } from './weights.ts';

const folder = '/run/checkpoints';
const encoder = new TextEncoder();
const decoder = new TextDecoder();

type Files = ReadonlyMap<string, Uint8Array>;

/** A disk with these files, for reading. */
function diskOf(files: Files): Disk {
  const read = async (path: string): Promise<Uint8Array> => {
    const bytes = files.get(path);
    if (bytes === undefined) throw coded('ENOENT');
    return bytes;
  };
  const list = async (path: string): Promise<string[]> =>
    [...files.keys()].filter((name) => name.startsWith(`${path}/`)).map((name) => name.slice(path.length + 1));
  const refuse = (): never => assert.fail('reading writes nothing');
  return {
    read,
    list,
    create: refuse,
    append: refuse,
    rename: refuse,
    remove: refuse,
    makeFolder: refuse,
    syncFolder: refuse,
  };
}

const checkpoints = [2, 5].map(
  (round): Checkpoint => ({
    round,
    parameters: new Map([...sampleTensors].slice(0, 2)),
    buffers: new Map([['bn.mean', sampleTensors.get('conv.bias') as never]]),
    optimizerState: new Map([['conv.bias/momentum', sampleTensors.get('conv.bias') as never]]),
    state: { seed: 7, epoch: round, losses: [0.5, 0.25] },
  }),
);

async function checkpointFiles(): Promise<Files> {
  const disk = createMemoryDisk({}, [folder]);
  for (const checkpoint of checkpoints) await saveCheckpoint(folder, checkpoint, { disk });
  const files = new Map<string, Uint8Array>();
  for (const name of await disk.list(folder)) files.set(`${folder}/${name}`, await disk.read(`${folder}/${name}`));
  return files;
}

function hashOf(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}

/** The first line of a checkpoint's JSON file, with the hash of the rest, and the rest. */
function withHash(rest: string): Uint8Array {
  return encoder.encode(`{"sha256":"${hashOf(encoder.encode(rest))}",\n${rest}`);
}

/** A JSON file with other content and the right hash. */
function damagedState(bytes: Uint8Array, random: Random): Uint8Array {
  const text = decoder.decode(bytes);
  const rest = text.slice(text.indexOf('\n') + 1);
  if (random.integer(4) === 0) return withHash(damagedText(rest, random));
  return withHash(`${JSON.stringify(damagedValue(JSON.parse(`{${rest}`), random)).slice(1)}\n`);
}

/** Other tensors with right hashes and lengths, as a person may have put together. */
function damagedTensors(files: Map<string, Uint8Array>, jsonPath: string, random: Random): void {
  const text = decoder.decode(files.get(jsonPath));
  const state = JSON.parse(`{${text.slice(text.indexOf('\n') + 1)}`) as {
    tensors: { file: string; bytes: number; sha256: string };
  };
  const path = `${folder}/${state.tensors.file}`;
  const bytes = damagedBytes([files.get(path) as Uint8Array], random);
  files.set(path, bytes);
  const tensors = { ...state.tensors, bytes: bytes.length, sha256: hashOf(bytes) };
  files.set(jsonPath, withHash(`${JSON.stringify({ ...state, tensors }).slice(1)}\n`));
}

function isJson(path: string): boolean {
  return path.endsWith('.json');
}

/** Changes one file: it is deleted, or its bytes, its name or its content change. */
function damageOne(files: Map<string, Uint8Array>, originals: Files, random: Random): void {
  const paths = [...originals.keys()];
  const path = oneOf(paths, random);
  const bytes = files.get(path) ?? new Uint8Array();
  switch (random.integer(6)) {
    case 0:
      files.delete(path);
      return;
    case 1:
      files.set(path, randomBytes(random));
      return;
    case 2:
      files.set(path, damagedBytes([bytes], random));
      return;
    case 3:
      files.set(path.replace(/\d/, String(random.integer(10))), bytes);
      return;
    case 4: {
      const jsonPath = paths.filter(isJson).find((name) => files.get(name) === originals.get(name));
      if (jsonPath !== undefined) damagedTensors(files, jsonPath, random);
      return;
    }
    default:
      if (isJson(path) && bytes.length > 0) files.set(path, damagedState(originals.get(path) as Uint8Array, random));
  }
}

/** A damaged checkpoint is skipped with a warning; a loaded one can be saved and loaded again. */
export async function checkpointTarget(): Promise<Target<Files>> {
  const originals = await checkpointFiles();
  return {
    input(random) {
      const files = new Map(originals);
      for (let change = random.integer(2); change >= 0; change--) damageOne(files, originals, random);
      return files;
    },
    async take(files) {
      const { checkpoint, path, warnings } = await loadLatestCheckpoint(folder, { disk: diskOf(files) });
      for (const warning of warnings) assert.match(warning, /^The checkpoint [^\n]+\.$/);
      if (checkpoint === undefined) throw new InputError(`No checkpoint is whole: ${warnings.join(' ')}`);
      assert.ok(path !== undefined && files.has(path));
      const disk = createMemoryDisk({}, [folder]);
      await saveCheckpoint(folder, checkpoint, { disk });
      const again = (await loadLatestCheckpoint(folder, { disk })).checkpoint;
      assert.ok(
        again !== undefined && again.round === checkpoint.round && isDeepStrictEqual(again.state, checkpoint.state),
        'another state',
      );
      for (const key of ['parameters', 'buffers', 'optimizerState'] as const)
        assert.ok(sameTensors(again[key], checkpoint[key]), `other ${key}`);
    },
  };
}

const metrics = [0, 1, 2, 3].map((round) => ({
  round,
  epoch: 0,
  loss: 1 / (round + 1),
  accuracy: 0.5,
  samplesPerS: 100,
  lr: 0.1,
}));
const events = [
  { event: 'joined', device: 'kitchen', atMs: 5 },
  { event: 'training', roundsPerEpoch: 2 },
  { event: 'evaluated', round: 2, loss: 0.5, accuracy: 0.75 },
  { event: 'left', device: 'kitchen', reason: 'drained' },
];

function damagedLines(lines: readonly object[], random: Random): string {
  const damaged = lines.map((line) =>
    random.integer(3) === 0 ? JSON.stringify(damagedValue(line, random)) : JSON.stringify(line),
  );
  const text = `${damaged.join('\n')}\n`;
  return random.integer(3) === 0 ? damagedText(text, random) : text;
}

interface LogInput {
  readonly metrics: string;
  readonly events: string;
}

/** The curve of a run can be drawn from the lines that are whole. */
export function logTarget(): Target<LogInput> {
  return {
    input: (random) => ({ metrics: damagedLines(metrics, random), events: damagedLines(events, random) }),
    async take(input) {
      const files = new Map([
        ['/run/metrics.jsonl', encoder.encode(input.metrics)],
        ['/run/events.jsonl', encoder.encode(input.events)],
      ]);
      const curve = await readLearningCurve('/run', diskOf(files));
      assert.ok(!curveSvg(curve).includes('NaN'), 'a picture with NaN in it');
      const same = (text: string): string => text;
      for (const panel of panels(curve)) drawPanel(panel, { columns: 40, rows: 6, train: same, test: same });
    },
  };
}

const configs = [
  { model: 'digits', data: 'mnist', batch: 32, seed: 7 },
  { model: 'net.onnx', seed: 3, 'head-classes': 5 },
];

/** The model in a finished run's settings. */
export function runSettingsTarget(): Target<string> {
  return {
    input: (random) => damagedDocument(configs, random),
    take(text) {
      const { model, seed } = modelSettings(text, '/run/config.yaml');
      assert.ok(typeof model === 'string' && typeof seed === 'number');
    },
  };
}
