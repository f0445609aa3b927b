import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Emitter } from '../graph/emitter.ts';
import { evaluateGraph } from '../graph/evaluate.ts';
import type { Graph } from '../graph/graph.ts';
import { type Tensor, tensor, wrap } from '../graph/tensor.ts';
import { randomGraph } from '../testing/random-graph.ts';
import { peelReshapes } from './border-reshapes.ts';

interface Drawn {
  readonly inputs: Readonly<Record<string, readonly (number | string)[]>>;
  readonly nodes: readonly string[];
  readonly outputs: Readonly<Record<string, readonly (number | string)[]>>;
}

/** What is left of a graph, short enough to write down. */
function drawn({ inputs, nodes, outputs }: Graph): Drawn {
  const shapes = (values: Graph['inputs']): Drawn['inputs'] =>
    Object.fromEntries(values.map(({ name, shape }) => [name, shape]));
  return { inputs: shapes(inputs), nodes: nodes.map(({ operator }) => operator), outputs: shapes(outputs) };
}

function named(emitter: Emitter, output: string, operator: string, inputs: readonly string[]): string {
  emitter.append({ operator, domain: '', name: output, inputs, outputs: [output], attributes: {} });
  return output;
}

test('an input that is only reshaped arrives in its new shape, and a reshaped result leaves before', () => {
  const e = new Emitter();
  const x = e.input('x', 'float32', [2, 3]);
  const negative = named(e, 'negative', 'Neg', [e.emit('Reshape', [x, e.int64s([1, -1])])]);
  const { graph, inside } = peelReshapes(e.build('rows', [named(e, 'y', 'Reshape', [negative, e.int64s([3, 2])])]));
  assert.deepEqual(drawn(graph), { inputs: { x: [1, 6] }, nodes: ['Neg'], outputs: { negative: [1, 6] } });
  assert.deepEqual([...inside], [['y', 'negative']]);
});

test('several reshapes to one shape are one; to two shapes they stay', () => {
  const e = new Emitter();
  const x = e.input('x', 'float32', [2, 3]);
  const z = e.input('z', 'float32', [2, 3]);
  const flat = (value: string, shape: readonly number[]): string => e.emit('Reshape', [value, e.int64s(shape)]);
  const sum = named(e, 'sum', 'Add', [flat(x, [6]), flat(x, [-1])]);
  const other = named(e, 'other', 'MatMul', [flat(z, [3, 2]), flat(z, [0, 3])]);
  const { graph } = peelReshapes(e.build('many', [sum, other]));
  assert.deepEqual(drawn(graph), {
    inputs: { x: [6], z: [2, 3] },
    nodes: ['Add', 'Reshape', 'Reshape', 'MatMul'],
    outputs: { sum: [6], other: [3, 3] },
  });
});

test('a result reshaped several times leaves before the first reshape, or after the last one read elsewhere', () => {
  const e = new Emitter();
  const x = e.input('x', 'float32', [2, 3]);
  const reshaped = (name: string, value: string, shape: readonly number[]): string =>
    named(e, name, 'Reshape', [value, e.int64s(shape)]);
  const a = reshaped('a', reshaped('a2', reshaped('a1', named(e, 'sine', 'Sin', [x]), [6]), [1, 6]), [3, 2]);
  // What is read twice stays, and what is behind it.
  const b1 = reshaped('b1', named(e, 'cosine', 'Cos', [x]), [6]);
  const b = reshaped('b', reshaped('b2', b1, [1, 6]), [3, 2]);
  const c = named(e, 'c', 'Neg', [b1]);
  // Reshapes of an input or an output stay, all but those after the first.
  const d = reshaped('d', reshaped('d1', x, [6]), [3, 2]);
  const f = reshaped('f', reshaped('f1', c, [1, 6]), [3, 2]);
  const graph = e.build('rows', [a, b, c, d, f]);
  const peeled = peelReshapes(graph);
  assert.deepEqual(
    [...peeled.inside],
    [
      ['a', 'sine'],
      ['b', 'b1'],
      ['c', 'c'],
      ['d', 'd1'],
      ['f', 'f1'],
    ],
  );
  const values = new Map([
    [
      'x',
      wrap(
        'float32',
        [2, 3],
        Float32Array.from({ length: 6 }, (_, index) => index - 2),
      ),
    ],
  ]);
  const [plain, inside] = [evaluateGraph(graph, values), evaluateGraph(peeled.graph, values)];
  for (const [name, within] of peeled.inside) assert.deepEqual(inside.get(within)?.data, plain.get(name)?.data, name);
});

test('what is an output too, a reshaped input, and a result that is read again stay as they are', () => {
  const e = new Emitter();
  const x = e.input('x', 'float32', [2, 3]);
  const row = named(e, 'row', 'Reshape', [x, e.int64s([6])]);
  const negative = named(e, 'negative', 'Neg', [x]);
  const flat = named(e, 'flat', 'Reshape', [negative, e.int64s([6])]);
  const twice = named(e, 'twice', 'Reshape', [named(e, 'sine', 'Sin', [flat]), e.int64s([3, 2])]);
  const again = named(e, 'again', 'Reshape', ['sine', e.int64s([1, 6])]);
  const graph = e.build('kept', [x, row, negative, flat, twice, again]);
  const peeled = peelReshapes(graph);
  // Only one of the two reshapes of "sine" can go: the two outputs are arrays of their own.
  assert.deepEqual(drawn(peeled.graph), {
    inputs: { x: [2, 3] },
    nodes: ['Reshape', 'Neg', 'Reshape', 'Sin', 'Reshape'],
    outputs: { x: [2, 3], row: [6], negative: [2, 3], flat: [6], sine: [6], again: [1, 6] },
  });
  assert.equal(peeled.inside.get('twice'), 'sine');
});

test('behind an operator of another domain types are not known, and reshapes stay', () => {
  const e = new Emitter();
  const x = e.input('x', 'float32', [2, 3]);
  const node = { operator: 'Mystery', domain: 'example', name: 'mystery', inputs: [x], outputs: ['m'], attributes: {} };
  e.appendTyped(node, [{ type: 'float32', shape: [2, 3] }]);
  const graph = e.build('mystery', [named(e, 'y', 'Reshape', ['m', e.int64s([6])])]);
  assert.deepEqual(peelReshapes(graph), { graph, inside: new Map([['y', 'y']]) });
});

test('random graphs with reshapes all around compute the same', () => {
  for (let seed = 0; seed < 100; seed++) {
    const { graph, inputs } = randomGraph(seed);
    const expected = evaluateGraph(graph, inputs);
    const { graph: wrapped, inputs: flatInputs } = wrapWithReshapes(graph, inputs);
    const peeled = peelReshapes(wrapped);
    const feeds = new Map(
      peeled.graph.inputs.map(({ name, shape }) => [
        name,
        { ...(flatInputs.get(name) as Tensor), shape: shape as number[] },
      ]),
    );
    const results = evaluateGraph(peeled.graph, feeds);
    for (const [name, value] of expected) {
      const result = results.get(peeled.inside.get(`flat ${name}`) as string) as Tensor;
      assert.deepEqual(wrap(value.type, value.shape, result.data), value, `seed ${seed}, ${name}`);
    }
  }
});

/** The graph with inputs that are vectors, reshaped first, and outputs reshaped to vectors. */
function wrapWithReshapes(
  graph: Graph,
  inputs: ReadonlyMap<string, Tensor>,
): { graph: Graph; inputs: ReadonlyMap<string, Tensor> } {
  const initializers = new Map(graph.initializers);
  const shapeOf = (name: string, shape: readonly number[]): string => {
    initializers.set(`shape of ${name}`, tensor('int64', [shape.length], shape));
    return `shape of ${name}`;
  };
  const reshape = (from: string, to: string, shape: readonly number[]): Graph['nodes'][number] => ({
    operator: 'Reshape',
    domain: '',
    name: `reshape to ${to}`,
    inputs: [from, shapeOf(to, shape)],
    outputs: [to],
    attributes: {},
  });
  const before = graph.inputs.map(({ name, shape }) => reshape(`flat ${name}`, name, shape as number[]));
  const after = graph.outputs
    .filter(({ name }) => !inputs.has(name))
    .map(({ name }) => reshape(name, `flat ${name}`, [-1]));
  const outputs = graph.outputs.map(({ name, type, shape }) => ({
    name: `flat ${name}`,
    type,
    shape: [(shape as number[]).reduce((product, size) => product * size, 1)],
  }));
  const flat = Array.from(
    inputs,
    ([name, value]) => [`flat ${name}`, { ...value, shape: [value.data.length] }] as const,
  );
  return {
    graph: {
      ...graph,
      initializers,
      inputs: graph.inputs.map((input) => ({
        ...input,
        name: `flat ${input.name}`,
        shape: [inputs.get(input.name)?.data.length as number],
      })),
      nodes: [...before, ...graph.nodes, ...after],
      outputs,
    },
    inputs: new Map(flat),
  };
}
