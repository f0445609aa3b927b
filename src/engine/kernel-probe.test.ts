import assert from 'node:assert/strict';
import { test } from 'node:test';
import { defined } from '../assert.ts';
import { Emitter } from '../graph/emitter.ts';
import { type Graph, int, ints } from '../graph/graph.ts';
import { exportGraph } from '../graph/onnx/export.ts';
import { tensor, toNumbers } from '../graph/tensor.ts';
import { softwareGpuMissing, useSoftwareGpu } from '../testing/software-gpu.ts';
import { createGpuEngine } from './onnxruntime-gpu.ts';
import type { OnnxRuntime } from './onnxruntime-module.ts';

useSoftwareGpu();
const options = { skip: softwareGpuMissing ?? false, timeout: 120_000 };

const load = async (): Promise<OnnxRuntime> => (await import('onnxruntime-node')) as unknown as OnnxRuntime;

/** y = tanh(conv(x, w)), with 6 channels and no padding. */
function convolution(): Graph {
  const e = new Emitter();
  const [x, w] = [e.input('x', 'float32', [1, 6, 6, 6]), e.input('w', 'float32', [8, 6, 3, 3])];
  const y = e.emit('Tanh', [e.emit('Conv', [x, w], { kernel_shape: ints([3, 3]) })]);
  return e.build('convolution', [y]);
}

/** What a graph's only output is for made-up inputs, and the detours that were reported. */
async function computed(
  runtime: OnnxRuntime,
  graph: Graph,
): Promise<{ readonly values: readonly number[]; readonly detours: readonly string[] }> {
  const detours: string[] = [];
  const engine = await createGpuEngine(runtime, {
    name: 'a test',
    onDetour: (kernel, fault) => detours.push(`${kernel}: ${fault}`),
  });
  const executable = await engine.compile(graph);
  const feeds = graph.inputs.map(({ name, shape }) => {
    const count = (shape as readonly number[]).reduce((product, size) => product * size, 1);
    const values = Array.from({ length: count }, (_, index) => Math.sin(index) / 4);
    return [name, engine.upload(tensor('float32', shape as readonly number[], values))] as const;
  });
  const results = executable.run(Object.fromEntries(feeds));
  const output = defined(graph.outputs[0], 'an output').name;
  const values = toNumbers(await engine.take(defined(results[output], output)));
  await engine.close();
  return { values, detours };
}

/** The runtime, whose GPU takes another operator of four letters for `Tanh` where it is not told to leave it alone. */
function planted(runtime: OnnxRuntime, instead: string): OnnxRuntime {
  const [right, wrong] = [Buffer.from('\x22\x04Tanh', 'latin1'), Buffer.from(`\x22\x04${instead}`, 'latin1')];
  return {
    Tensor: runtime.Tensor,
    InferenceSession: {
      create(model, given) {
        const [first] = given['executionProviders'] as readonly unknown[];
        const isTrusted = typeof first === 'object' && first !== null && !('forceCpuNodeNames' in first);
        const bytes = Buffer.from(model);
        const place = isTrusted ? bytes.indexOf(right) : -1;
        if (place >= 0) wrong.copy(bytes, place);
        return runtime.InferenceSession.create(new Uint8Array(bytes), given);
      },
    },
  };
}

test('a wrong kernel is found, named and computed on the CPU; so is one that is refused', options, async () => {
  const runtime = await load();
  const right = await computed(runtime, convolution());
  assert.deepEqual(right.detours, []);
  for (const [instead, fault] of [
    ['Sinh', 'wrong'],
    ['Nope', 'refused'],
  ] as const) {
    const { values, detours } = await computed(planted(runtime, instead), convolution());
    assert.deepEqual(detours, [`Tanh 1x8x4x4: ${fault}`]);
    values.forEach((value, index) => {
      assert.ok(Math.abs(value - (right.values[index] as number)) < 1e-5, `element ${index}: ${value}`);
    });
  }
});

test('the runtime computes nodes on the CPU that it is told to', options, async () => {
  const runtime = await load();
  const e = new Emitter();
  const inputs = [
    e.input('x', 'float32', [2, 1]),
    ...['s', 'b', 'm', 'v'].map((name) => e.input(name, 'float32', [1])),
  ];
  const [y = ''] = e.emitAll('BatchNormalization', inputs, 3, { training_mode: int(1) });
  const graph = e.build('normalization', [y]);
  const run = async (more: object): Promise<readonly number[]> => {
    const provider = { name: 'webgpu', preferredLayout: 'NCHW', ...more };
    const session = await runtime.InferenceSession.create(exportGraph(graph), {
      ...{ executionProviders: [provider, 'cpu'], logSeverityLevel: 4 },
    });
    const ones = ['s', 'b', 'm', 'v'].map((name) => [name, new runtime.Tensor('float32', Float32Array.of(1), [1])]);
    const x = new runtime.Tensor('float32', Float32Array.of(3, 5), [2, 1]);
    const results = await session.run({ x, ...Object.fromEntries(ones) }, [y]);
    return Array.from(defined(results[y], y).data as Float32Array, (value) => Math.round(value));
  };
  // The GPU's provider claims this node and then refuses it: the reason why it is written out.
  await assert.rejects(run({}));
  assert.deepEqual(await run({ forceCpuNodeNames: [defined(graph.nodes[0], 'the node').name] }), [0, 2]);
});
