// The samples that a run infers: what a data spec names, with or without labels, or an .npy file that is read as it is
// needed, from the disk or from stdin (`-`). Chunks come in order; a stream is never in memory as a whole.

import { createReadStream } from 'node:fs';
import { InputError } from '../../errors.ts';
import { elementBytes, elementCount, type Tensor, viewBytes, wrap } from '../../graph/tensor.ts';
import { batchOf } from '../../training/data/batch.ts';
import {
  type Batch,
  createDataset,
  type Dataset,
  gather,
  inputField,
  labelField,
} from '../../training/data/dataset.ts';
import { longestNpyHeader, type NpyLayout, readNpyLayout } from '../../training/data/npy.ts';
import { readNpz } from '../../training/data/npz.ts';
import { readError } from '../disk.ts';
import { loadDataset } from './datasets.ts';
import { nodeDisk } from './disk.ts';
import { inflate } from './inflate.ts';

/** Samples, some at a time. */
export interface SampleSource {
  readonly name: string;
  readonly sampleCount: number;
  readonly hasLabels: boolean;
  /** Names, types and shapes of the inputs; of a stream without values. */
  readonly head: Dataset;
  /** At most `size` samples each, as `bind` fits them to a model. To be called once. */
  chunks(size: number, bind: (dataset: Dataset) => Dataset): AsyncGenerator<Batch>;
}

/** Opens what `spec` names: test data where there are some. Throws InputError. */
export async function openSamples(spec: string, stdin: AsyncIterable<Uint8Array>): Promise<SampleSource> {
  if (spec === '-') return npyStream('stdin', stdin);
  const npy = /^npy:([^,]+)$/.exec(spec)?.[1];
  if (npy !== undefined) return npyStream(npy, createReadStream(npy, { highWaterMark: 2 ** 20 }));
  const npz = /^npz:(.+)$/.exec(spec)?.[1];
  const unlabelled = npz === undefined ? undefined : await unlabelledArrays(npz);
  if (unlabelled !== undefined) return inMemory(unlabelled, false);
  const { train, test } = await loadDataset(spec);
  return inMemory(test ?? train, true);
}

/** The arrays of a file without labels as inputs; undefined where there are labels. */
async function unlabelledArrays(path: string): Promise<Dataset | undefined> {
  const bytes = await nodeDisk.read(path).catch((error: unknown) => {
    throw readError(error, path);
  });
  const arrays = readNpz({ name: path, bytes }, inflate);
  const names = [...arrays.keys()];
  const isLabelled = names.some((name) => /^(labels?|y|targets?)(_test|_train)?$|^(test|train)_y$/i.test(name));
  if (isLabelled || arrays.size === 0 || (names.length === 2 && arrays.has('arr_0') && arrays.has('arr_1')))
    return undefined;
  return withoutLabels(
    path,
    [...arrays].map(([name, array]) => inputField(name, array, `${path} (${name})`)),
  );
}

function withoutLabels(name: string, inputs: Dataset['inputs']): Dataset {
  const count = inputs[0]?.values.shape[0] ?? 0;
  return createDataset(name, inputs, labelField(wrap('int64', [count], new BigInt64Array(count)), name));
}

function inMemory(dataset: Dataset, hasLabels: boolean): SampleSource {
  const { name, sampleCount } = dataset;
  return {
    ...{ name, sampleCount, hasLabels, head: dataset },
    async *chunks(size, bind) {
      const bound = bind(dataset);
      for (let first = 0; first < sampleCount; first += size) {
        const indices = Uint32Array.from({ length: Math.min(size, sampleCount - first) }, (_, at) => first + at);
        yield await batchOf(bound, indices);
      }
    },
  };
}

async function npyStream(name: string, stream: AsyncIterable<Uint8Array>): Promise<SampleSource> {
  const bytes = new ByteReader(name, stream[Symbol.asyncIterator]());
  const layout = await headerOf(name, bytes);
  const [sampleCount = 0, ...rest] = layout.shape;
  const rowBytes = elementBytes(layout.type) * elementCount(rest);
  if (layout.shape.length === 0 || sampleCount === 0 || rowBytes === 0)
    throw new InputError(`${name} holds no samples; it needs one row a sample.`);
  const empty: Tensor = { type: layout.type, shape: layout.shape, data: viewBytes(layout.type, new Uint8Array(0)) };
  const head: Dataset = {
    ...{ name, sampleCount, inputs: [inputField('input', empty, name)] },
    labels: labelField({ type: 'int64', shape: [sampleCount], data: new BigInt64Array(0) }, name),
  };
  return {
    ...{ name, sampleCount, hasLabels: false, head },
    async *chunks(size, bind) {
      for (let first = 0; first < sampleCount; first += size) {
        const count = Math.min(size, sampleCount - first);
        const values = wrap(layout.type, [count, ...rest], viewBytes(layout.type, await bytes.take(count * rowBytes)));
        const chunk = bind(withoutLabels(name, [inputField('input', values, name)]));
        yield gather(
          chunk,
          Uint32Array.from({ length: count }, (_, at) => at),
        );
      }
      await bytes.expectEnd();
    },
  };
}

async function headerOf(name: string, bytes: ByteReader): Promise<NpyLayout> {
  for (let wanted = 128; ; wanted *= 4) {
    const isWhole = await bytes.fill(Math.min(wanted, longestNpyHeader));
    const layout = readNpyLayout({ name, bytes: bytes.peek() });
    if (layout === undefined && !isWhole)
      throw new InputError(`${name} ends before it has begun: give it an npy file.`);
    if (layout === undefined) continue;
    await bytes.take(layout.start);
    return layout;
  }
}

/** Bytes of a stream in pieces of the reader's size. */
class ByteReader {
  readonly #name: string;
  readonly #stream: AsyncIterator<Uint8Array>;
  #pieces: Uint8Array[] = [];
  #length = 0;

  constructor(name: string, stream: AsyncIterator<Uint8Array>) {
    this.#name = name;
    this.#stream = stream;
  }

  /** Reads until there are so many bytes; false where the stream ends before. */
  async fill(count: number): Promise<boolean> {
    while (this.#length < count) {
      const next = await this.#stream.next().catch((error: unknown) => {
        throw readError(error, this.#name);
      });
      if (next.done === true) return false;
      this.#pieces.push(next.value);
      this.#length += next.value.length;
    }
    return true;
  }

  /** What has been read and not taken. */
  peek(): Uint8Array {
    const whole = Buffer.concat(this.#pieces);
    this.#pieces = [whole];
    return whole;
  }

  /** So many bytes, in memory of their own. Throws InputError where the stream ends before. */
  async take(count: number): Promise<Uint8Array> {
    if (!(await this.fill(count)))
      throw new InputError(
        `${this.#name} is cut off: it ends ${count - this.#length} bytes before the end of a batch; send all of it.`,
      );
    const taken = new Uint8Array(count);
    let filled = 0;
    while (filled < count) {
      const piece = this.#pieces[0] as Uint8Array;
      const part = piece.subarray(0, count - filled);
      taken.set(part, filled);
      filled += part.length;
      if (part.length === piece.length) this.#pieces.shift();
      else this.#pieces[0] = piece.subarray(part.length);
    }
    this.#length -= count;
    return taken;
  }

  /** Throws InputError where there are more bytes. */
  async expectEnd(): Promise<void> {
    if (await this.fill(1)) throw new InputError(`${this.#name} goes on behind its last sample; send one array.`);
  }
}
