// A thread that rehearses the ranges of seeds that it is sent, one after the other.

import { parentPort } from 'node:worker_threads';
import { defined } from '../assert.ts';
import { rehearseSeeds, type SeedRange } from './seeds.ts';

// Errors are a matter of course here, and their stacks a good part of the time; a single seed is replayed with all of
// them.
Error.stackTraceLimit = 0;

const port = defined(parentPort, 'the port of the thread');
port.on('message', (range: SeedRange) => {
  void rehearseSeeds(range).then((summary) => port.postMessage(summary));
});
