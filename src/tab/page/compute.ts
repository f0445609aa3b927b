// The thread that computes for a tab: the engine, the links and the worker. It outlives no run.

import * as ort from 'onnxruntime-web/wasm';
import type { OnnxRuntime } from '../../engine/onnxruntime-module.ts';
import { createOnnxRuntimeWebEngine } from '../../engine/onnxruntime-web.ts';
import { RunError } from '../../errors.ts';
import { servePage } from '../serve-page.ts';
import { yielding } from '../yielding.ts';
import type { FromCompute, ToCompute } from './messages.ts';

const leaving = new AbortController();
const tell = (message: FromCompute): void => self.postMessage(message);
const reportEveryMs = 1000;

/** What resolves the promises of `turn`, in their order. */
const turns: (() => void)[] = [];
const { port1, port2 } = new MessageChannel();
port1.onmessage = () => turns.shift()?.();

/** A later turn of the event loop, without the pause that timers make. */
function turn(): Promise<void> {
  port2.postMessage(undefined);
  return new Promise((resolve) => turns.push(resolve));
}

self.onmessage = ({ data }: MessageEvent<ToCompute>) => {
  if (data.kind === 'leave') leaving.abort();
  else void join(data);
};

async function join({ threadCount, ...options }: Extract<ToCompute, { readonly kind: 'join' }>): Promise<void> {
  try {
    tell({ kind: 'loading' });
    // The package's files, which this page's server has.
    ort.env.wasm.wasmPaths = { wasm: new URL('/ort.wasm', self.location.href) };
    const adapt = (runtime: OnnxRuntime): OnnxRuntime => yielding(runtime, { now: () => performance.now(), turn });
    const engine = await createOnnxRuntimeWebEngine({ load: async () => ort, threadCount, adapt });
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
        onJoined: (name) => tell({ kind: 'joined', name, engine: engine.name }),
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
