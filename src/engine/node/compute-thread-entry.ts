// The thread of compute-thread.ts.

import { setPriority } from 'node:os';
import { parentPort, workerData } from 'node:worker_threads';
import { defined } from '../../assert.ts';
import type { Engine } from '../engine.ts';
import { EngineService } from '../engine-service.ts';
import { createReferenceEngine } from '../reference.ts';
import type { Request } from '../thread-messages.ts';
import type { ThreadOptions } from './compute-thread-options.ts';
import { fileTensor } from './file-tensor.ts';
import { openThreadClock } from './host-linux.ts';
import { createOnnxRuntimeHereEngine } from './onnxruntime-here.ts';
import { createWorkClock } from './work-clock.ts';

/**
 * A third of the weight of a normal thread while both want a core, or the least that there is; nothing is lost while
 * one is free.
 */
const [computePriority, courteousPriority] = [5, 19] as const;

const port = defined(parentPort, 'the parent of the compute thread');

async function createEngine(options: ThreadOptions): Promise<Engine> {
  const { engine, device, threadCount, maxCpu, isCourteous } = options;
  if (engine === 'onnxruntime')
    return createOnnxRuntimeHereEngine({
      ...{ device, threadCount, pacing: { maxCpu, isCourteous } },
      onDetour: (kernel, fault) => service.detour(`${kernel} (${fault})`),
      // What a GPU does takes no processor time.
      ...(device === 'cpu' ? { now: createWorkClock(options) } : {}),
    });
  if (engine === 'reference') return createReferenceEngine();
  const module: unknown = await import(engine.module);
  return (module as { createEngine(options: { threadCount: number }): Promise<Engine> }).createEngine({ threadCount });
}

/**
 * Lets the threads that move bytes go first where cores are scarce: on Linux a priority belongs to the calling thread
 * and to those that it starts. Elsewhere it would be the whole process's, and stays as it is.
 */
function yieldToOthers({ isCourteous }: ThreadOptions): void {
  if (process.platform === 'linux') setPriority(0, isCourteous ? courteousPriority : computePriority);
}

const options = workerData as ThreadOptions;
yieldToOthers(options);
const isCounted = options.threadCount === 1 && process.platform === 'linux';
const service = new EngineService({
  post: (replies, moved) => port.postMessage(replies, [...moved]),
  fileTensor,
  threadMs: isCounted ? openThreadClock() : undefined,
});
port.on('message', (requests: readonly Request[]) => service.take(requests));
void service.start(createEngine(options));
