import assert from 'node:assert/strict';
import { test } from 'node:test';
import { defined } from '../assert.ts';
import { tensor, toNumbers } from '../graph/tensor.ts';
import { addGraph } from '../testing/engine-suite/graphs.ts';
import { engineSuite } from '../testing/engine-suite.ts';
import { softwareGpuMissing, useSoftwareGpu } from '../testing/software-gpu.ts';
import { createOnnxRuntimeNodeEngine } from './node/onnxruntime-node.ts';
import { createGpuEngine } from './onnxruntime-gpu.ts';
import type { OnnxRuntime, RuntimeSession } from './onnxruntime-module.ts';

useSoftwareGpu();
const create = () => createOnnxRuntimeNodeEngine({ device: 'gpu' });
if (softwareGpuMissing === undefined) engineSuite('webgpu of onnxruntime-node', create, { isThreaded: false });
else test('webgpu of onnxruntime-node', { skip: softwareGpuMissing }, () => {});

/** A runtime that counts what its sessions are fed from memory, and how many of them there are. */
async function watched(): Promise<{ readonly runtime: OnnxRuntime; fromMemory: number; open: number }> {
  const real = (await import('onnxruntime-node')) as unknown as OnnxRuntime;
  const seen = { runtime: real, fromMemory: 0, open: 0 };
  const watch = (session: RuntimeSession): RuntimeSession => ({
    run(feeds, fetches) {
      seen.fromMemory += Object.values(feeds).filter(({ location }) => location !== 'gpu-buffer').length;
      return session.run(feeds, fetches);
    },
    release() {
      seen.open--;
      return session.release();
    },
  });
  const open = async (model: Uint8Array, options: Readonly<Record<string, unknown>>): Promise<RuntimeSession> => {
    seen.open++;
    return watch(await real.InferenceSession.create(model, options));
  };
  return Object.assign(seen, { runtime: { Tensor: real.Tensor, InferenceSession: { create: open } } });
}

test('results are fed again where they are; a session goes with the last of its values', {
  skip: softwareGpuMissing ?? false,
}, async () => {
  const seen = await watched();
  const engine = await createGpuEngine(seen.runtime, { name: 'a test' });
  const increment = await engine.compile(addGraph(1));
  const first = defined(increment.run({ x: engine.upload(tensor('float32', [2], [1, 2])) })['y'], 'y');
  await engine.settled();
  const [fromMemory, open] = [seen.fromMemory, seen.open];
  const second = defined(increment.run({ x: first })['y'], 'y');
  assert.deepEqual(toNumbers(await engine.download(second)), [3, 4]);
  assert.equal(seen.fromMemory, fromMemory);
  increment.release();
  engine.release(first);
  await engine.settled();
  assert.equal(seen.open, open);
  assert.deepEqual(toNumbers(await engine.take(second)), [3, 4]);
  await engine.settled();
  assert.equal(seen.open, open - 1);
  await engine.close();
  assert.equal(seen.open, 0);
});
