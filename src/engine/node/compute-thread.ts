// An engine in a thread of Node's: see threaded-engine.ts.

import { Worker } from 'node:worker_threads';
import type { DeviceChoice, Engine } from '../engine.ts';
import type { Reply } from '../thread-messages.ts';
import { createThreadedEngine } from '../threaded-engine.ts';
import type { EngineChoice, ThreadOptions } from './compute-thread-options.ts';

export interface ComputeThreadOptions {
  /** Default 'onnxruntime'. 'reference' needs nothing and is slow. */
  readonly engine?: EngineChoice;
  /** What it computes on. Default 'cpu'. ONNX Runtime only. */
  readonly device?: DeviceChoice;
  /** Threads inside one operator, where the engine has them. Default 1. */
  readonly threadCount?: number;
  /** The part of the time in which it may compute, above 0 and at most 1. Default 1. ONNX Runtime only. */
  readonly maxCpu?: number;
  /** A kernel of the GPU is wrong or refused here, and the CPU computes in its place. Default: nobody hears of it. */
  readonly onDetour?: (kernel: string) => void;
  /** Steps back while other processes use the machine. Default false. ONNX Runtime only. */
  readonly isCourteous?: boolean;
}

/**
 * Starts a compute thread. Rejects with InputError where its engine cannot be had here. Its owner must `close` it: a
 * thread keeps the process alive.
 */
export async function createComputeThread(options: ComputeThreadOptions = {}): Promise<Engine> {
  const threadOptions: ThreadOptions = {
    engine: options.engine ?? 'onnxruntime',
    device: options.device ?? 'cpu',
    threadCount: options.threadCount ?? 1,
    maxCpu: options.maxCpu ?? 1,
    isCourteous: options.isCourteous ?? false,
  };
  const worker = new Worker(new URL('./compute-thread-entry.js', import.meta.url), {
    workerData: threadOptions,
    name: 'compute',
  });
  return createThreadedEngine(
    {
      post: (requests, moved) => worker.postMessage(requests, [...moved]),
      listen(heard, died) {
        worker.on('message', (replies: readonly Reply[]) => heard(replies));
        worker.on('error', (error: unknown) =>
          died(`The compute thread failed: ${error instanceof Error ? error.message : String(error)}`),
        );
        worker.on('messageerror', ({ message }) => died(`A message of the compute thread cannot be read: ${message}`));
        worker.on('exit', (code) => died(`The compute thread ended with code ${code}.`));
      },
      async terminate() {
        await worker.terminate();
      },
    },
    options.onDetour,
  );
}
