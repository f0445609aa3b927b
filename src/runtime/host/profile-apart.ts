// Measures a model's layers in a process of its own. Trials leave 100 to 200 MiB of holes in the C library's heap,
// which would stay with the worker while it trains; and graphs are cut and joined there, not on the thread that moves
// bytes.

import { type ChildProcess, fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import type { ComputeThreadOptions } from '../../engine/node/compute-thread.ts';
import type { WorkClockOptions } from '../../engine/node/work-clock.ts';
import { type Failure, fromFailure } from '../../engine/thread-messages.ts';
import { RunError } from '../../errors.ts';
import type { MeasuredProfile } from '../device/measure/measurement.ts';
import type { ProfileJob, ProfileProcess } from '../worker/options.ts';

/** An engine like the worker's own, and the number of workers that share the machine. */
export type ProfiledEngine = Omit<ComputeThreadOptions, 'onDetour'> & Pick<WorkClockOptions, 'workerCount'>;

/** The input of the process. */
export interface ProfileRequest extends ProfileJob {
  readonly engine: ProfiledEngine;
}

/** An answer of the process: its progress, or its result. */
export type ProfileReply =
  | { readonly done: number; readonly total: number }
  | { readonly profile: MeasuredProfile }
  | { readonly failure: Failure };

/** Starts measuring on an engine of the same kind as the worker's own. */
export function startProfile(
  job: ProfileJob,
  engine: ProfiledEngine,
  onProgress: (done: number, total: number) => void,
): ProfileProcess {
  const child = fork(fileURLToPath(new URL('./profile-apart-entry.js', import.meta.url)), {
    serialization: 'advanced',
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  });
  const profile = resultOf(child, onProgress);
  profile.catch(() => {}); // it may have been ended because nobody waits for it any more
  const request: ProfileRequest = { ...job, engine };
  child.send(request, () => {}); // if it has ended already, its end says so
  return { profile, end: () => void child.kill('SIGKILL') };
}

function resultOf(child: ChildProcess, onProgress: (done: number, total: number) => void): Promise<MeasuredProfile> {
  return new Promise((resolve, reject) => {
    child.on('message', (message) => {
      const reply = message as ProfileReply;
      if ('profile' in reply) resolve(reply.profile);
      else if ('failure' in reply) reject(fromFailure(reply.failure));
      else onProgress(reply.done, reply.total);
    });
    child.once('error', (error) =>
      reject(new RunError(`The process that measures the model could not be started: ${error.message}.`)),
    );
    child.once('exit', (code, signal) => reject(new RunError(endText(code, signal))));
  });
}

function endText(code: number | null, signal: string | null): string {
  return signal === 'SIGKILL'
    ? 'The process that measures the model was killed, as systems do for want of memory: ' +
        'give this worker more memory, or use smaller micro-batches.'
    : `The process that measures the model ended with ${signal ?? `exit code ${code}`}.`;
}
