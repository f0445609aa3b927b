// A thread that takes ranges of inputs, one after the other, and writes down the input it is at.

import { parentPort, workerData } from 'node:worker_threads';
import { defined } from '../assert.ts';
import { fuzzRange, type InputRange } from './fuzz.ts';
import type { Target } from './target.ts';
import { targetOf } from './targets.ts';
import type { ThreadData } from './threads.ts';

// Errors are frequent here, and their stacks take much of the time; a failing input is taken again with its stack.
Error.stackTraceLimit = 0;

const port = defined(parentPort, 'the port of the thread');
const { limits, seed } = workerData as ThreadData;
const at = new Float64Array(seed);
const made = new Map<string, Target>();

port.on('message', async (range: InputRange) => {
  const entry = targetOf(range.target);
  const target = made.get(entry.name) ?? (await entry.create());
  made.set(entry.name, target);
  const summary = await fuzzRange(entry, target, range, {
    limits,
    onInput: (next) => {
      at[0] = next;
    },
  });
  port.postMessage(summary);
});
