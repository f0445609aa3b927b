// The thread of what-if-thread.ts: one question.

import { setPriority } from 'node:os';
import { parentPort, workerData } from 'node:worker_threads';
import { defined } from '../../assert.ts';
import { InputError } from '../../errors.ts';
import { answerWhatIf, type WhatIfQuestion } from './what-if-answer.ts';
import type { ThreadReply } from './what-if-thread.ts';

// Training comes first. On Linux a priority belongs to the calling thread; elsewhere it would be the whole process's.
if (process.platform === 'linux') setPriority(0, 10);

defined(parentPort, 'a parent').postMessage(reply(workerData as WhatIfQuestion));

function reply(question: WhatIfQuestion): ThreadReply {
  try {
    return { answer: answerWhatIf(question, () => performance.now()) };
  } catch (error) {
    if (!(error instanceof InputError)) throw error;
    return { refusal: error.message };
  }
}
