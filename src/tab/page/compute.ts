// The thread of a tab that holds its links and does a worker's part; the engine computes in one of its own, so that
// this one always hears and answers. It outlives no run.

import { isOnGpu } from '../../engine/onnxruntime-gpu.ts';
import { createThreadedEngine } from '../../engine/threaded-engine.ts';
import { RunError } from '../../errors.ts';
import { servePage } from '../serve-page.ts';
import { startEngineThread } from './engine-thread.ts';
import type { FromCompute, ToCompute } from './messages.ts';

const leaving = new AbortController();
const tell = (message: FromCompute): void => self.postMessage(message);
const reportEveryMs = 1000;

self.onmessage = ({ data }: MessageEvent<ToCompute>) => {
  if (data.kind === 'leave') leaving.abort();
  else void join(data);
};

async function join({ engine: settings, ...options }: Extract<ToCompute, { readonly kind: 'join' }>): Promise<void> {
  try {
    tell({ kind: 'loading' });
    const engine = await createThreadedEngine(startEngineThread(settings), (kernel) =>
      tell({ kind: 'place', text: `Computed on the processor, not on the graphics chip: ${kernel}.` }),
    );
    const place = isOnGpu(engine.name) ? 'graphics chip' : 'processor';
    tell({ kind: 'place', text: engine.choice ?? `It computes on the ${place}.` });
    tell({ kind: 'joining' });
    let busyMs = 0;
    const timer = setInterval(() => {
      const nowMs = engine.busyMs();
      tell({ kind: 'busy', share: Math.min(1, (nowMs - busyMs) / reportEveryMs) });
      busyMs = nowMs;
    }, reportEveryMs);
    try {
      const { clean, lost, reason } = await servePage({
        ...options,
        engine,
        leave: leaving.signal,
        open: (url) => new WebSocket(url),
        onJoined: (name) => tell({ kind: 'joined', name }),
      });
      tell({ kind: 'ended', isClean: clean, isLost: lost === true, reason });
    } finally {
      clearInterval(timer);
      await engine.close();
    }
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    tell({ kind: 'ended', isClean: false, isLost: error instanceof RunError, reason });
  }
}
