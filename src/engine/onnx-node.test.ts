// ONNX's own tests of single operators, on the reference kernels and on ONNX Runtime. Nothing is skipped silently: the
// numbers of tests that are claimed, and that the runtime cannot run, are asserted.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { defined } from '../assert.ts';
import { InputError } from '../errors.ts';
import { sameShape, type Tensor } from '../graph/tensor.ts';
import { evaluateGraph } from '../testing/evaluate-graph.ts';
import {
  difference,
  excludedTests,
  feedsOf,
  findNodeTests,
  type NodeTest,
  nodeTestCounts,
  nodeTestsMissing,
  notInOnnxRuntime,
  staticTestGraph,
} from '../testing/onnx-node-tests.ts';
import { runOnEngine } from '../testing/onnxruntime-check.ts';
import { createOnnxRuntimeNodeEngine } from './node/onnxruntime-node.ts';

const missing = nodeTestsMissing();
const found = missing === undefined ? findNodeTests() : [];
const claimed = found.flatMap((one) => ('test' in one ? [one.test] : []));

test('the tests that are claimed, and those that are not, are counted', { skip: missing }, () => {
  const reasons: Record<string, number> = {};
  for (const one of found) if ('reason' in one) reasons[one.reason] = (reasons[one.reason] ?? 0) + 1;
  assert.deepEqual({ all: found.length, claimed: claimed.length, notClaimed: reasons }, nodeTestCounts);
  for (const name of Object.keys(excludedTests))
    assert.ok(
      found.some((one) => one.name === name),
      `there is no ${name}`,
    );
});

test('the reference kernels pass every claimed test', { skip: missing }, () => {
  const failures = claimed.flatMap((one) => {
    const outputs = evaluateGraph(one.graph, feedsOf(one));
    return complaints(one, (name) => outputs.get(name));
  });
  assert.deepEqual(failures, []);
});

test('the inferred types are those of the expected outputs', { skip: missing }, () => {
  const failures = claimed.flatMap((one) =>
    staticTestGraph(one).outputs.flatMap((output, index) => {
      const expected = defined(one.outputs[index], output.name);
      return output.type === expected.type && sameShape(output.shape as readonly number[], expected.shape)
        ? []
        : [`${one.name}: ${output.type}[${output.shape}] is not ${expected.type}[${expected.shape}]`];
    }),
  );
  assert.deepEqual(failures, []);
});

test('ONNX Runtime passes every claimed test that it has kernels for', async (context) => {
  const skip = missing ?? (await runtimeMissing());
  if (skip !== undefined) return context.skip(skip);
  const engine = await createOnnxRuntimeNodeEngine();
  const failures: string[] = [];
  const notImplemented: string[] = [];
  let computedCount = 0;
  for (const one of claimed) {
    const graph = staticTestGraph(one);
    // The others follow from constants alone (Constant, Range, Shape, ...) and were folded by the reference kernels.
    if (graph.nodes.length > 0) computedCount++;
    try {
      const outputs = await runOnEngine(engine, graph, feedsOf(one));
      failures.push(...complaints(one, (name) => outputs.get(name)));
    } catch (error) {
      if (!(error instanceof InputError) || !error.message.includes('Could not find an implementation for'))
        throw error;
      notImplemented.push(one.name);
    }
  }
  await engine.close();
  assert.deepEqual(failures, []);
  assert.deepEqual(notImplemented, notInOnnxRuntime);
  assert.deepEqual({ claimed: claimed.length, computedCount }, { claimed: nodeTestCounts.claimed, computedCount: 787 });
});

/** Why ONNX Runtime cannot run here, or undefined where it can. */
async function runtimeMissing(): Promise<string | undefined> {
  try {
    await import('onnxruntime-node');
    return undefined;
  } catch (error) {
    return `onnxruntime-node does not load: ${String(error)}`;
  }
}

function complaints(one: NodeTest, output: (name: string) => Tensor | undefined): readonly string[] {
  return one.graph.outputs.flatMap(({ name }, index) => {
    const problem = difference(output(name), defined(one.outputs[index], name), one);
    return problem === undefined ? [] : [`${one.name}: ${name} ${problem}`];
  });
}
