// A layer's signature: equal for layers that compute the same on the same shapes, whatever their names and weights.

import { hash32, hashString } from '../random.ts';
import type { Attribute, Node } from './graph.ts';
import { type Tensor, toNumbers, type ValueType } from './tensor.ts';

/** What a signature depends on. */
export interface SignatureContext {
  readonly nodes: readonly Node[];
  /** Values that leave the layer. */
  readonly outputs: ReadonlySet<string>;
  type(name: string): ValueType;
  /** 'parameter', 'buffer' or 'constant' for initializers, undefined for other values. */
  initializerKind(name: string): 'parameter' | 'buffer' | 'constant' | undefined;
  constant(name: string): Tensor | undefined;
  /** True if a gradient for this value is needed. */
  hasGradient(name: string): boolean;
}

/** Constants of up to this many elements are compared by value (axes, scales), larger ones by type. */
const comparedElementCount = 16;

/**
 * 16 hexadecimal digits from operators, attributes, wiring, shapes, the values of small constants, and which values
 * leave the layer.
 */
export function layerSignature(context: SignatureContext): string {
  const text = describe(context);
  const word = (seed: string): string =>
    hash32(hashString(seed + text), text.length)
      .toString(16)
      .padStart(8, '0');
  return word('a') + word('b');
}

function describe(context: SignatureContext): string {
  const labels = new Map<string, string>();
  const label = (name: string): string => {
    if (name === '') return '-';
    let known = labels.get(name);
    if (known === undefined) {
      known = `#${labels.size}`;
      labels.set(name, known);
      return `${known}=${describeSource(name, context)}`;
    }
    return known;
  };
  const lines = context.nodes.map((node) => {
    const inputs = node.inputs.map(label).join(',');
    const outputs = node.outputs.map((output) => {
      if (output === '') return '-';
      labels.set(output, `#${labels.size}`);
      return `${labels.get(output)}:${describeType(context.type(output))}${context.outputs.has(output) ? '!' : ''}`;
    });
    const attributes = Object.keys(node.attributes)
      .sort()
      .map((name) => `${name}=${describeAttribute(node.attributes[name] as Attribute)}`);
    return `${node.domain}.${node.operator}(${inputs}){${attributes.join(',')}}${outputs.join(',')}`;
  });
  return lines.join('\n');
}

function describeSource(name: string, context: SignatureContext): string {
  const kind = context.initializerKind(name) ?? 'value';
  const constant = kind === 'constant' ? context.constant(name) : undefined;
  const value =
    constant !== undefined && constant.data.length <= comparedElementCount ? `=${toNumbers(constant).join(' ')}` : '';
  return `${kind}:${describeType(context.type(name))}${context.hasGradient(name) ? '^' : ''}${value}`;
}

function describeType({ type, shape }: ValueType): string {
  return `${type}[${shape.join(' ')}]`;
}

function describeAttribute(attribute: Attribute): string {
  if (attribute.type === 'tensor') return `${describeType(attribute.value)}=${toNumbers(attribute.value).join(' ')}`;
  return Array.isArray(attribute.value) ? attribute.value.join(' ') : String(attribute.value);
}
