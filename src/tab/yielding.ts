// ONNX Runtime in the thread that also moves bytes: WebAssembly computes without letting anything else happen, and a
// queue of runs would keep frames and signs of life waiting until it is empty. Between runs, what came meanwhile is
// seen to.

import type { OnnxRuntime } from '../engine/onnxruntime-module.ts';

/** How long runs may follow each other without a pause, in milliseconds. */
const togetherMs = 10;

/** The runtime, letting others go first between two of its runs. `turn` resolves in a later turn of the event loop. */
export function yielding(
  runtime: OnnxRuntime,
  { now, turn }: { readonly now: () => number; readonly turn: () => Promise<void> },
): OnnxRuntime {
  let sinceMs = now();
  const breathe = async (): Promise<void> => {
    if (now() - sinceMs < togetherMs) return;
    await turn();
    sinceMs = now();
  };
  const { InferenceSession, Tensor } = runtime;
  return {
    Tensor,
    InferenceSession: {
      async create(model, options) {
        await breathe();
        const session = await InferenceSession.create(model, options);
        return {
          release: () => session.release(),
          async run(feeds, fetches) {
            await breathe();
            return session.run(feeds, fetches);
          },
        };
      },
    },
  };
}
