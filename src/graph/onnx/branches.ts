// Replaces If nodes whose condition follows from constants and shapes by the branch taken: exporters write them for
// code that checks a shape. All later code is thus free of control flow. Other Ifs stay, and are refused by name.

import { create } from '@bufbuild/protobuf';

import { InputError } from '../../errors.ts';
import { isComposite } from '../composites/expand.ts';
import type { Node } from '../graph.ts';
import { isOperator } from '../operators/index.ts';
import { TypeWalk } from '../static.ts';
import { isFloat, type Tensor } from '../tensor.ts';
import { type DecodedModel, normalDomain } from './decode.ts';
import { patchGraph, patchModel, patchNode } from './encode.ts';
import {
  AttributeProtoSchema,
  type GraphProto,
  type ModelProto,
  type NodeProto,
  NodeProtoSchema,
  type TensorProto,
  TensorProtoSchema,
  ValueInfoProtoSchema,
} from './generated/onnx_pb.ts';

/** Sizes tried for every symbolic dimension; a condition must be the same at both. */
const probeSizes = [2, 3] as const;

interface BranchOptions {
  readonly decode: (model: ModelProto) => DecodedModel;
  /** Converts the nodes of a file to the canonical opset. */
  readonly upgrade: (model: DecodedModel) => {
    readonly nodes: readonly Node[];
    readonly initializers: ReadonlyMap<string, Tensor>;
  };
  /** Sizes of symbolic dimensions by name. */
  readonly dimensions: Readonly<Record<string, number>>;
}

/** The graph with the branch taken in place of every If that can be decided. */
export function foldBranches(model: ModelProto, graph: GraphProto, options: BranchOptions): GraphProto {
  let current = graph;
  // A condition may depend on another If's output, and a branch may contain further Ifs.
  while (current.node.some(isIf)) {
    const decided = conditions(patchModel(model, { graph: current, functions: [] }), options);
    if (decided.size === 0) return current;
    const initializers: TensorProto[] = [];
    const node = current.node.flatMap((one, index) => {
      const taken = decided.get(index);
      return taken === undefined ? [one] : branchNodes(one, index, taken, initializers);
    });
    current = patchGraph(current, { node, initializer: [...current.initializer, ...initializers] });
  }
  return current;
}

function isIf({ opType, domain }: NodeProto): boolean {
  return opType === 'If' && normalDomain(domain) === '';
}

/** By position: the branch taken. */
function conditions(model: ModelProto, options: BranchOptions): ReadonlyMap<number, boolean> {
  const decoded = options.decode(model);
  const { nodes, initializers } = options.upgrade(decoded);
  const walks = probeSizes.map((size) => {
    const walk = new TypeWalk();
    for (const { name, type, shape } of decoded.inputs)
      walk.setType(name, {
        type,
        shape: shape.map((dimension) =>
          typeof dimension === 'number' ? dimension : (options.dimensions[dimension] ?? size),
        ),
      });
    // Possible weights do not decide conditions: only their type is used.
    for (const [name, value] of initializers) {
      if (isFloat(value.type) && value.data.length > 1) walk.setType(name, value);
      else walk.setConstant(name, value);
    }
    for (const node of nodes) tryVisit(walk, node);
    return walk;
  });
  const decided = new Map<number, boolean>();
  (model.graph as GraphProto).node.forEach((node, index) => {
    if (!isIf(node)) return;
    const values = walks.map((walk) => walk.constants.get(node.input[0] ?? ''));
    const [first, second] = values.map((value) => value?.data.length === 1 && Number(value.data[0]) !== 0);
    if (values.every((value) => value?.data.length === 1) && first === second) decided.set(index, first as boolean);
  });
  return decided;
}

/** Infers a node's outputs if its inputs are known, it is supported, and it fits; otherwise does nothing. */
function tryVisit(walk: TypeWalk, node: Node): void {
  if (!isComposite(node) && (node.domain !== '' || !isOperator(node.operator))) return;
  if (node.inputs.some((input) => input !== '' && !walk.has(input))) return;
  try {
    walk.visit(node);
  } catch (error) {
    if (!(error instanceof InputError)) throw error;
  }
}

/** The nodes of a branch under names that begin with the If's; its outputs get the If's names. */
function branchNodes(
  call: NodeProto,
  index: number,
  taken: boolean,
  initializers: TensorProto[],
): readonly NodeProto[] {
  const body = call.attribute.find(({ name }) => name === (taken ? 'then_branch' : 'else_branch'))?.g;
  if (body === undefined || body.output.length !== call.output.length)
    throw new InputError(
      `Node "${call.name}" (If) lacks a branch with ${call.output.length} outputs; export the model again.`,
    );
  const prefix = `${call.name === '' ? `If_${index}` : call.name}/`;
  const names = new Map<string, string>();
  for (const name of [...body.initializer.map((tensor) => tensor.name), ...body.node.flatMap(({ output }) => output)])
    if (name !== '') names.set(name, `${prefix}${name}`);
  const copies: NodeProto[] = [];
  const produced = new Set(body.node.flatMap(({ output }) => output));
  body.output.forEach(({ name }, position) => {
    const actual = call.output[position] ?? '';
    if (actual === '') return;
    const isFree = produced.has(name) && names.get(name) === `${prefix}${name}`;
    if (isFree) names.set(name, actual);
    else
      copies.push(
        create(NodeProtoSchema, {
          name: `${prefix}${actual}`,
          opType: 'Identity',
          input: [names.get(name) ?? name],
          output: [actual],
        }),
      );
  });
  for (const tensor of body.initializer)
    initializers.push(
      Object.assign(create(TensorProtoSchema), tensor, { name: names.get(tensor.name) ?? tensor.name }),
    );
  const nodes = body.node.map((node, position) =>
    renamed(
      patchNode(node, { name: `${prefix}${node.name === '' ? `${node.opType}_${position}` : node.name}` }),
      names,
    ),
  );
  return [...nodes, ...copies];
}

/** The node with its values renamed, also where graphs inside it read them. */
function renamed(node: NodeProto, names: ReadonlyMap<string, string>): NodeProto {
  const rename = (name: string): string => names.get(name) ?? name;
  return patchNode(node, {
    input: node.input.map(rename),
    output: node.output.map(rename),
    attribute: node.attribute.map((attribute) =>
      attribute.g === undefined
        ? attribute
        : Object.assign(create(AttributeProtoSchema), attribute, { g: renamedGraph(attribute.g, names) }),
    ),
  });
}

function renamedGraph(graph: GraphProto, names: ReadonlyMap<string, string>): GraphProto {
  const own = new Set(
    [...graph.input, ...graph.initializer].map(({ name }) => name).concat(graph.node.flatMap(({ output }) => output)),
  );
  const outer = new Map([...names].filter(([name]) => !own.has(name)));
  return patchGraph(graph, {
    node: graph.node.map((node) => renamed(node, outer)),
    output: graph.output.map((output) =>
      Object.assign(create(ValueInfoProtoSchema), output, { name: outer.get(output.name) ?? output.name }),
    ),
  });
}
