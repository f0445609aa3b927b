// Folders of pictures as data sets: what is found, and that samples are the same however many threads read them.

import assert from 'node:assert/strict';
import { rmSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { toNumbers } from '../../../graph/tensor.ts';
import { temporaryFolder } from '../../../testing/command.ts';
import { writePictures } from '../../../testing/picture-folders.ts';
import { batchOf } from '../../../training/data/batch.ts';
import { type DataSettings, defaultDataSettings } from '../../../training/data/data-settings.ts';
import type { Dataset } from '../../../training/data/dataset.ts';
import { loadDataset } from '../datasets.ts';

const root = temporaryFolder();
const folder = join(root, 'pictures');
after(() => rmSync(root, { recursive: true, force: true }));
const classes = ['blue', 'green', 'red'];
await writePictures(folder, classes, 6);

function load(path: string, settings: Partial<DataSettings> = {}): ReturnType<typeof loadDataset> {
  return loadDataset(`images:${path}`, { seed: 3, settings: { ...defaultDataSettings, imageSize: 16, ...settings } });
}

function labelsOf({ labels, rows }: Dataset): number[] {
  const all = toNumbers(labels.values);
  return rows === undefined ? all : [...rows].map((row) => all[row] as number);
}

test('classes are the folders, sorted; a part for testing has its share of each', async () => {
  const { train, test: held } = await load(folder, { evalSplit: 1 / 3 });
  assert.deepEqual(train.classNames, classes);
  assert.deepEqual([train.sampleCount, held?.sampleCount], [12, 6]);
  assert.deepEqual(train.inputs[0]?.values.shape, [18, 3, 16, 16]);
  assert.deepEqual(labelsOf(train), [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
  assert.deepEqual(held && labelsOf(held), [0, 0, 1, 1, 2, 2]);
});

test('folders train and val are the parts, with the class numbers of train', async () => {
  const parts = join(root, 'parts');
  await writePictures(join(parts, 'train'), classes, 2);
  await writePictures(join(parts, 'val'), ['green', 'red'], 1);
  const { train, test: held } = await load(parts);
  assert.deepEqual([train.sampleCount, held?.sampleCount, held && labelsOf(held)], [6, 2, [1, 2]]);
  await writePictures(join(parts, 'val'), ['white'], 1);
  await assert.rejects(
    load(parts),
    /InputError: \S+white is a class that the training pictures do not have; these are blue/,
  );
});

test('a table lists files beside it with their labels: classes by name, or numbers', async () => {
  await writeFile(join(root, 'list.csv'), 'file_name,label\npictures/red/0.png,warm\npictures/blue/1.jpg,cold\n');
  const { train } = await load(join(root, 'list.csv'));
  assert.deepEqual([train.classNames, labelsOf(train), train.sampleCount], [['cold', 'warm'], [1, 0], 2]);
  await writeFile(join(root, 'list.jsonl'), '{"image":"pictures/red/0.png","degrees":1.5}\n');
  const numbers = await load(join(root, 'list.jsonl'), { label: 'degrees' });
  assert.deepEqual([numbers.train.labels.values.shape, labelsOf(numbers.train)], [[1, 1], [1.5]]);
  await assert.rejects(load(join(root, 'list.jsonl')), /list\.jsonl has no column of labels, such as label; name one/);
});

test('samples are functions of seed, epoch and index, not of threads and cache; tests are not augmented', async () => {
  const augment = 'random-resized-crop,flip,trivial-augment,color-jitter';
  const indices = Uint32Array.of(4, 17, 4);
  const read = async (settings: Partial<DataSettings>, epoch?: number): Promise<readonly number[]> => {
    const { train } = await load(folder, { augment, ...settings });
    const place = epoch === undefined ? undefined : { round: 0, epoch };
    // Twice, so that a cache is used where there is one.
    await batchOf(train, indices, place);
    return toNumbers((await batchOf(train, indices, place)).inputs[0] ?? assert.fail());
  };
  const first = await read({ dataThreads: 1, dataCache: 0 }, 0);
  const size = first.length / 3;
  assert.deepEqual(first.slice(2 * size), first.slice(0, size));
  assert.deepEqual(await read({ dataThreads: 3, dataCache: 64 }, 0), first);
  assert.notDeepEqual(await read({ dataThreads: 3, dataCache: 64 }, 1), first);
  assert.deepEqual(await read({}), await read({ augment: 'flip' }));
});

test('a damaged file is refused or skipped, at the start or, damaged in its middle, when it is decoded', async () => {
  const damaged = join(root, 'damaged');
  await writePictures(damaged, classes, 3);
  const bytes = await readFile(join(damaged, 'red', '1.jpg'));
  await writeFile(join(damaged, 'red', '1.jpg'), bytes.subarray(0, bytes.length - 40));
  await assert.rejects(
    load(damaged),
    /InputError: \S+1\.jpg cannot be used: it is a JPEG file that is cut off; replace/,
  );
  const skipped = await load(damaged, { onBadFile: 'skip' });
  assert.deepEqual([skipped.train.sampleCount, labelsOf(skipped.train)], [8, [0, 0, 0, 1, 1, 1, 2, 2]]);
  assert.match(skipped.findings?.[0] ?? '', /1\.jpg was left out/);
  const png = await readFile(join(damaged, 'red', '0.png'));
  png.fill(0, png.length - 300, png.length - 100);
  await writeFile(join(damaged, 'red', '0.png'), png);
  const whole = await load(damaged, { onBadFile: 'skip' });
  const [instead, next] = [Uint32Array.of(6), Uint32Array.of(7)];
  assert.deepEqual((await batchOf(whole.train, instead)).inputs, (await batchOf(whole.train, next)).inputs);
});
