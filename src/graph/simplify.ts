// Leaves out nodes that do nothing once shapes are known: what exporters leave behind. A node's result is replaced by its input
// wherever it is read. Used by static.ts while it walks a graph.

import { defined } from '../assert.ts';
import { type Node, intAttribute, intsAttribute } from './graph.ts';
import { type Tensor, type ValueType, int64s, sameShape, toNumbers } from './tensor.ts';

/** What the simplifier asks of the walk that it accompanies. */
interface Known {
  readonly constants: ReadonlyMap<string, Tensor>;
  type(name: string): ValueType;
  has(name: string): boolean;
  setConstant(name: string, value: Tensor): void;
}

/** Operators that only arrange elements in their order: equal shapes mean equal values. */
const rearranging = new Set(['Reshape', 'Flatten', 'Squeeze', 'Unsqueeze', 'Expand', 'Tile', 'Identity']);
/** Operators that return a single input as it is. */
const variadic = new Set(['Concat', 'Sum', 'Mean', 'Max', 'Min']);
/** Those of the above that a following Reshape makes superfluous. */
const reshaping = new Set(['Reshape', 'Flatten', 'Squeeze', 'Unsqueeze']);

/** Remembers which values are only other names of earlier ones. */
export class Simplifier {
  readonly #known: Known;
  readonly #keep: ReadonlySet<string>;
  readonly #used: ReadonlySet<string>;
  readonly #aliases = new Map<string, string>();
  readonly #reshapes = new Map<string, Node>();
  readonly #flattenedSoftmax = new Map<string, Node>();

  /** `keep`: values that must not be replaced. `used`: values that anything reads. */
  constructor(known: Known, keep: ReadonlySet<string>, used: ReadonlySet<string>) {
    this.#known = known;
    this.#keep = keep;
    this.#used = used;
  }

  /** The node reading the values that its inputs stand for. */
  resolve(node: Node): Node {
    if (!node.inputs.some((input) => this.#aliases.has(input))) return node;
    return { ...node, inputs: node.inputs.map((input) => this.#aliases.get(input) ?? input) };
  }

  /** The node to write in place of this (visited) one, or undefined for none. */
  simplify(node: Node): Node | undefined {
    const output = defined(node.outputs[0], `the output of node "${node.name}"`);
    if (!this.#keep.has(output) && this.#doesNothing(node, output)) {
      this.#aliases.set(output, defined(node.inputs[0], `the input of node "${node.name}"`));
      return undefined;
    }
    const simplified = this.#shorten(node, output);
    if (!this.#keep.has(output)) this.#remember(simplified, output);
    return simplified;
  }

  #doesNothing(node: Node, output: string): boolean {
    const before = this.#known.type(defined(node.inputs[0], `the input of node "${node.name}"`));
    const after = this.#known.type(output);
    if (before.type !== after.type || !sameShape(before.shape, after.shape)) return false;
    if (rearranging.has(node.operator)) return true;
    switch (node.operator) {
      case 'Cast':
      case 'CastLike':
        return true;
      case 'Dropout':
        return this.#isInertDropout(node);
      case 'Transpose':
        return (intsAttribute(node, 'perm') ?? before.shape.map((_, axis) => before.shape.length - 1 - axis)).every((axis, index) => axis === index);
      case 'Slice': {
        const steps = this.#known.constants.get(node.inputs[4] ?? '');
        return node.inputs[4] === undefined || node.inputs[4] === '' || (steps !== undefined && toNumbers(steps).every((step) => step === 1));
      }
      default:
        return variadic.has(node.operator) && node.inputs.length === 1;
    }
  }

  /** True where dropout drops nothing and nobody reads its mask. */
  #isInertDropout(node: Node): boolean {
    if (node.outputs[1] !== undefined && this.#used.has(node.outputs[1])) return false;
    const value = (index: number, fallback: number): number | undefined => {
      const name = node.inputs[index] ?? '';
      if (name === '') return fallback;
      const constant = this.#known.constants.get(name);
      return constant === undefined ? undefined : toNumbers(constant)[0];
    };
    return value(1, 0.5) === 0 || value(2, 0) === 0;
  }

  /** Reshape ∘ Reshape is one Reshape; Reshape ∘ Softmax(last axis) ∘ Flatten at the last axis is one Softmax. */
  #shorten(node: Node, output: string): Node {
    if (node.operator !== 'Reshape') return node;
    const input = node.inputs[0] as string;
    const shape = this.#known.type(output).shape;
    const softmax = this.#flattenedSoftmax.get(input);
    if (softmax !== undefined && sameShape(this.#known.type(softmax.inputs[0] as string).shape, shape)) {
      return { ...softmax, name: node.name, outputs: [output] };
    }
    const before = this.#reshapes.get(input);
    if (before === undefined || shape.includes(0)) return node;
    return { ...node, inputs: [before.inputs[0] as string, this.#shapeConstant(shape, node)], attributes: {} };
  }

  /** Importing turns the flattening Softmax of opset 11 into Flatten(axis) → Softmax(−1) → Reshape; see onnx/upgrade.ts. */
  #remember(node: Node, output: string): void {
    if (reshaping.has(node.operator)) this.#reshapes.set(output, node);
    const flatten = this.#reshapes.get(node.inputs[0] ?? '');
    if ((node.operator === 'Softmax' || node.operator === 'LogSoftmax') && flatten?.operator === 'Flatten' && intAttribute(node, 'axis', -1) === -1) {
      const rank = this.#known.type(flatten.inputs[0] as string).shape.length;
      const axis = intAttribute(flatten, 'axis', 1);
      if (axis === rank - 1 || axis === -1) this.#flattenedSoftmax.set(output, { ...node, inputs: [flatten.inputs[0] as string] });
    }
  }

  #shapeConstant(shape: readonly number[], node: Node): string {
    let name = `${node.name}.shape`;
    for (let count = 2; this.#known.has(name); count++) name = `${node.name}.shape_${count}`;
    this.#known.setConstant(name, int64s(shape));
    return name;
  }
}
