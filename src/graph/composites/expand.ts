// Expands composites: operators that are replaced by operators of the table when a model is instantiated and all shapes
// are known, so that gradients, engines and passes need not know them. The other files in this folder hold one rule for
// each operator.

import { assert } from '../../assert.ts';
import { InputError } from '../../errors.ts';
import type { Node } from '../graph.ts';
import { check, typeText } from '../operators/define.ts';
import { isFloat, type Tensor, type ValueType } from '../tensor.ts';
import { attentionComposites } from './attention.ts';
import type { Composite } from './composite.ts';
import { cubicResize } from './cubic-resize.ts';
import { einsum } from './einsum.ts';
import { fourier } from './fourier.ts';
import { fusions } from './fusions.ts';
import { lossComposites } from './losses.ts';
import { recurrentComposites } from './recurrent.ts';
import { smallComposites } from './small.ts';
import { Writer } from './writer.ts';

/** The expansion of a node: constants, and nodes of which the last have the node's own outputs. */
export interface Expansion {
  readonly initializers: ReadonlyMap<string, Tensor>;
  readonly nodes: readonly Node[];
}

/** By operator name, prefixed by the domain if that is not ONNX's own. */
export const composites: Readonly<Record<string, Composite>> = {
  ...attentionComposites,
  ...fusions,
  ...lossComposites,
  ...recurrentComposites,
  ...smallComposites,
  DFT: fourier,
  Einsum: einsum,
  Resize: cubicResize,
};

/** The name of a node's operator, prefixed by its domain if that is not ONNX's own. */
export function qualifiedName({ domain, operator }: Node): string {
  return domain === '' ? operator : `${domain}.${operator}`;
}

/** True for a node that is expanded when its model is instantiated. */
export function isComposite(node: Node): boolean {
  const name = qualifiedName(node);
  const composite = Object.hasOwn(composites, name) ? composites[name] : undefined;
  return composite !== undefined && (composite.when?.(node) ?? true);
}

/**
 * Expands a composite node. The names of what it adds begin with the node's. Throws InputError if the node does not fit
 * its operator or uses an unsupported feature.
 */
export function expandComposite(
  node: Node,
  types: readonly (ValueType | undefined)[],
  constants: readonly (Tensor | undefined)[],
): Expansion {
  const composite = composites[qualifiedName(node)];
  assert(composite, `${node.operator} is no composite`);
  checkNode(node, composite);
  checkInputs(node, composite, types);
  const writer = new Writer(node, types, constants, `${node.name}/`);
  const results = written(node, composite, writer);
  const wanted = node.outputs.flatMap((output, index) => (output === '' ? [] : [[output, results[index]] as const]));
  for (const [output, result] of wanted)
    check(result, node, () => `has the output "${output}", which is not supported`);
  const built = writer.emitter.build(node.name, [...new Set(wanted.map(([, result]) => result as string))]);
  // Names by position: the emitter's own depend on which constants are equal, and so on the batch size.
  const renamed = new Map<string, string>();
  const made = new Set(built.nodes.flatMap(({ outputs }) => outputs));
  const copies: Node[] = [];
  for (const [output, result] of wanted as readonly (readonly [string, string])[]) {
    if (made.has(result) && !renamed.has(result)) renamed.set(result, output);
    else
      copies.push({
        operator: 'Identity',
        domain: '',
        name: `${node.name}/${output}`,
        inputs: [renamed.get(result) ?? result],
        outputs: [output],
        attributes: {},
      });
  }
  const nameOf = ({ operator }: Node, index: number): string => `${node.name}/${index}.${operator}`;
  built.nodes.forEach((inner, index) => {
    inner.outputs.forEach((output, position) => {
      const name = nameOf(inner, index);
      if (!renamed.has(output)) renamed.set(output, inner.outputs.length === 1 ? name : `${name}:${position}`);
    });
  });
  const rename = (name: string): string => renamed.get(name) ?? name;
  const nodes = built.nodes.map((inner, index) => ({
    ...inner,
    name: nameOf(inner, index),
    inputs: inner.inputs.map(rename),
    outputs: inner.outputs.map(rename),
  }));
  const given = new Set(node.inputs);
  return {
    initializers: new Map([...built.initializers].filter(([name]) => !given.has(name))),
    nodes: [...nodes, ...copies],
  };
}

function checkInputs(
  node: Node,
  { ranks = [], otherTypes = [] }: Composite,
  types: readonly (ValueType | undefined)[],
): void {
  const first = types[0];
  check(
    otherTypes.includes(0) || first === undefined || isFloat(first.type),
    node,
    () => `wants floats, not ${first && typeText(first)}`,
  );
  types.forEach((type, index) => {
    if (type === undefined) return;
    const [least, most] = ranks[index] ?? [0, Number.POSITIVE_INFINITY];
    const { length } = type.shape;
    check(length >= least && length <= most, node, () => {
      const wanted =
        least === most ? least : most === Number.POSITIVE_INFINITY ? `at least ${least}` : `${least} to ${most}`;
      return `wants ${wanted} dimensions in input "${node.inputs[index]}", not ${typeText(type)}`;
    });
    const same = otherTypes.includes(index) || otherTypes.includes(0) || type.type === first?.type;
    check(same, node, () => `mixes element types: ${first && typeText(first)} and ${typeText(type)}; add a Cast`);
  });
}

/** The nodes that the composite writes. Errors about these nodes become errors about the composite node. */
function written(node: Node, { write }: Composite, writer: Writer): readonly (string | undefined)[] {
  try {
    return write(writer);
  } catch (error) {
    if (!(error instanceof InputError) || error.message.startsWith(`Node "${node.name}" (`)) throw error;
    const problem = error.message.replace(/^Node "[^"]*" /, '').replace(/\.$/, '');
    throw new InputError(`Node "${node.name}" (${qualifiedName(node)}) does not fit its inputs: its ${problem}.`, {
      cause: error,
    });
  }
}

function checkNode(node: Node, { inputs: [least, most], attributes = {} }: Composite): void {
  check(
    node.inputs.length <= most,
    node,
    () => `has ${node.inputs.length} inputs where the operator takes at most ${most}`,
  );
  for (let index = 0; index < least; index++)
    check(node.inputs[index], node, () => `lacks input ${index}; the operator needs at least ${least} inputs`);
  for (const [name, attribute] of Object.entries(node.attributes)) {
    const type = Object.hasOwn(attributes, name) ? attributes[name] : undefined;
    check(
      type,
      node,
      () =>
        `has the attribute "${name}", which is not supported (known are ` +
        `${Object.keys(attributes).join(', ') || 'none'})`,
    );
    check(
      attribute.type === type,
      node,
      () => `has the attribute "${name}" of type ${attribute.type} where the operator wants ${type}`,
    );
  }
}
