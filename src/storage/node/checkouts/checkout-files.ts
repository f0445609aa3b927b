// The files of a Hugging Face checkout: config.json, and model.safetensors, whole or in the parts that
// model.safetensors.index.json lists. Weights are read from the files whenever they are wanted, as float32, and nobody
// here keeps them. What an index names must lie in the folder itself.

import { closeSync, existsSync, fstatSync, openSync, readSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { InputError } from '../../../errors.ts';
import { halfToNumber } from '../../../graph/operators/numbers.ts';
import { rereadTensor, type Tensor } from '../../../graph/tensor.ts';
import {
  readSafetensorsLayout,
  type StoredTensor,
  safetensorsHeaderBytes,
  storedTensor,
} from '../../../training/safetensors.ts';
import { readError } from '../../disk.ts';

/** A checkout's config.json and weights. */
export interface CheckoutFiles {
  readonly configPath: string;
  readonly config: unknown;
  /** By the files' names; floats as float32, read when they are wanted. */
  readonly tensors: ReadonlyMap<string, Tensor>;
}

const weightsName = 'model.safetensors';
const indexName = 'model.safetensors.index.json';
/** More than any checkout has. */
const maxJsonBytes = 64 * 1024 * 1024;

/** Opens the checkout in a folder. Throws InputError. */
export function openCheckout(folder: string): CheckoutFiles {
  const configPath = join(folder, 'config.json');
  if (!existsSync(configPath))
    throw new InputError(
      `${folder} has no config.json: give the folder of a checkout, with config.json and model.safetensors.`,
    );
  return { configPath, config: readJson(configPath), tensors: openWeights(folder) };
}

/** The weights of a folder. Throws InputError. */
function openWeights(folder: string): ReadonlyMap<string, Tensor> {
  if (existsSync(join(folder, weightsName))) return openSafetensors(join(folder, weightsName));
  if (existsSync(join(folder, indexName))) return openShards(folder);
  const hasPickle = ['pytorch_model.bin', 'pytorch_model.bin.index.json'].some((name) =>
    existsSync(join(folder, name)),
  );
  throw new InputError(
    hasPickle
      ? `${folder} has its weights in pytorch_model.bin, a program of Python's: save it with transformers' ` +
          'save_pretrained, which writes model.safetensors.'
      : `${folder} has no model.safetensors and no ${indexName}: download the weights, too.`,
  );
}

const indexSchema = z.object({ weight_map: z.record(z.string(), z.string()) });

/** By weight: the file that holds it, which lies in the index's folder. Throws InputError that names `path`. */
export function shardsOf(index: unknown, path: string): ReadonlyMap<string, string> {
  const parsed = indexSchema.safeParse(index);
  if (!parsed.success) throw new InputError(`${path} has no "weight_map" of names and files; download it again.`);
  const places = new Map(Object.entries(parsed.data.weight_map));
  for (const file of places.values())
    if (!/^[^/\\:]+\.safetensors$/.test(file))
      throw new InputError(
        `${path} names ${JSON.stringify(file.slice(0, 100))}, which is no safetensors file in its folder; take the ` +
          'index of the checkout.',
      );
  return places;
}

function openShards(folder: string): ReadonlyMap<string, Tensor> {
  const path = join(folder, indexName);
  const places = [...shardsOf(readJson(path), path)];
  const shards = new Map<string, ReadonlyMap<string, Tensor>>();
  for (const [, file] of places) {
    if (shards.has(file)) continue;
    if (!existsSync(join(folder, file)))
      throw new InputError(`${path} names ${file}, which is not in ${folder}: download it, too.`);
    shards.set(file, openSafetensors(join(folder, file)));
  }
  return new Map(
    places.map(([name, file]) => {
      const value = shards.get(file)?.get(name);
      if (value === undefined)
        throw new InputError(
          `${path} says that ${file} holds ${JSON.stringify(name.slice(0, 100))}, which it does not; download ` +
            'both again.',
        );
      return [name, value];
    }),
  );
}

/** The tensors of a safetensors file, each read when it is wanted; floats as float32. Throws InputError. */
export function openSafetensors(path: string): ReadonlyMap<string, Tensor> {
  const layout = withFile(path, (read, fileBytes) => {
    const start = { name: path, bytes: read(0, Math.min(8, fileBytes)) };
    const header = read(0, safetensorsHeaderBytes(start, fileBytes));
    return readSafetensorsLayout({ name: path, bytes: header }, fileBytes);
  });
  return new Map([...layout.tensors].map(([name, place]) => [name, fileTensor(path, name, place)]));
}

function fileTensor(path: string, name: string, place: StoredTensor): Tensor {
  const read = (): Tensor =>
    storedTensor(
      path,
      name,
      place,
      withFile(path, (part) => part(place.start, place.end)),
    );
  const { type, shape } = place;
  if (type !== 'float16' && type !== 'float64') return rereadTensor(type, shape, () => read().data);
  return rereadTensor('float32', shape, () => inFloat32(read()));
}

function inFloat32({ type, data }: Tensor): Float32Array {
  return type === 'float16'
    ? Float32Array.from(data as Uint16Array, halfToNumber)
    : Float32Array.from(data as Float64Array);
}

/** Reads the JSON of a file. Throws InputError. */
export function readJson(path: string): unknown {
  const bytes = withFile(path, (read, fileBytes) => {
    if (fileBytes > maxJsonBytes) throw new InputError(`${path} has ${fileBytes} bytes, more than any such file.`);
    return read(0, fileBytes);
  });
  try {
    return JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes)) as unknown;
  } catch {
    throw new InputError(`${path} is not JSON; download it again.`);
  }
}

type ReadPart = (start: number, end: number) => Uint8Array;

function withFile<T>(path: string, work: (read: ReadPart, fileBytes: number) => T): T {
  let handle: number;
  try {
    handle = openSync(path, 'r');
  } catch (error) {
    throw readError(error, path);
  }
  try {
    const stat = fstatSync(handle);
    if (!stat.isFile()) throw new InputError(`${path} is not a file: check the path.`);
    return work((start, end) => partOf(handle, path, start, end), stat.size);
  } finally {
    closeSync(handle);
  }
}

/** Linux moves at most 2 GiB − 4 KiB a call. */
const pieceBytes = 256 * 1024 * 1024;

function partOf(handle: number, path: string, start: number, end: number): Uint8Array {
  const bytes = new Uint8Array(end - start);
  for (let filled = 0; filled < bytes.length; ) {
    const count = readSync(handle, bytes, filled, Math.min(pieceBytes, bytes.length - filled), start + filled);
    if (count === 0) throw new InputError(`${path} was cut off while being read: copy the file again.`);
    filled += count;
  }
  return bytes;
}
