// The thread of engine.ts, as the thread of links has it.

import type { EngineThread } from '../../engine/threaded-engine.ts';
import type { EngineSettings } from './messages.ts';

/** Starts the thread. */
export function startEngineThread(settings: EngineSettings): EngineThread {
  const worker = new Worker('/engine.js', { type: 'module' });
  worker.postMessage(settings);
  return {
    post: (requests, moved) => worker.postMessage(requests, [...moved]),
    listen(heard, died) {
      worker.onmessage = ({ data }) => heard(data);
      worker.onerror = ({ message }) => died(`the engine has failed: ${message || 'it does not load here'}`);
      worker.onmessageerror = () => died('a message of the engine cannot be read');
    },
    terminate: async () => worker.terminate(),
  };
}
