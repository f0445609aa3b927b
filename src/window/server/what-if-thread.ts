// Questions about changes are answered in a thread, so that the coordinator hears its devices meanwhile: one at a time,
// for a limited time.

import { Worker } from 'node:worker_threads';
import { InputError, RunError } from '../../errors.ts';
import type { WhatIfAnswer } from '../messages.ts';
import type { WhatIfQuestion } from './what-if-answer.ts';

/** What the thread says. */
export type ThreadReply = { readonly answer: WhatIfAnswer } | { readonly refusal: string };

const timeoutMs = 20_000;

/** Asks. Rejects with InputError where the change cannot happen, RunError where the answer takes too long. */
export function askWhatIf(question: WhatIfQuestion): Promise<WhatIfAnswer> {
  const thread = new Worker(new URL('./what-if-thread-entry.js', import.meta.url), {
    workerData: question,
    name: 'what-if',
    resourceLimits: { maxOldGenerationSizeMb: 512 },
  });
  return new Promise<WhatIfAnswer>((resolve, reject) => {
    const timer = setTimeout(
      () => reject(new RunError(`There was no answer within ${timeoutMs / 1000} s.`)),
      timeoutMs,
    );
    thread.once('message', (reply: ThreadReply) =>
      'answer' in reply ? resolve(reply.answer) : reject(new InputError(reply.refusal)),
    );
    thread.once('error', (error) => reject(new RunError(`The question could not be answered: ${error.message}.`)));
    thread.once('exit', () => {
      clearTimeout(timer);
      reject(new RunError('The question could not be answered.'));
    });
  }).finally(() => void thread.terminate());
}
