// Inlines model-local functions: operators that a model defines as small graphs (some exporters write a module as one).
// All later code is thus free of them.

import { create } from '@bufbuild/protobuf';

import { InputError } from '../../errors.ts';
import { normalDomain } from './decode.ts';
import { patchGraph, patchNode } from './encode.ts';
import {
  type AttributeProto,
  AttributeProtoSchema,
  type FunctionProto,
  type GraphProto,
  type ModelProto,
  type NodeProto,
  NodeProtoSchema,
} from './generated/onnx_pb.ts';

/** Limit of nesting: functions may call functions, and a few calls must not grow without bound. */
const depthLimit = 32;
const nodeLimit = 500_000;

/**
 * The model's graph with every call of a local function replaced by its nodes, under names that begin with the call's.
 * Throws InputError for functions of another opset than the model, and for unbounded nesting.
 */
export function inlineFunctions(model: ModelProto, graph: GraphProto): GraphProto {
  if (model.functions.length === 0) return graph;
  const functions = new Map(
    model.functions.map((definition) => [keyOf(definition.domain, definition.name, definition.overload), definition]),
  );
  return patchGraph(graph, { node: new Inliner(functions, model).expand(graph.node, 0) });
}

function keyOf(domain: string, name: string, overload: string): string {
  return JSON.stringify([normalDomain(domain), name, overload]);
}

class Inliner {
  readonly #functions: ReadonlyMap<string, FunctionProto>;
  readonly #model: ModelProto;
  #callCount = 0;
  #nodeCount = 0;

  constructor(functions: ReadonlyMap<string, FunctionProto>, model: ModelProto) {
    this.#functions = functions;
    this.#model = model;
  }

  expand(nodes: readonly NodeProto[], depth: number): NodeProto[] {
    return nodes.flatMap((node) => {
      const definition = this.#functions.get(keyOf(node.domain, node.opType, node.overload));
      if (definition === undefined) {
        this.#nodeCount++;
        this.#checkLimits(depth);
        return [node];
      }
      this.#checkLimits(depth + 1);
      this.#checkOpset(definition);
      return this.expand(this.#body(node, definition), depth + 1);
    });
  }

  #checkLimits(depth: number): void {
    if (depth > depthLimit || this.#nodeCount > nodeLimit) {
      throw new InputError(
        `The model's functions call each other more than ${depthLimit} deep or make more than ${nodeLimit} ` +
          'nodes; export it without functions.',
      );
    }
  }

  #checkOpset({ name, opsetImport }: FunctionProto): void {
    const version = (entries: readonly { domain: string; version: bigint }[]): bigint | undefined =>
      entries.find(({ domain }) => normalDomain(domain) === '')?.version;
    const [own, whole] = [version(opsetImport), version(this.#model.opsetImport)];
    if (own !== undefined && own !== whole) {
      throw new InputError(
        `Function "${name}" of the model uses version ${own} of the ONNX operators and the model ${whole}; ` +
          'export it without functions.',
      );
    }
  }

  /** The function's nodes with the call's values and attributes. */
  #body(call: NodeProto, { name, input, output, node, attributeProto }: FunctionProto): NodeProto[] {
    const prefix = `${call.name === '' ? name : call.name}/${this.#callCount++}/`;
    const values = new Map<string, string>([['', '']]);
    input.forEach((formal, index) => values.set(formal, call.input[index] ?? ''));
    const passedOn: NodeProto[] = [];
    output.forEach((formal, index) => {
      const actual = call.output[index] ?? '';
      if (actual === '') return;
      if (input.includes(formal))
        passedOn.push(
          create(NodeProtoSchema, { opType: 'Identity', input: [values.get(formal) ?? ''], output: [actual] }),
        );
      else values.set(formal, actual);
    });
    const rename = (value: string): string => values.get(value) ?? `${prefix}${value}`;
    const given = new Map([...attributeProto, ...call.attribute].map((attribute) => [attribute.name, attribute]));
    const body = node.map((inner) =>
      patchNode(inner, {
        name: `${prefix}${inner.name === '' ? inner.opType : inner.name}`,
        input: inner.input.map(rename),
        output: inner.output.map(rename),
        attribute: inner.attribute.flatMap((attribute) => resolve(attribute, given)),
      }),
    );
    return [...body, ...passedOn];
  }
}

/** An attribute that refers to one of the function's: with its value, or left out if the call has none. */
function resolve(attribute: AttributeProto, given: ReadonlyMap<string, AttributeProto>): AttributeProto[] {
  if (attribute.refAttrName === '') return [attribute];
  const value = given.get(attribute.refAttrName);
  return value === undefined ? [] : [Object.assign(create(AttributeProtoSchema), value, { name: attribute.name })];
}
