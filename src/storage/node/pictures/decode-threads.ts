// The threads that decode a data set's pictures. They keep the process alive only while a sample is due.

import { Worker } from 'node:worker_threads';
import { defined } from '../../../assert.ts';
import { RunError } from '../../../errors.ts';
import type { DecodeOptions, DecodeReply, DecodeRequest } from './decode-messages.ts';

interface Pending {
  resolve(reply: DecodeReply): void;
  reject(error: Error): void;
}

/** One thread, which answers in any order. Started by its first request. */
class DecodeThread {
  readonly #options: DecodeOptions;
  readonly #pending = new Map<number, Pending>();
  #worker: Worker | undefined;
  #next = 0;

  constructor(options: DecodeOptions) {
    this.#options = options;
  }

  ask(request: Omit<DecodeRequest, 'id'>): Promise<DecodeReply> {
    this.#worker ??= this.#start();
    const worker = this.#worker;
    const id = this.#next++;
    worker.ref();
    worker.postMessage({ id, ...request } satisfies DecodeRequest);
    return new Promise((resolve, reject) => this.#pending.set(id, { resolve, reject }));
  }

  #start(): Worker {
    const worker = new Worker(new URL('./decode-thread-entry.js', import.meta.url), {
      workerData: this.#options,
      name: 'decode',
    });
    worker.on('message', (reply: DecodeReply) => {
      this.#pending.get(reply.id)?.resolve(reply);
      this.#pending.delete(reply.id);
      if (this.#pending.size === 0) worker.unref();
    });
    worker.on('error', (error: unknown) => this.#die(error instanceof Error ? error.message : String(error)));
    worker.on('exit', (code) => this.#die(`it ended with code ${code}`));
    return worker;
  }

  #die(reason: string): void {
    this.#worker = undefined;
    for (const { reject } of this.#pending.values())
      reject(new RunError(`A thread that decodes pictures failed: ${reason}.`));
    this.#pending.clear();
  }
}

/** Threads by sample: one that decoded a picture gets it again, and may have kept it. */
export class DecodeThreads {
  readonly #threads: readonly DecodeThread[];

  constructor(
    options: Omit<DecodeOptions, 'cacheBytes'>,
    limits: { readonly threads: number; readonly cacheBytes: number },
  ) {
    const cacheBytes = Math.floor(limits.cacheBytes / limits.threads);
    this.#threads = Array.from({ length: limits.threads }, () => new DecodeThread({ ...options, cacheBytes }));
  }

  /** The values of a sample, or why there are none. Throws RunError where the thread dies. */
  ask(sample: number, epoch: number | undefined): Promise<DecodeReply> {
    return defined(this.#threads[sample % this.#threads.length], 'a thread').ask({ sample, epoch });
  }
}
