// A process that decodes a data set's pictures, as PyTorch's DataLoader has them. Beside an engine in one process, each
// would take its blocks of memory out of the other's heap: rounds of MobileNetV2 took 20 to 70 % longer then, most of it
// the system's time to give memory and take it back (bench/results/2026-11-29-loading.md).

import { type ChildProcess, fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { RunError } from '../../../errors.ts';
import type { DecodeReply, DecodeRequest, DecodeSettings } from './decode-messages.ts';

interface Pending {
  resolve(reply: DecodeReply): void;
  reject(error: Error): void;
}

/** Started by its first request; keeps this process alive only while a sample is due, and ends with it. */
export class DecodeProcess {
  readonly #settings: DecodeSettings;
  readonly #pending = new Map<number, Pending>();
  #child: ChildProcess | undefined;
  #next = 0;

  constructor(settings: DecodeSettings) {
    this.#settings = settings;
  }

  /** The values of a sample, or why there are none. Throws RunError where the process ends. */
  ask(request: Omit<DecodeRequest, 'id'>): Promise<DecodeReply> {
    this.#child ??= this.#start();
    const child = this.#child;
    const id = this.#next++;
    child.channel?.ref();
    child.send({ id, ...request } satisfies DecodeRequest, () => {}); // where it has ended, its end says so
    return new Promise((resolve, reject) => this.#pending.set(id, { resolve, reject }));
  }

  #start(): ChildProcess {
    const child = fork(fileURLToPath(new URL('./decode-process-entry.js', import.meta.url)), {
      serialization: 'advanced',
      stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
      env: ownAllocator(process.env),
    });
    child.unref();
    child.send(this.#settings, () => {});
    child.on('message', (message) => {
      const reply = message as DecodeReply;
      this.#pending.get(reply.id)?.resolve(reply);
      this.#pending.delete(reply.id);
      if (this.#pending.size === 0) child.channel?.unref();
    });
    child.once('error', (error) => this.#end(child, `it could not be started: ${error.message}`));
    child.once('exit', (code, signal) => this.#end(child, `it ended with ${signal ?? `exit code ${code}`}`));
    return child;
  }

  #end(child: ChildProcess, reason: string): void {
    if (this.#child === child) this.#child = undefined;
    for (const { reject } of this.#pending.values())
      reject(new RunError(`The process that decodes pictures failed: ${reason}.`));
    this.#pending.clear();
  }
}

/** `environment` without the settings of the C library's heap that are made for an engine's large blocks. */
function ownAllocator(environment: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(environment).filter(([name]) => !/^(?:MALLOC_|GLIBC_TUNABLES$)/.test(name)));
}
