// Every data spec from files to samples; and every way in which files can be wrong.

import assert from 'node:assert/strict';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { gzipSync } from 'node:zlib';
import { InputError } from '../../errors.ts';
import { tensor, toNumbers } from '../../graph/tensor.ts';
import { fixtureFolder } from '../../testing/pytorch-fixtures.ts';
import { defaultDataSettings } from '../../training/data/data-settings.ts';
import { type Dataset, gather } from '../../training/data/dataset.ts';
import { writeIdx } from '../../training/data/idx.ts';
import { checkLabels } from '../../training/data/labels.ts';
import { writeNpy } from '../../training/data/npy.ts';
import { cacheFolder } from './cache-folder.ts';
import { loadDataset } from './datasets.ts';

async function inTemporaryFolder(use: (folder: string) => Promise<void>): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), 'asteroid-data-'));
  try {
    await use(folder);
  } finally {
    await rm(folder, { recursive: true });
  }
}

/** Shape of a sample, its values and its label. */
function sample(dataset: Dataset | undefined, index: number): unknown {
  assert.ok(dataset !== undefined);
  const { inputs, labels } = gather(dataset, Uint32Array.of(index));
  return [inputs[0]?.shape.slice(1), toNumbers(inputs[0] ?? labels), toNumbers(labels)];
}

const images = (values: number[]): Uint8Array => writeIdx(tensor('uint8', [values.length, 1, 1], values));
const labels = (values: number[]): Uint8Array => writeIdx(tensor('uint8', [values.length], values));

test('idx: both parts, gzipped or not; grey images get a channel', () =>
  inTemporaryFolder(async (folder) => {
    await writeFile(join(folder, 'train-images-idx3-ubyte.gz'), gzipSync(images([0, 51, 255])));
    await writeFile(join(folder, 'train-labels-idx1-ubyte'), labels([2, 0, 1]));
    await writeFile(join(folder, 't10k-images-idx3-ubyte'), images([102]));
    await writeFile(join(folder, 't10k-labels-idx1-ubyte.gz'), gzipSync(labels([1])));
    const { train, test: held } = await loadDataset(`idx:${folder}`);
    assert.deepEqual([train.sampleCount, train.classCount, held?.sampleCount], [3, 3, 1]);
    assert.deepEqual(sample(train, 1), [[1, 1, 1], [Math.fround(0.2)], [0]]);
    assert.deepEqual(sample(held, 0), [[1, 1, 1], [Math.fround(0.4)], [1]]);
    await rm(join(folder, 't10k-labels-idx1-ubyte.gz'));
    await assert.rejects(
      loadDataset(`idx:${folder}`),
      new InputError(
        `${folder} holds no t10k-labels-idx1-ubyte (nor t10k-labels-idx1-ubyte.gz); name the folder of the idx files.`,
      ),
    );
    await rm(join(folder, 't10k-images-idx3-ubyte'));
    assert.equal((await loadDataset(`idx:${folder}`)).test, undefined);
    await writeFile(join(folder, 'train-labels-idx1-ubyte'), labels([2, 0]));
    await assert.rejects(
      loadDataset(`idx:${folder}`),
      /images-idx3-ubyte.gz has 3 samples, but .*labels-idx1-ubyte has 2 labels; both need one row a sample\.$/,
    );
  }));

test('cifar10: the files of the archive, also in the folder that it unpacks to', () =>
  inTemporaryFolder(async (folder) => {
    const record = (label: number): Uint8Array => new Uint8Array(3073).fill(51).fill(label, 0, 1);
    const inner = join(folder, 'cifar-10-batches-bin');
    await mkdir(inner);
    for (let batch = 1; batch <= 5; batch++) await writeFile(join(inner, `data_batch_${batch}.bin`), record(batch));
    await writeFile(join(inner, 'test_batch.bin'), record(9));
    for (const path of [folder, inner]) {
      const { train, test: held } = await loadDataset(`cifar10:${path}`);
      assert.deepEqual([train.sampleCount, held?.sampleCount], [5, 1]);
      assert.deepEqual(sample(train, 4), [[3, 32, 32], new Array(3072).fill(Math.fround(0.2)), [5]]);
    }
    await assert.rejects(loadDataset(`cifar10:${tmpdir()}/none`), InputError);
    await writeFile(join(inner, 'data_batch_2.bin'), new Uint8Array(3000));
    await assert.rejects(loadDataset(`cifar10:${folder}`), /data_batch_2.bin is not a valid CIFAR-10 file/);
    await rm(inner, { recursive: true });
    await assert.rejects(
      loadDataset(`cifar10:${folder}`),
      new InputError(`${folder} holds no data_batch_1.bin; unpack CIFAR-10's binary version there.`),
    );
  }));

test('npy, npz, csv and tokens', () =>
  inTemporaryFolder(async (folder) => {
    await writeFile(join(folder, 'x.npy'), writeNpy(tensor('float64', [2, 2], [1, 2, 3, 4])));
    await writeFile(join(folder, 'y.npy'), writeNpy(tensor('int32', [2], [5, 6])));
    assert.deepEqual(sample((await loadDataset(`npy:${folder}/x.npy,${folder}/y.npy`)).train, 1), [[2], [3, 4], [6]]);
    assert.deepEqual(sample((await loadDataset(`npz:${fixtureFolder('npy')}/deflated.npz`)).test, 1), [
      [4],
      [104, 105, 106, 107],
      [2],
    ]);
    const settings = { ...defaultDataSettings, standardize: false };
    await writeFile(join(folder, 't.csv'), 'kind,a\n1,0.5\n0,0.25\n');
    assert.deepEqual(sample((await loadDataset(`csv:${folder}/t.csv,kind`, { settings })).train, 0), [[1], [0.5], [1]]);
    await writeFile(join(folder, 't.csv.gz'), gzipSync('0.5,1\n'));
    assert.deepEqual(sample((await loadDataset(`csv:${folder}/t.csv.gz`, { settings })).train, 0), [[1], [0.5], [1]]);
    await writeFile(join(folder, 't.txt'), 'abcdefghij');
    assert.deepEqual(sample((await loadDataset(`tokens:${folder}/t.txt,3`)).train, 1), [
      [3],
      [100, 101, 102],
      [101, 102, 103],
    ]);
  }));

test('test data are set apart where asked for and where there are none', () =>
  inTemporaryFolder(async (folder) => {
    await writeFile(join(folder, 't.csv'), Array.from({ length: 10 }, (_, row) => `${row},0\n`).join(''));
    assert.equal((await loadDataset(`csv:${folder}/t.csv`)).test, undefined);
    const { train, test: held } = await loadDataset(`csv:${folder}/t.csv`, {
      settings: { ...defaultDataSettings, evalSplit: 0.3 },
      seed: 5,
    });
    assert.deepEqual([train.sampleCount, held?.sampleCount], [7, 3]);
    const own = await loadDataset('synthetic:2:3:40', {
      settings: { ...defaultDataSettings, evalSplit: 0.5 },
    });
    assert.deepEqual([own.train.sampleCount, own.test?.sampleCount], [40, 10]);
    assert.notDeepEqual(
      sample((await loadDataset('synthetic:2', { seed: 1 })).train, 0),
      sample((await loadDataset('synthetic:2', { seed: 2 })).train, 0),
    );
  }));

test('a missing or damaged file, a folder, and images are one clear error each', () =>
  inTemporaryFolder(async (folder) => {
    const path = `${folder}/x.npz`;
    const message = (spec: string): Promise<string> =>
      loadDataset(spec).then(
        () => 'loaded',
        (error: Error) => `${error.name}: ${error.message}`,
      );
    assert.equal(
      await message(`npz:${path}`),
      `InputError: ${path} cannot be read: there is no such file or folder; check the path and its permissions.`,
    );
    assert.equal(
      await message(`csv:${folder}`),
      `InputError: ${folder} cannot be read: it is a folder, not a file; check the path and its permissions.`,
    );
    assert.equal(
      await message(`idx:${path}`),
      `InputError: ${path} cannot be read: there is no such file or folder; check the path and its permissions.`,
    );
    await writeFile(path, (await readFile(join(fixtureFolder('npy'), 'stored.npz'))).subarray(0, 300));
    assert.equal(
      await message(`npz:${path}`),
      `InputError: ${path} is not a valid zip file: at byte 300 the directory is missing (is the file cut off?); ` +
        'write or download it again.',
    );
    assert.match(
      await message('mnst'),
      /^InputError: The data spec "mnst" cannot be read: its kind is unknown; valid are mnist, /,
    );
  }));

test('mnist: 8,500 and 1,500 real digits, each in proportion', async () => {
  const { train, test: held } = await loadDataset('mnist');
  assert.ok(held !== undefined);
  assert.deepEqual([train.name, train.sampleCount, held.sampleCount, train.classCount], ['mnist', 8500, 1500, 10]);
  assert.deepEqual(train.inputs[0]?.values.shape, [8500, 1, 28, 28]);
  checkLabels(train, 10);
  const countsOf = (dataset: Dataset): number[] =>
    Array.from(
      { length: 10 },
      (_, digit) => toNumbers(dataset.labels.values).filter((label) => label === digit).length,
    );
  assert.deepEqual(countsOf(held), [150, 169, 149, 155, 147, 129, 152, 160, 142, 147]);
  countsOf(train).forEach((count, digit) => {
    const share = (countsOf(held)[digit] ?? 0) / (count + (countsOf(held)[digit] ?? 0));
    assert.ok(Math.abs(share - 0.15) < 0.001, `digit ${digit}: ${share}`);
  });
});

test('the cache folder follows the environment', () => {
  assert.equal(cacheFolder({ ASTEROID_CACHE: '/a', XDG_CACHE_HOME: '/x' }), '/a');
  assert.equal(cacheFolder({ ASTEROID_CACHE: '', XDG_CACHE_HOME: '/x' }), join('/x', 'asteroid'));
  assert.ok(cacheFolder({}).endsWith(join('.cache', 'asteroid')));
});
