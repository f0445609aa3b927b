// ONNX Runtime of which one call is under way at a time. Where it waits for a browser's GPU it gives the thread back in
// the midst of a call; another call meanwhile, such as compiling beside a run, writes over its memory
// (onnxruntime-web 1.30).

import type { OnnxRuntime } from './onnxruntime-module.ts';

/** The runtime, whose calls begin when those before them have ended, failed or not. */
export function oneAtATime({ InferenceSession, Tensor }: OnnxRuntime): OnnxRuntime {
  let last: Promise<unknown> = Promise.resolve();
  const inTurn = <T>(call: () => Promise<T>): Promise<T> => {
    const result = last.then(call);
    last = result.catch(() => {}); // its caller hears of it
    return result;
  };
  return {
    Tensor,
    InferenceSession: {
      async create(model, options) {
        const session = await inTurn(() => InferenceSession.create(model, options));
        return {
          run: (feeds, fetches) => inTurn(() => session.run(feeds, fetches)),
          release: () => inTurn(() => session.release()),
        };
      },
    },
  };
}
