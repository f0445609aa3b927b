// Data sets: files as `--data` names them, read from a disk in memory as a run reads them.

import assert from 'node:assert/strict';
import { isDeepStrictEqual } from 'node:util';
import { deflateRawSync, gzipSync } from 'node:zlib';
import { crc32 } from '../../checksum.ts';
import { type Tensor, tensor } from '../../graph/tensor.ts';
import type { Random } from '../../random.ts';
import { coded, type Disk } from '../../storage/disk.ts';
import { loadDataset } from '../../storage/node/datasets.ts';
import { type Dataset, gather } from '../../training/data/dataset.ts';
import { readIdx, writeIdx } from '../../training/data/idx.ts';
import { readNpy, writeNpy } from '../../training/data/npy.ts';
import { parseDataSpec } from '../../training/data/spec.ts';
import { damagedBytes, damagedText, oneOf } from '../inputs.ts';
import type { Target } from '../target.ts';

/** A data spec, and the files that it names. */
interface DataInput {
  readonly spec: string;
  readonly files: Readonly<Record<string, Uint8Array>>;
}

function diskOf(files: DataInput['files']): Disk {
  const refuse = (): never => assert.fail('reading writes nothing');
  return {
    read: async (path) => {
      const bytes = files[path];
      if (bytes === undefined) throw coded('ENOENT');
      return bytes;
    },
    list: async () => Object.keys(files).map((path) => path.slice(path.lastIndexOf('/') + 1)),
    create: refuse,
    append: refuse,
    rename: refuse,
    remove: refuse,
    makeFolder: refuse,
    syncFolder: refuse,
  };
}

/** Loaded data give their samples. */
function use({ sampleCount, ...rest }: Dataset): void {
  const dataset = { sampleCount, ...rest };
  const batch = gather(dataset, Uint32Array.of(0, sampleCount - 1));
  for (const value of [...batch.inputs, batch.labels]) assert.equal(value.shape[0], 2);
}

/** Data of a spec with one of its files damaged; `check` looks at that file besides. */
function dataTarget(
  originals: readonly DataInput[],
  options: { readonly isText?: boolean; readonly check?: (bytes: Uint8Array) => void } = {},
): Target<DataInput> {
  const { isText = false, check = () => {} } = options;
  return {
    input(random: Random) {
      const { spec, files } = oneOf(originals, random);
      const path = oneOf(Object.keys(files), random);
      const bytes = files[path] as Uint8Array;
      const damaged =
        isText && random.integer(2) === 0
          ? new TextEncoder().encode(damagedText(new TextDecoder().decode(bytes), random))
          : damagedBytes([bytes], random);
      return { spec, files: { ...files, [path]: damaged } };
    },
    async take({ spec, files }) {
      const { train, test } = await loadDataset(spec, { disk: diskOf(files) });
      use(train);
      if (test !== undefined) use(test);
      for (const bytes of Object.values(files)) check(bytes);
    },
  };
}

const images = tensor('uint8', [3, 2, 2], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
const labels = tensor('uint8', [3], [0, 2, 1]);

/** idx files, gzipped ones among them. */
export function idxTarget(): Target<DataInput> {
  const [imageBytes, labelBytes] = [writeIdx(images), writeIdx(labels)];
  const plain = { '/d/train-images-idx3-ubyte': imageBytes, '/d/train-labels-idx1-ubyte': labelBytes };
  const zipped = {
    '/d/train-images-idx3-ubyte.gz': plainBytes(gzipSync(imageBytes)),
    '/d/train-labels-idx1-ubyte': labelBytes,
  };
  const wide = { ...plain, '/d/train-images-idx3-ubyte': writeIdx(tensor('float32', [3, 2], [1, 2, 3, 4, 5, 6])) };
  return dataTarget(
    [
      plain,
      zipped,
      { ...plain, '/d/t10k-images-idx3-ubyte': imageBytes, '/d/t10k-labels-idx1-ubyte': labelBytes },
      wide,
    ].map((files) => ({
      spec: 'idx:/d',
      files,
    })),
    {
      check: (bytes) => {
        if (bytes[0] === 0)
          sameAgain(readIdx({ name: 'x', bytes }), (value) => readIdx({ name: 'x', bytes: writeIdx(value) }));
      },
    },
  );
}

function plainBytes(bytes: Uint8Array): Uint8Array {
  return Uint8Array.from(bytes);
}

function sameAgain(value: Tensor, again: (value: Tensor) => Tensor): void {
  assert.ok(isDeepStrictEqual(again(value), value), 'an array that was written again is another');
}

/** CSV tables. */
export function csvTarget(): Target<DataInput> {
  const table = (text: string): Readonly<Record<string, Uint8Array>> => ({ '/t.csv': new TextEncoder().encode(text) });
  return dataTarget(
    [
      { spec: 'csv:/t.csv', files: table('1,2.5,0\n-3,4e2,1\n.5,6,2\n') },
      { spec: 'csv:/t.csv,kind', files: table('kind;"b ""c""";d\r\n1;"-0.5";0\r\n2000;.25;2\r\n') },
      { spec: 'csv:/t.csv', files: table('a\tb\tlabel\n1\t2\t0.5\n3\t4\t-1.5\n') },
    ],
    { isText: true },
  );
}

/** An array in the other order of axes and bytes, as NumPy writes those too. */
function foreignNpy(): Uint8Array {
  const bytes = writeNpy(tensor('float64', [3, 2], [1, 2, 3, 4, 5, 6]));
  const text = new TextDecoder('latin1').decode(bytes).replace("'<f8'", "'>f8'").replace('False', 'True ');
  return Uint8Array.from(text, (character) => character.charCodeAt(0));
}

/** NumPy's arrays, and tokens in one. */
export function npyTarget(): Target<DataInput> {
  const y = writeNpy(tensor('int64', [3], [0, 1, 2]));
  const row = writeNpy(tensor('uint16', [9], [5, 600, 7, 8, 9, 10, 11, 12, 13]));
  return dataTarget(
    [
      {
        spec: 'npy:/x.npy,/y.npy',
        files: { '/x.npy': writeNpy(tensor('float32', [3, 2], [1, 2, 3, 4, 5, 6])), '/y.npy': y },
      },
      { spec: 'npy:/x.npy,/y.npy', files: { '/x.npy': foreignNpy(), '/y.npy': y } },
      { spec: 'tokens:/x.npy,2', files: { '/x.npy': row } },
      { spec: 'tokens:/x.txt,3', files: { '/x.txt': new TextEncoder().encode('the quick brown fox') } },
    ],
    {
      check: (bytes) => {
        if (bytes[0] === 0x93)
          sameAgain(readNpy({ name: 'x', bytes }), (value) => readNpy({ name: 'x', bytes: writeNpy(value) }));
      },
    },
  );
}

/** A zip archive. */
function zip(entries: Readonly<Record<string, Uint8Array>>, isPacked: boolean): Uint8Array {
  const [parts, directory]: [Buffer[], Buffer[]] = [[], []];
  let offset = 0;
  for (const [name, bytes] of Object.entries(entries)) {
    const packed = isPacked ? deflateRawSync(bytes) : Buffer.from(bytes);
    const common = Buffer.alloc(26);
    common.writeUInt16LE(20, 0);
    common.writeUInt16LE(isPacked ? 8 : 0, 4);
    common.writeUInt32LE(crc32(bytes), 10);
    common.writeUInt32LE(packed.length, 14);
    common.writeUInt32LE(bytes.length, 18);
    common.writeUInt16LE(name.length, 22);
    parts.push(Buffer.from('PK\x03\x04', 'latin1'), common, Buffer.from(name), packed);
    const rest = Buffer.alloc(14);
    rest.writeUInt32LE(offset, 10);
    directory.push(Buffer.from('PK\x01\x02\x14\x00', 'latin1'), common, rest, Buffer.from(name));
    offset += 30 + name.length + packed.length;
  }
  const central = Buffer.concat(directory);
  const end = Buffer.alloc(22);
  end.write('PK\x05\x06', 'latin1');
  end.writeUInt16LE(Object.keys(entries).length, 8);
  end.writeUInt16LE(Object.keys(entries).length, 10);
  end.writeUInt32LE(central.length, 12);
  end.writeUInt32LE(offset, 16);
  return Uint8Array.from(Buffer.concat([...parts, central, end]));
}

/** NumPy's archives, stored and deflated. */
export function npzTarget(): Target<DataInput> {
  const x = writeNpy(tensor('float32', [3, 2], [1, 2, 3, 4, 5, 6]));
  const y = writeNpy(tensor('uint8', [3], [0, 1, 2]));
  const archives = [
    zip({ 'x.npy': x, 'y.npy': y }, false),
    zip({ 'x_train.npy': x, 'y_train.npy': y, 'x_test.npy': x, 'y_test.npy': y }, true),
    zip({ 'arr_0.npy': x, 'arr_1.npy': y }, true),
  ];
  return dataTarget(archives.map((bytes) => ({ spec: 'npz:/d.npz', files: { '/d.npz': bytes } })));
}

/** CIFAR-10's binary files. */
export function cifarTarget(): Target<DataInput> {
  const record = (label: number): number[] => [label, ...new Array(3072).fill(label * 20)];
  const batch = Uint8Array.from([...record(1), ...record(9)]);
  return dataTarget([
    { spec: 'cifar10:/c', files: { '/c/data_batch_1.bin': batch, '/c/test_batch.bin': batch.slice(0, 3073) } },
  ]);
}

const specs: readonly string[] = [
  'mnist',
  'cifar10:DIR',
  'npy:A,B',
  'csv:FILE,LABEL',
  'tokens:FILE,12',
  'npz:FILE',
  'synthetic:3x32x32:10:64',
  'synthetic-tokens:8:100:2:16',
];

/** Values of `--data`. */
export function dataSpecTarget(): Target<string> {
  return {
    input: (random) => (random.integer(4) === 0 ? oneOf(specs, random) : damagedText(oneOf(specs, random), random)),
    take: (spec) => void parseDataSpec(spec),
  };
}
