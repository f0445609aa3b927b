// The process of profile-apart.ts: one profile.

import { systemClock } from '../../clock.ts';
import { createComputeThread } from '../../engine/node/compute-thread.ts';
import { searchForGarbageLess } from '../../engine/node/host-node.ts';
import { createProcessClock } from '../../engine/node/work-clock.ts';
import type { ProcessClock } from '../../engine/process-clock.ts';
import { toFailure } from '../../engine/thread-messages.ts';
import { profileLayers } from '../device/measure/profiler.ts';
import { modelOf } from '../worker/model.ts';
import type { ProfiledEngine, ProfileReply, ProfileRequest } from './profile-apart.ts';

/** Resolves when it has gone, or cannot go: the worker has ended. */
function send(reply: ProfileReply): Promise<void> {
  return new Promise((resolve) => void process.send?.(reply, undefined, undefined, () => resolve()));
}

function processClock(engine: ProfiledEngine): ProcessClock {
  return createProcessClock({ threadCount: 1, maxCpu: 1, isCourteous: false, ...engine });
}

async function measure({
  message,
  graph,
  batchSizes,
  thoroughness,
  memoryBytes,
  engine,
}: ProfileRequest): Promise<void> {
  // The thread starts while the model is read.
  const starting = createComputeThread(engine);
  starting.catch(() => {}); // read below
  try {
    const { sequence, label } = modelOf(message, graph);
    const thread = await starting;
    const profile = await profileLayers(thread, sequence, {
      batchSizes,
      thoroughness,
      training: message.training,
      label,
      memoryBytes,
      clock: systemClock,
      ...(engine.device === undefined || engine.device === 'cpu' ? { processWork: processClock(engine) } : {}),
      onProgress: (done, total) => void send({ done, total }),
    });
    await send({ profile });
  } finally {
    await starting.then((thread) => thread.close());
  }
}

// As the worker that started it, whose times these are to be.
searchForGarbageLess();
// When the worker is gone, nobody wants to know.
process.once('disconnect', () => process.exit());
process.once('message', (request) => {
  measure(request as ProfileRequest)
    .catch((error: unknown) => send({ failure: toFailure(error) }))
    .finally(() => process.disconnect());
});
