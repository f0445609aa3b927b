import assert from 'node:assert/strict';
import { test } from 'node:test';
import { tensor, toNumbers } from '../graph/tensor.ts';
import { addGraph } from '../testing/engine-suite/graphs.ts';
import { createGpuEngine } from './onnxruntime-gpu.ts';
import type { OnnxRuntime } from './onnxruntime-module.ts';

/** A runtime that computes on the processor until its chip is lost: what is asked then never answers. */
async function losing(): Promise<{ readonly runtime: OnnxRuntime; lose(): void; readonly asked: Promise<void> }> {
  const { InferenceSession, Tensor } = (await import('onnxruntime-node')) as unknown as OnnxRuntime;
  let isLost = false;
  const lose = (): void => {
    isLost = true;
  };
  let ask = (): void => {};
  const asked = new Promise<void>((resolve) => {
    ask = resolve;
  });
  const never = (): Promise<never> => {
    ask();
    return new Promise(() => {});
  };
  const runtime: OnnxRuntime = {
    Tensor,
    InferenceSession: {
      async create(model) {
        const session = await InferenceSession.create(model, { executionProviders: ['cpu'] });
        return {
          run: (feeds, fetches) => (isLost ? never() : session.run(feeds, fetches)),
          release: () => (isLost ? never() : session.release()),
        };
      },
    },
  };
  return { runtime, asked, lose };
}

test('the device is lost while it computes: what waits fails in one sentence, and so does what comes', async () => {
  const { runtime, lose, asked } = await losing();
  let tell = (_: { readonly message: string }): void => assert.fail('the device is watched');
  const lost = new Promise<{ readonly message: string }>((resolve) => {
    tell = resolve;
  });
  const engine = await createGpuEngine(runtime, { name: 'a test', device: async () => ({ lost }) });
  const increment = await engine.compile(addGraph(1));
  const run = () =>
    engine.take(increment.run({ x: engine.upload(tensor('float32', [2], [1, 2])) })['y'] ?? assert.fail());
  assert.deepEqual(toNumbers(await run()), [2, 3]);
  lose();
  const failed = {
    name: 'RunError',
    message:
      'The graphics chip was lost while it computed (Device was destroyed): join again, or compute on the processor.',
  };
  const waiting = assert.rejects(run(), failed);
  await asked;
  tell({ message: 'Device was destroyed.' });
  await waiting;
  await assert.rejects(run(), failed);
  await assert.rejects(engine.compile(addGraph(2)), failed);
  // A worker ends with what has failed; nothing waits for the chip.
  await assert.rejects(engine.settled(), failed);
  await engine.close();
});
