// Small rewrites that ONNX Runtime would make too: transposes go into the matrix products beside them, which read either factor transposed at no cost,
// and of several reshapes in a row one stays. Where it makes them itself, its new nodes run in another order than those that they replace (see
// onnxruntime-memory.ts).

import { type Graph, int, intAttribute, intsAttribute, type Node } from '../graph/graph.ts';
import { viewOperators } from '../graph/lifetimes.ts';
import { neededNodes } from '../graph/liveness.ts';
import { toNumbers } from '../graph/tensor.ts';

/**
 * The same computation with Gemm(Aᵀ, B) for Gemm(Transpose(A), B), Gemm(Bᵀ, Aᵀ) for Transpose(Gemm(A, B)), and Reshape(x) for Reshape(Reshape(x)).
 * Nodes that nothing needs any more are left out.
 */
export function tidy(graph: Graph): Graph {
  const outputs = graph.outputs.map(({ name }) => name);
  const reads = new Map<string, number>(outputs.map((name) => [name, 1]));
  for (const { inputs } of graph.nodes) for (const name of inputs) reads.set(name, (reads.get(name) ?? 0) + 1);
  const makers = new Map<string, Node>();
  const maker = (name: string | undefined): Node | undefined => makers.get(name as string);
  const fold = (node: Node): Node => {
    if (node.domain !== '') return node;
    if (node.operator === 'Gemm') return withoutTransposes(node, maker);
    if (node.operator === 'Reshape') return withoutReshapes(node, maker, graph);
    const product = isTranspose(node) ? maker(node.inputs[0]) : undefined;
    const isAlone =
      product !== undefined && isGemm(product) && (product.inputs[2] ?? '') === '' && reads.get(node.inputs[0] as string) === 1;
    return isAlone ? transposed(product, node) : node;
  };
  const nodes = graph.nodes.map((original) => {
    const node = fold(original);
    for (const output of node.outputs) makers.set(output, node);
    return node;
  });
  return { ...graph, nodes: neededNodes(nodes, outputs) };
}

/** Reads what the views before it read, where its own shape does not depend on theirs (a 0 takes over a dimension). */
function withoutReshapes(node: Node, maker: (name: string) => Node | undefined, { initializers }: Graph): Node {
  const shape = initializers.get(node.inputs[1] as string);
  const isAbsolute = shape !== undefined && (!toNumbers(shape).includes(0) || intAttribute(node, 'allowzero', 0) !== 0);
  let source = node.inputs[0] as string;
  for (let view = maker(source); isAbsolute && view !== undefined && isView(view); view = maker(source)) source = view.inputs[0] as string;
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
  return { ...node, inputs, attributes: { ...attributes, ...(transA ? { transA: int(1) } : {}), ...(transB ? { transB: int(1) } : {}) } };
}

function withoutTransposes(node: Node, maker: (name: string) => Node | undefined): Node {
  const [a = '', b = '', ...rest] = node.inputs;
  const [sourceA, sourceB] = [a, b].map((name) => {
    const source = maker(name);
    return source !== undefined && isTranspose(source) ? source.inputs[0] : undefined;
  });
  if (sourceA === undefined && sourceB === undefined) return node;
  const flag = (name: string, source: string | undefined): boolean => (intAttribute(node, name, 0) !== 0) !== (source !== undefined);
  return gemm(node, [sourceA ?? a, sourceB ?? b, ...rest], flag('transA', sourceA), flag('transB', sourceB));
}

/** (A′·B′)ᵀ = B′ᵀ·A′ᵀ */
function transposed(product: Node, { name, outputs }: Node): Node {
  const [a = '', b = ''] = product.inputs;
  const flag = (attribute: string): boolean => intAttribute(product, attribute, 0) === 0;
  return { ...gemm(product, [b, a], flag('transB'), flag('transA')), name, outputs };
}
