// A thread that decodes pictures: it answers requests for samples, and keeps what it decoded within a limit. What is
// kept changes no value.

import { setPriority } from 'node:os';
import { parentPort, workerData } from 'node:worker_threads';
import { defined } from '../../../assert.ts';
import type { Raster } from '../../../training/data/pictures/raster.ts';
import { reasonOf } from './check-pictures.ts';
import { decode, inputOf, prepared, type Recipe } from './decode.ts';
import type { DecodeOptions, DecodeReply, DecodeRequest } from './decode-messages.ts';
import { loadSharp } from './sharp.ts';

/** Below compute-thread-entry.ts's, which is 5: rounds are decoded ahead. */
const decodePriority = 10;

const { files, recipe, cacheBytes } = workerData as DecodeOptions;
const port = defined(parentPort, 'the port of a thread');
const loading = loadSharp();
const kept = new Map<number, Raster>();
let keptBytes = 0;

const plain: Recipe = { ...recipe, augment: [] };

async function baseOf(sample: number, made: Recipe): Promise<Raster> {
  const key = made === plain ? sample : -1 - sample;
  const found = kept.get(key);
  if (found !== undefined) return found;
  const raster = await decode(await loading, defined(files[sample], 'a file'), made);
  // Full: what is kept stays, for a whole epoch passes before any of it comes again.
  if (!kept.has(key) && keptBytes + raster.pixels.length <= cacheBytes) {
    kept.set(key, raster);
    keptBytes += raster.pixels.length;
  }
  return raster;
}

async function answer({ id, sample, epoch }: DecodeRequest): Promise<void> {
  const made = epoch === undefined || recipe.augment.length === 0 ? plain : recipe;
  try {
    const raster = await prepared(await loading, await baseOf(sample, made), made, { sample, epoch: epoch ?? 0 });
    const values = inputOf(raster, made);
    port.postMessage({ id, values } satisfies DecodeReply, [values.buffer]);
  } catch (error) {
    port.postMessage({ id, problem: reasonOf(error) } satisfies DecodeReply);
  }
}

// Computing goes first where cores are scarce: on Linux a priority belongs to the calling thread.
if (process.platform === 'linux') setPriority(0, decodePriority);
// One at a time: side by side, sharp would take all threads of its pool, and the cores of those who compute.
let last = Promise.resolve();
port.on('message', (request: DecodeRequest) => {
  last = last.then(() => answer(request));
});
