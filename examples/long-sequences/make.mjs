// Makes the example's models and data: a recurrent net with 512 states that reads handwritten digits in 196 steps of
// four pixels, as one time step (cell.onnx) and unrolled (unrolled.onnx), with the same weights.
// Usage: node make.mjs [FOLDER [SEQUENCES [STEPS]]]

import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { exportGraph, GraphBuilder, tensor } from '../../dist/index.js';
import { loadDataset } from '../../dist/node.js';

const [features, states] = [4, 512];
const [folder = '.', sequenceCount = '2048', stepCount = '196'] = process.argv.slice(2);
const [count, steps] = [Number(sequenceCount), Number(stepCount)];

/** h' = tanh(W x + U h + b), y = V h' + c: one step, or all, with the logits of the last. */
function net(isUnrolled) {
  const b = new GraphBuilder('recurrent', { seed: 1 });
  const input = b.input('x', 'float32', isUnrolled ? ['N', steps, features] : ['N', features]);
  const parameter = (name, shape, bound) => b.parameter(name, shape, { kind: 'uniform', bound });
  const weights = parameter('reads.weight', [features, states], 0.5);
  const recurrent = parameter('cell.weight', [states, states], 1 / Math.sqrt(states));
  const bias = parameter('cell.bias', [states], 0.01);
  const next = (x, h) => b.tanh(b.node('Gemm', [x, weights, b.node('Gemm', [h, recurrent, bias])]));
  const at = (step) => b.node('Gather', [input, b.constant(tensor('int64', [], [step]))], { axis: axisOne });
  let h = isUnrolled ? b.tanh(b.node('Gemm', [at(0), weights, bias])) : next(input, b.input('h', 'float32', ['N', states]));
  if (isUnrolled) for (let step = 1; step < steps; step++) h = next(at(step), h);
  const y = b.linear(h, { name: 'head', outFeatures: 10 });
  return named(b.build(isUnrolled ? [y] : [y, h]), new Map([[h, isUnrolled ? h : 'h_next']]));
}

const axisOne = { type: 'int', value: 1 };

/** The graph with values called otherwise. */
function named(graph, names) {
  const rename = (value) => names.get(value) ?? value;
  const nodes = graph.nodes.map((node) => ({
    ...node,
    inputs: node.inputs.map(rename),
    outputs: node.outputs.map(rename),
  }));
  return { ...graph, nodes, outputs: graph.outputs.map((output) => ({ ...output, name: rename(output.name) })) };
}

function npy(descr, shape, data) {
  const text = `{'descr': '${descr}', 'fortran_order': False, 'shape': (${shape.join(', ')},), }`;
  const header = `${text.padEnd(Math.ceil((text.length + 11) / 64) * 64 - 11)}\n`;
  const head = Buffer.from([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, header.length & 255, header.length >> 8]);
  return Buffer.concat([head, Buffer.from(header, 'latin1'), Buffer.from(data.buffer, data.byteOffset, data.byteLength)]);
}

mkdirSync(folder, { recursive: true });
const { train } = await loadDataset('mnist');
const { values, divisor } = train.inputs[0];
const pixels = Float32Array.from(values.data.subarray(0, count * 784), (value) => value / divisor);
const used = Float32Array.from({ length: count * steps * features }, (_, index) => {
  const [sequence, place] = [Math.floor(index / (steps * features)), index % (steps * features)];
  return pixels[sequence * 784 + place];
});
const labels = BigInt64Array.from({ length: count }, (_, index) => BigInt(train.labels.values.data[index]));
const files = {
  'cell.onnx': exportGraph(net(false)),
  'unrolled.onnx': exportGraph(net(true)),
  'steps.npy': npy('<f4', [count, steps, features], used),
  'labels.npy': npy('<i8', [count], labels),
  'small.yaml': 'devices:\n  - { name: worker-1, memoryMiB: 20, cores: 1 }\nlinks: { default: { bandwidthMbps: 100 } }\n',
};
for (const [name, bytes] of Object.entries(files)) writeFileSync(join(folder, name), bytes);
