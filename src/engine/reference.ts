// The slow, obvious engine: it runs a graph node by node through the operators' own definitions. No dependencies; the
// oracle for the others, and the way to train without ONNX Runtime. It blocks the thread that it computes in.

import { assert, defined } from '../assert.ts';
import { RunError } from '../errors.ts';
import type { Graph, Node } from '../graph/graph.ts';
import { isOperator, operators } from '../graph/operators/index.ts';
import { refuseUnsupported } from '../graph/static.ts';
import type { ElementArray, Tensor } from '../graph/tensor.ts';
import { fillsBuffer } from './buffers.ts';
import type { Engine } from './engine.ts';
import { type Backend, createQueuedEngine } from './queued.ts';

const backend: Backend = {
  name: 'reference (1 thread)',
  async compile(graph) {
    refuseUnsupported(graph.nodes);
    const steps = schedule(graph);
    return {
      run: async (inputs: readonly Tensor[], wanted) => evaluate(graph, steps, inputs, wanted),
      release: async () => {},
    };
  },
};

/** An engine over the operators' definitions. `compile` throws InputError for operators that Asteroid does not know. */
export function createReferenceEngine(): Engine {
  return createQueuedEngine(backend);
}

/** A node, and the values that no later node and no output needs. */
interface Step {
  readonly node: Node;
  readonly dead: readonly string[];
}

function schedule({ nodes, outputs }: Graph): Step[] {
  const needed = new Set(outputs.map(({ name }) => name));
  const steps: Step[] = [];
  for (const node of [...nodes].reverse()) {
    const dead = [...new Set([...node.inputs, ...node.outputs])].filter((name) => name !== '' && !needed.has(name));
    for (const name of node.inputs) needed.add(name);
    steps.push({ node, dead });
  }
  return steps.reverse();
}

function evaluate(
  graph: Graph,
  steps: readonly Step[],
  inputs: readonly Tensor[],
  wanted: readonly string[],
): Tensor[] {
  const values = new Map(graph.initializers);
  const foreign = new Set<unknown>([...graph.initializers.values(), ...inputs].map(({ data }) => data.buffer));
  graph.inputs.forEach(({ name }, index) => {
    values.set(name, defined(inputs[index], `input "${name}"`));
  });
  for (const { node, dead } of steps) {
    const results = evaluateNode(graph, node, values);
    node.outputs.forEach((name, index) => {
      if (name !== '') values.set(name, defined(results[index], `output ${index} of node "${node.name}"`));
    });
    for (const attribute of Object.values(node.attributes))
      if (attribute.type === 'tensor') foreign.add(attribute.value.data.buffer);
    for (const name of dead) values.delete(name);
  }
  return wanted.map((name) => own(defined(values.get(name), `output "${name}"`), foreign));
}

function evaluateNode({ name }: Graph, node: Node, values: ReadonlyMap<string, Tensor>): readonly Tensor[] {
  assert(isOperator(node.operator), `operator ${node.operator} was not refused`);
  const inputs = node.inputs.map((input) =>
    input === '' ? undefined : defined(values.get(input), `value "${input}"`),
  );
  try {
    return operators[node.operator].evaluate(node, inputs);
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    throw new RunError(`Graph "${name}" failed at node "${node.name}" (${node.operator}): ${reason}`, { cause: error });
  }
}

/**
 * The tensor with a buffer of its own: an operator that only reshapes returns its input's, and two outputs may be the
 * same array.
 */
function own(value: Tensor, taken: Set<unknown>): Tensor {
  const data =
    taken.has(value.data.buffer) || !fillsBuffer(value.data) ? (value.data.slice() as ElementArray) : value.data;
  taken.add(data.buffer);
  return { ...value, data };
}
