// An engine that computes nothing and whose times are known, for tests of what measures.

import assert from 'node:assert/strict';
import { defined } from '../assert.ts';
import type { Engine, Executable, Value } from '../engine/engine.ts';
import type { Graph } from '../graph/graph.ts';
import { allocate, elementCount } from '../graph/tensor.ts';

/** An engine on which every run takes 1 ms, and 1/8 ms for each node and sample. */
export interface FakeEngine extends Engine {
  readonly compiled: Graph[];
  readonly runCount: number;
  /** Values that are alive. */
  readonly valueCount: number;
}

export function createFakeEngine(): FakeEngine {
  const compiled: Graph[] = [];
  const alive = new Set<number>();
  let [busyMs, handle, runCount] = [0, 0, 0];
  const value = (type: Value['type'], shape: readonly number[]): Value => {
    alive.add(handle);
    return { type, shape, handle: handle++ };
  };
  return {
    name: 'fake',
    blockSize: undefined,
    compiled,
    get runCount() {
      return runCount;
    },
    get valueCount() {
      return alive.size;
    },
    async compile(graph): Promise<Executable> {
      assert.ok('nodes' in graph, 'a translation');
      compiled.push(graph);
      const batchSize = (graph.inputs[0]?.shape[0] ?? 1) as number; // a scalar has none
      return {
        inputs: graph.inputs.map(({ name }) => name),
        outputs: graph.outputs.map(({ name }) => name),
        run(inputs, _, replaced = {}) {
          for (const { handle } of Object.values(inputs)) assert.ok(alive.has(handle));
          for (const name of Object.values(replaced)) assert.ok(alive.delete(defined(inputs[name], name).handle));
          runCount++;
          busyMs += 1 + (graph.nodes.length * batchSize) / 8;
          return Object.fromEntries(
            graph.outputs.map(({ name, type, shape }) => [name, value(type, shape as number[])]),
          );
        },
        release: () => {},
      };
    },
    upload: ({ type, shape }) => value(type, shape),
    draw: (shape) => value('float32', shape),
    download: async ({ type, shape }) => ({ type, shape, data: allocate(type, elementCount(shape)) }),
    take: async ({ type, shape, handle }) => {
      assert.ok(alive.delete(handle), 'taken twice');
      return { type, shape, data: allocate(type, elementCount(shape)) };
    },
    release: ({ handle }) => assert.ok(alive.delete(handle), 'released twice'),
    trim: () => {},
    computed: () => Promise.resolve(0),
    settled: async () => {},
    valueBytes: () => 0,
    busyMs: () => busyMs,
    close: async () => {},
  };
}
