// Runs a graph once on an engine, for tests that want values and nothing else.

import { defined } from '../assert.ts';
import type { Engine } from '../engine/engine.ts';
import type { Graph } from '../graph/graph.ts';
import type { ElementArray, Tensor } from '../graph/tensor.ts';

/** The graph's outputs for these inputs, which stay the caller's. */
export async function runGraph(
  engine: Engine,
  graph: Graph,
  inputs: Readonly<Record<string, Tensor>>,
): Promise<Record<string, Tensor>> {
  const executable = await engine.compile(graph);
  const feeds = executable.inputs.map((name) => {
    const value = defined(inputs[name], `input "${name}"`);
    return [name, engine.upload({ ...value, data: value.data.slice() as ElementArray })] as const;
  });
  const results = executable.run(Object.fromEntries(feeds));
  executable.release();
  for (const [, value] of feeds) engine.release(value);
  const taken = Object.entries(results).map(async ([name, value]) => [name, await engine.take(value)] as const);
  return Object.fromEntries(await Promise.all(taken));
}
