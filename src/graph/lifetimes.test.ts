import assert from 'node:assert/strict';
import { test } from 'node:test';
import { randomGraph } from '../testing/random-graph.ts';
import { Emitter } from './emitter.ts';
import type { Graph } from './graph.ts';
import { type MemoryModel, memoryUse, plainMemory } from './lifetimes.ts';
import { isOperator, operators } from './operators/index.ts';
import type { Tensor, ValueType } from './tensor.ts';

/**
 * x [10] ─Exp─▶ a ─Neg─▶ b ─Reshape─▶ c ─Concat(c, c)─▶ d [20] ─ReduceSum─▶ e, with a read once more at the end: f = a
 * · e.
 */
function chain(): Graph {
  const emitter = new Emitter();
  const x = emitter.input('x', 'float32', [10]);
  const node = (operator: string, inputs: readonly string[], name: string, attributes = {}): string => {
    emitter.append({ operator, domain: '', name: `node ${name}`, inputs, outputs: [name], attributes });
    return name;
  };
  const a = node('Exp', [x], 'a');
  const b = node('Neg', [a], 'b');
  const c = node('Reshape', [b, emitter.int64s([1, 10])], 'c');
  const d = node('Concat', [c, c], 'd', { axis: { type: 'int', value: 0 } });
  const e = node('ReduceSum', [d, emitter.int64s([0, 1])], 'e', { keepdims: { type: 'int', value: 0 } });
  return emitter.build('chain', [node('Mul', [a, e], 'f')]);
}

test('values live from the node that computes them to their last reader, storage as long as its views', () => {
  // alive, in floats:  a 10 | a b 20 | a b(c) 20 | a b(c) d 40 | a d e 31 | a e f 21
  assert.deepEqual(memoryUse(chain()), {
    peakBytes: 160,
    peakNode: 'node d',
    alive: [
      { name: 'a', bytes: 40 },
      { name: 'b', bytes: 40 },
      { name: 'd', bytes: 80 },
    ],
    outputBytes: 40,
  });
});

test('an operator that works in place takes over memory only if nothing else needs it', () => {
  const inPlace: MemoryModel = {
    ...plainMemory,
    shares: (node) => (node.operator === 'Neg' ? { how: 'in-place', input: 0 } : plainMemory.shares(node)),
  };
  // a is read again: Neg needs memory of its own.
  assert.equal(memoryUse(chain(), inPlace).peakBytes, 160);
  const emitter = new Emitter();
  const x = emitter.input('x', 'float32', [10]);
  const y = emitter.emit('Exp', [emitter.emit('Neg', [emitter.emit('Exp', [emitter.emit('Neg', [x])])])]);
  // Neg of the input copies (40), Exp copies (80), Neg in place (40), Exp copies into the output (80)
  assert.equal(memoryUse(emitter.build('line', [y])).peakBytes, 80);
  assert.equal(memoryUse(emitter.build('line', [y]), inPlace).peakBytes, 80);
  const z = emitter.emit('Tanh', [emitter.emit('Neg', [emitter.emit('Neg', [y])])]);
  assert.equal(memoryUse(emitter.build('longer', [z]), inPlace).peakBytes, 80);
});

test('workspace counts while its node runs, and outputs stay', () => {
  const greedy: MemoryModel = {
    ...plainMemory,
    workspaceBytes: ({ operator }) => (operator === 'ReduceSum' ? 1000 : 0),
  };
  const use = memoryUse(chain(), greedy);
  assert.deepEqual([use.peakBytes, use.peakNode], [1000 + 124, 'node e']);
});

test('an engine that reuses dead memory of the same shape keeps that memory in between', () => {
  const emitter = new Emitter();
  const x = emitter.input('x', 'float32', [10]);
  const wide = emitter.emit('Concat', [emitter.emit('Exp', [emitter.emit('Neg', [x])]), x, x], {
    axis: { type: 'int', value: 0 },
  });
  const total = emitter.emit('ReduceSum', [wide, emitter.int64s([0])], { keepdims: { type: 'int', value: 0 } });
  const graph = emitter.build('dead', [emitter.emit('Tanh', [emitter.emit('Mul', [x, total])])]);
  // Neg 40 | Neg Exp 80 | Exp Concat 160 | Concat sum 124 | sum Mul 44 | Mul Tanh 80
  assert.equal(memoryUse(graph).peakBytes, 160);
  // Mul goes into the memory of Exp, the last to die, which is kept during Concat and the sum
  assert.equal(memoryUse(graph, { ...plainMemory, reusesDead: true }).peakBytes, 164);
});

/**
 * Bytes at each step by the definition: a value is alive from its node on while it is an output, or a later node reads
 * it or a view of it.
 */
function definition(
  graph: Graph,
  types: ReadonlyMap<string, ValueType>,
  sizes: (name: string) => number,
): { peak: number; end: number } {
  const outputs = new Set(graph.outputs.map(({ name }) => name));
  const made = graph.nodes.flatMap((node, index) =>
    node.outputs.filter((name) => name !== '').map((name) => ({ name, node, index })),
  );
  const isView = (name: string): boolean => {
    const maker = made.find((value) => value.name === name);
    return maker !== undefined && plainMemory.shares(maker.node) !== undefined && !outputs.has(name);
  };
  const base = (name: string): string =>
    isView(name) ? base(made.find((value) => value.name === name)?.node.inputs[0] as string) : name;
  const lastRead = (name: string): number =>
    Math.max(
      -1,
      ...graph.nodes.flatMap(({ inputs }, index) => (inputs.some((input) => base(input) === name) ? [index] : [])),
    );
  const alive = (step: number): number =>
    made
      .filter(
        ({ name, index }) =>
          !isView(name) && index <= step && (outputs.has(name) || index === step || lastRead(name) >= step),
      )
      .reduce((sum, { name }) => sum + sizes(name), 0);
  assert.ok(made.every(({ name }) => types.has(name)));
  const steps = graph.nodes.map((_, step) => alive(step));
  return {
    peak: Math.max(0, ...steps),
    end: made.filter(({ name }) => outputs.has(name)).reduce((sum, { name }) => sum + sizes(name), 0),
  };
}

test('on random graphs the bytes equal those of the reference kernels, by the definition', () => {
  for (let seed = 0; seed < 80; seed++) {
    const { graph, inputs } = randomGraph(seed, 20);
    const values = new Map<string, Tensor>([...graph.initializers, ...inputs]);
    for (const node of graph.nodes) {
      assert.ok(isOperator(node.operator));
      const results = operators[node.operator].evaluate(
        node,
        node.inputs.map((name) => values.get(name)),
      );
      node.outputs.forEach((name, index) => {
        if (name !== '') values.set(name, results[index] as Tensor);
      });
    }
    const { peak, end } = definition(graph, values, (name) => (values.get(name) as Tensor).data.byteLength);
    const use = memoryUse(graph);
    assert.deepEqual([use.peakBytes, use.outputBytes], [peak, end], `random graph ${seed}`);
    assert.ok(use.alive.reduce((sum, { bytes }) => sum + bytes, 0) === peak, `random graph ${seed}`);
  }
});
