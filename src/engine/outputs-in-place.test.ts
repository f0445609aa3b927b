import assert from 'node:assert/strict';
import { test } from 'node:test';
import { defined } from '../assert.ts';
import { Emitter } from '../graph/emitter.ts';
import type { Graph } from '../graph/graph.ts';
import { createOnnxRuntimeNodeEngine } from './node/onnxruntime-node.ts';
import type { OnnxRuntime, RuntimeTensor } from './onnxruntime-module.ts';
import { canWriteInPlace, probeInPlace } from './outputs-in-place.ts';

/** A runtime whose sessions do `run`. */
function runtimeOf(
  run: (fetches: Readonly<Record<string, RuntimeTensor | null>>) => Promise<Record<string, RuntimeTensor>>,
): OnnxRuntime {
  class FakeTensor {
    readonly type: string;
    readonly data: unknown;
    readonly dims: readonly number[];
    constructor(type: string, data: unknown, dims: readonly number[]) {
      [this.type, this.data, this.dims] = [type, data, dims];
    }
  }
  const session = {
    run: (_: unknown, fetches: Readonly<Record<string, RuntimeTensor | null>>) => run(fetches),
    release: async () => {},
  };
  return { Tensor: FakeTensor, InferenceSession: { create: async () => session } } as unknown as OnnxRuntime;
}

/** Writes what the probe expects. */
function write(fetches: Readonly<Record<string, RuntimeTensor | null>>): void {
  for (const target of Object.values(fetches)) if (target !== null) (target.data as Float32Array).set([-1, -2]);
}

test('a runtime that returns its outputs, fails before writing, or has no sequences is not trusted', async () => {
  const returns = runtimeOf(async (fetches) => {
    write(fetches);
    return {};
  });
  const fails = runtimeOf(() => Promise.reject(new Error('no memory')));
  const refuses = {
    ...returns,
    InferenceSession: { create: () => Promise.reject(new Error('SequenceEmpty is not implemented')) },
  };
  for (const runtime of [returns, fails, refuses]) assert.equal(await probeInPlace(runtime, {}), undefined);
});

test('the signal of the probe means that all is written; any other failure is one', async () => {
  const messages = ['not supported', 'not supported', 'no memory'];
  const runtime = runtimeOf((fetches) => {
    if (messages.length > 1) write(fetches);
    return Promise.reject(new Error(messages.shift()));
  });
  const inPlace = defined(await probeInPlace(runtime, {}), 'runs in place');
  const session = await runtime.InferenceSession.create(new Uint8Array(), {});
  const target = new runtime.Tensor('float32', new Float32Array(2), [2]);
  await inPlace.run(session, {}, { y: target });
  assert.deepEqual([...(target.data as Float32Array)], [-1, -2]);
  await assert.rejects(inPlace.run(session, {}, { y: target }), /no memory/);
});

/** y = -x, picked = x[index]. */
function graphOf(): Graph {
  const emitter = new Emitter();
  const x = emitter.input('x', 'float32', [1024]);
  const index = emitter.input('index', 'int64', [1]);
  return emitter.build('pick', [emitter.emit('Neg', [x]), emitter.emit('Gather', [x, index])]);
}

test('outputs that are inputs, constants or empty are left to the runtime', () => {
  const graph = graphOf();
  assert.ok(canWriteInPlace(graph));
  assert.ok(!canWriteInPlace({ ...graph, outputs: [...graph.outputs, ...graph.inputs] }));
  assert.ok(!canWriteInPlace({ ...graph, outputs: graph.outputs.map((output) => ({ ...output, shape: [0] })) }));
});

test('onnxruntime-node writes in place', async () => {
  const engine = await createOnnxRuntimeNodeEngine();
  assert.ok(defined(await engine.translate?.(graphOf()), 'a translation').writesInPlace);
  await engine.close();
});
