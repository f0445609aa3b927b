// The process of decode-process.ts: its threads decode, its main thread sends what they made.

import type { DecodeRequest, DecodeSettings } from './decode-messages.ts';
import { DecodeThreads } from './decode-threads.ts';

// When who started it is gone, nobody wants to know.
process.once('disconnect', () => process.exit());
// Ctrl-C reaches every process of a terminal; who started this one may finish its round.
process.on('SIGINT', () => {});

process.once('message', (settings) => {
  const threads = new DecodeThreads(settings as DecodeSettings);
  process.on('message', (message) => {
    const { id, ...request } = message as DecodeRequest;
    threads.ask(request).then(
      (reply) => process.send?.({ ...reply, id }),
      (error: unknown) => {
        throw error; // a thread has died: so does the process
      },
    );
  });
});
