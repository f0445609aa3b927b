import assert from 'node:assert/strict';
import { test } from 'node:test';
import { differentiate } from '../autodiff/differentiate.ts';
import { Emitter } from '../graph/emitter.ts';
import { inferTypes } from '../graph/infer-types.ts';
import { instantiate } from '../graph/static.ts';
import type { ValueType } from '../graph/tensor.ts';
import { lowerPass } from '../lowering/blocked.ts';
import { buildModel } from '../models/zoo.ts';
import { blockedType } from './blocked-types.ts';
import { runMemory } from './onnxruntime-memory.ts';

/** Neg copies, Relu works in place, outputs have memory of their own from the beginning. */
test('the peak of a run is in its nodes, or in copying outputs that cannot be written in place', () => {
  const emitter = new Emitter();
  const x = emitter.input('x', 'float32', [2, 3, 4]);
  const y = emitter.emit('Tanh', [emitter.emit('Relu', [emitter.emit('Neg', [x])])]);
  const sum = emitter.emit('ReduceSum', [y]);
  // Neg 96, Relu and Tanh in its place, the sum 4
  assert.deepEqual(runMemory(emitter.build('sum', [sum])), {
    peakBytes: 100,
    peakNode: 'Neg_0',
    alive: [
      { name: 'Neg_0', bytes: 96 },
      { name: 'ReduceSum_3', bytes: 4 },
    ],
    outputBytes: 4,
    copiedBytes: 0,
    runBytes: 100,
  });
  // Neg 96 and the output 96
  const both = runMemory(emitter.build('both', [y]));
  assert.deepEqual([both.peakBytes, both.outputBytes, both.copiedBytes, both.runBytes], [192, 96, 0, 192]);
  // x leaves too, so that outputs are copied: the outputs 100, twice
  const copied = runMemory(emitter.build('copied', [x, y, sum]));
  assert.deepEqual([copied.peakBytes, copied.outputBytes, copied.copiedBytes, copied.runBytes], [192, 100, 200, 200]);
  // Neg 96 and both outputs 100, one of which is made last
  assert.equal(runMemory(emitter.build('given', [y, sum])).runBytes, 196);
});

test('a transposed convolution also needs the columns of one image', () => {
  const emitter = new Emitter();
  const x = emitter.input('x', 'float32', [2, 3, 4, 5]);
  const w = emitter.input('w', 'float32', [3, 6, 2, 2]);
  const y = emitter.emit('ConvTranspose', [x, w]);
  assert.equal(runMemory(emitter.build('transposed', [y])).peakBytes, 4 * (2 * 6 * 5 * 6 + 6 * 2 * 2 * 4 * 5));
});

test('the types of blocked values are those that lowering gave them', () => {
  const emitted: ((name: string) => ValueType)[] = [];
  const graphs = differentiate(instantiate(buildModel('mobilenetv2:input=32', { initialize: false }).graph, 2), {
    inputs: [],
    lower: (pass) => {
      const lowered = lowerPass(pass, { block: 8 });
      emitted.push((name) => lowered.emitter.type(name));
      return lowered;
    },
  });
  let blockedCount = 0;
  for (const graph of [graphs.forward, graphs.backward]) {
    const types = inferTypes(graph, (node, inputs) => blockedType(node, inputs, 8));
    for (const { domain, outputs } of graph.nodes) {
      if (domain === '') continue;
      blockedCount++;
      assert.deepEqual(types.get(outputs[0] as string)?.shape, emitted[0]?.(outputs[0] as string).shape, outputs[0]);
    }
    assert.ok(runMemory(graph, 8).peakBytes > 0);
  }
  assert.ok(blockedCount > 300, `${blockedCount}`);
});
