// The thread of stages-ahead.ts: one stage.

import { setPriority } from 'node:os';
import { parentPort, workerData } from 'node:worker_threads';
import { defined } from '../../assert.ts';
import { translateGraph } from '../../engine/translate.ts';
import { translateStage } from '../device/compiled-stages.ts';
import { wishedOptions } from '../device/create-stage.ts';
import { encodeBundle } from '../device/stage-bundle.ts';
import { modelOf } from '../worker/model.ts';
import type { StageJob } from './stages-ahead.ts';

// The priority of the compute thread, behind threads that move bytes. On a device that is always busy the lowest
// priority hardly runs at all: a stage of 1 s took half a minute. On Linux a priority belongs to the calling thread;
// elsewhere it would be the whole process's.
if (process.platform === 'linux') setPriority(0, 5);

const { message, graph, wish, memoryBytes, target } = workerData as StageJob;
const model = modelOf(message, graph);
const options = defined(wishedOptions(model, wish, memoryBytes), 'a stage');
const bundle = await translateStage(target, options, (each) => translateGraph(each, target));
defined(parentPort, 'a parent').postMessage(encodeBundle(bundle));
