// Small rewrites that ONNX Runtime would make too: transposes go into the neighbouring matrix products, which read
// either factor transposed at no cost, and of several reshapes in a row, or of one value to the same shape, one stays.
// Where it makes them itself, its new nodes run in another order than those that they replace (see
// onnxruntime-memory.ts).

import { type Graph, int, intAttribute, intsAttribute, type Node } from '../graph/graph.ts';
import { viewOperators } from '../graph/lifetimes.ts';
import { neededNodes } from '../graph/liveness.ts';
import { type Tensor, toNumbers } from '../graph/tensor.ts';

/**
 * The same computation with Gemm(Aᵀ, B) for Gemm(Transpose(A), B), Gemm(Bᵀ, Aᵀ) for Transpose(Gemm(A, B)), Reshape(x)
 * for Reshape(Reshape(x)), Reshape(f(x)) for Reshape(f(Reshape(x))), and one Reshape for those that do the same. Nodes
 * that nothing needs any more are left out.
 */
export function tidy(graph: Graph): Graph {
  const outputs = graph.outputs.map(({ name }) => name);
  const returned = new Set(outputs);
  const reads = new Map<string, number>(outputs.map((name) => [name, 1]));
  /** Values that nothing but a `Reshape` to a shape of its own reads. */
  const reshaped = new Set(graph.nodes.flatMap((node) => node.outputs));
  for (const name of outputs) reshaped.delete(name);
  for (const node of graph.nodes) {
    node.inputs.forEach((name, index) => {
      reads.set(name, (reads.get(name) ?? 0) + 1);
      if (index > 0 || !isAbsolute(node, graph)) reshaped.delete(name);
    });
  }
  const makers = new Map<string, Node>();
  const maker = (name: string | undefined): Node | undefined => makers.get(name as string);
  /** Other names of values. */
  const aliases = new Map<string, string>();
  const views = new Map<string, string>();
  const fold = (node: Node): Node => {
    if (node.domain !== '') return node;
    if (node.operator === 'Gemm') return withoutTransposes(node, maker);
    if (node.operator === 'Reshape') return withoutReshapes(node, maker, graph);
    if (reshaped.has(node.outputs[0] as string)) return beforeReshapes(node, maker, graph);
    const product = isTranspose(node) ? maker(node.inputs[0]) : undefined;
    const isAlone =
      product !== undefined &&
      isGemm(product) &&
      (product.inputs[2] ?? '') === '' &&
      reads.get(node.inputs[0] as string) === 1;
    return isAlone ? transposed(product, node) : node;
  };
  const nodes = graph.nodes.flatMap((original) => {
    const known = original.inputs.some((input) => aliases.has(input));
    const node = fold(
      known ? { ...original, inputs: original.inputs.map((input) => aliases.get(input) ?? input) } : original,
    );
    for (const output of node.outputs) makers.set(output, node);
    if (!isAbsolute(node, graph)) return [node];
    const output = node.outputs[0] as string;
    const key = `${node.inputs[0]}\0${toNumbers(graph.initializers.get(node.inputs[1] as string) as Tensor)}`;
    const view = views.get(key);
    if (view === undefined) views.set(key, output);
    if (view === undefined || returned.has(output)) return [node];
    aliases.set(output, view);
    return [];
  });
  return { ...graph, nodes: neededNodes(nodes, outputs) };
}

/** True for a `Reshape` to a known shape that does not depend on the shape before it (a 0 takes over a dimension). */
function isAbsolute(node: Node, { initializers }: Graph): boolean {
  const shape =
    node.operator === 'Reshape' && node.domain === '' ? initializers.get(node.inputs[1] as string) : undefined;
  return shape !== undefined && (!toNumbers(shape).includes(0) || intAttribute(node, 'allowzero', 0) !== 0);
}

/** Operators that work element by element on one value, or on one and a number. */
const elementwise = new Set([
  'Add',
  'Sub',
  'Mul',
  'Div',
  'Neg',
  'Relu',
  'Sigmoid',
  'Sqrt',
  'Reciprocal',
  'Abs',
  'Exp',
  'Log',
  'Tanh',
  'Erf',
]);

/** Whoever reads the result reshapes it anyway: reads what the views before it read. */
function beforeReshapes(node: Node, maker: (name: string) => Node | undefined, { initializers }: Graph): Node {
  if (!elementwise.has(node.operator)) return node;
  const isScalar = (name: string): boolean => initializers.get(name)?.shape.length === 0;
  const values = node.inputs.filter((name) => !isScalar(name));
  const view = values.length === 1 ? maker(values[0] as string) : undefined;
  if (view === undefined || !isView(view)) return node;
  return { ...node, inputs: node.inputs.map((name) => (name === values[0] ? (view.inputs[0] as string) : name)) };
}

/** Reads what the views before it read, where its own shape does not depend on theirs. */
function withoutReshapes(node: Node, maker: (name: string) => Node | undefined, graph: Graph): Node {
  let source = node.inputs[0] as string;
  for (let view = maker(source); isAbsolute(node, graph) && view !== undefined && isView(view); view = maker(source))
    source = view.inputs[0] as string;
  return source === node.inputs[0] ? node : { ...node, inputs: [source, ...node.inputs.slice(1)] };
}

const isView = ({ operator, domain }: Node): boolean => domain === '' && viewOperators.has(operator);

const isGemm = ({ operator, domain }: Node): boolean => operator === 'Gemm' && domain === '';

/** True for the transpose of a matrix. */
function isTranspose(node: Node): boolean {
  return node.operator === 'Transpose' && node.domain === '' && intsAttribute(node, 'perm')?.join() === '1,0';
}

/** Flags are left out where they are 0. */
function gemm(node: Node, inputs: readonly string[], transA: boolean, transB: boolean): Node {
  const { transA: _, transB: __, ...attributes } = node.attributes;
  return {
    ...node,
    inputs,
    attributes: { ...attributes, ...(transA ? { transA: int(1) } : {}), ...(transB ? { transB: int(1) } : {}) },
  };
}

function withoutTransposes(node: Node, maker: (name: string) => Node | undefined): Node {
  const [a = '', b = '', ...rest] = node.inputs;
  const [sourceA, sourceB] = [a, b].map((name) => {
    const source = maker(name);
    return source !== undefined && isTranspose(source) ? source.inputs[0] : undefined;
  });
  if (sourceA === undefined && sourceB === undefined) return node;
  const flag = (name: string, source: string | undefined): boolean =>
    (intAttribute(node, name, 0) !== 0) !== (source !== undefined);
  return gemm(node, [sourceA ?? a, sourceB ?? b, ...rest], flag('transA', sourceA), flag('transB', sourceB));
}

/** (A′·B′)ᵀ = B′ᵀ·A′ᵀ */
function transposed(product: Node, { name, outputs }: Node): Node {
  const [a = '', b = ''] = product.inputs;
  const flag = (attribute: string): boolean => intAttribute(product, attribute, 0) === 0;
  return { ...gemm(product, [b, a], flag('transB'), flag('transA')), name, outputs };
}
