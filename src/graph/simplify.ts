// Removes nodes that do nothing once shapes are known, which exporters leave behind: readers of a node's result read
// its input instead. Used by static.ts while it walks a graph.

import { defined } from '../assert.ts';
import { intAttribute, intsAttribute, type Node } from './graph.ts';
import { int64s, sameShape, type Tensor, toNumbers, type ValueType } from './tensor.ts';

/** What the simplifier reads from the walk that uses it. */
interface Known {
  readonly constants: ReadonlyMap<string, Tensor>;
  type(name: string): ValueType;
  has(name: string): boolean;
  setConstant(name: string, value: Tensor): void;
}

/** Operators that keep the elements' order: equal shapes mean equal values. */
const rearranging = new Set(['Reshape', 'Flatten', 'Squeeze', 'Unsqueeze', 'Expand', 'Tile', 'Identity']);
/** Operators that return a single input unchanged. */
const variadic = new Set(['Concat', 'Sum', 'Mean', 'Max', 'Min']);
/** Those of the above that a following Reshape makes redundant. */
const reshaping = new Set(['Reshape', 'Flatten', 'Squeeze', 'Unsqueeze']);

function countReads(nodes: readonly Node[]): Map<string, number> {
  const counts = new Map<string, number>();
  for (const node of nodes)
    for (const input of node.inputs) if (input !== '') counts.set(input, (counts.get(input) ?? 0) + 1);
  return counts;
}

/** Tracks which values are aliases of earlier ones. */
export class Simplifier {
  readonly #known: Known;
  readonly #keep: ReadonlySet<string>;
  readonly #readCounts: Map<string, number>;
  readonly #aliases = new Map<string, string>();
  readonly #reshapes = new Map<string, Node>();
  /** For values that are read only once: the value that they are a rearrangement of. */
  readonly #origins = new Map<string, string>();
  readonly #flattenedSoftmax = new Map<string, Node>();

  /** `keep`: values that must not be replaced. `nodes`: all nodes of the walk. */
  constructor(known: Known, keep: ReadonlySet<string>, nodes: readonly Node[]) {
    this.#known = known;
    this.#keep = keep;
    this.#readCounts = countReads(nodes);
  }

  /** Records that these nodes will be in place of `node`. */
  replace(node: Node, written: readonly Node[]): void {
    for (const input of node.inputs) if (input !== '') this.#readCounts.set(input, this.#reads(input) - 1);
    for (const [name, count] of countReads(written)) this.#readCounts.set(name, this.#reads(name) + count);
  }

  /** The node with its inputs replaced by the values they are aliases of. */
  resolve(node: Node): Node {
    if (!node.inputs.some((input) => this.#aliases.has(input))) return node;
    return { ...node, inputs: node.inputs.map((input) => this.#aliases.get(input) ?? input) };
  }

  /** The simplified form of this (visited) node, or undefined if it is removed. */
  simplify(node: Node): Node | undefined {
    const output = defined(node.outputs[0], `the output of node "${node.name}"`);
    if (!this.#keep.has(output) && this.#doesNothing(node, output)) {
      const input = defined(node.inputs[0], `the input of node "${node.name}"`);
      this.#aliases.set(output, input);
      this.#readCounts.set(input, this.#reads(input) + this.#reads(output) - 1);
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
        return (intsAttribute(node, 'perm') ?? before.shape.map((_, axis) => before.shape.length - 1 - axis)).every(
          (axis, index) => axis === index,
        );
      case 'Slice': {
        const steps = this.#known.constants.get(node.inputs[4] ?? '');
        return (
          node.inputs[4] === undefined ||
          node.inputs[4] === '' ||
          (steps !== undefined && toNumbers(steps).every((step) => step === 1))
        );
      }
      default:
        return variadic.has(node.operator) && node.inputs.length === 1;
    }
  }

  /** True if dropout drops nothing and its mask is not read. */
  #isInertDropout(node: Node): boolean {
    const mask = node.outputs[1] ?? '';
    if (this.#reads(mask) > 0 || this.#keep.has(mask)) return false;
    const value = (index: number, fallback: number): number | undefined => {
      const name = node.inputs[index] ?? '';
      if (name === '') return fallback;
      const constant = this.#known.constants.get(name);
      return constant === undefined ? undefined : toNumbers(constant)[0];
    };
    return value(1, 0.5) === 0 || value(2, 0) === 0;
  }

  /**
   * Reshape ∘ Reshape becomes one Reshape; Reshape ∘ Softmax(last axis) ∘ Flatten at the last axis becomes one Softmax.
   */
  #shorten(node: Node, output: string): Node {
    if (node.operator !== 'Reshape') return node;
    const input = node.inputs[0] as string;
    const shape = this.#known.type(output).shape;
    const softmax = this.#flattenedSoftmax.get(input);
    if (softmax !== undefined && sameShape(this.#known.type(softmax.inputs[0] as string).shape, shape)) {
      return { ...softmax, name: node.name, outputs: [output] };
    }
    const origin = this.#origins.get(input);
    if (origin === undefined || shape.includes(0)) return node;
    return { ...node, inputs: [origin, this.#shapeConstant(shape, node)], attributes: {} };
  }

  /**
   * Importing converts the flattening Softmax of opset 11 to Flatten(axis) → Softmax(−1) → Reshape; see
   * onnx/upgrade.ts.
   */
  #remember(node: Node, output: string): void {
    if (reshaping.has(node.operator)) {
      this.#reshapes.set(output, node);
      // Reading past a value that other nodes read, too, would keep two values alive instead of one.
      if (this.#reads(output) === 1)
        this.#origins.set(output, this.#origins.get(node.inputs[0] as string) ?? (node.inputs[0] as string));
    }
    const flatten = this.#reshapes.get(node.inputs[0] ?? '');
    if (
      (node.operator === 'Softmax' || node.operator === 'LogSoftmax') &&
      flatten?.operator === 'Flatten' &&
      intAttribute(node, 'axis', -1) === -1
    ) {
      const rank = this.#known.type(flatten.inputs[0] as string).shape.length;
      const axis = intAttribute(flatten, 'axis', 1);
      if (axis === rank - 1 || axis === -1)
        this.#flattenedSoftmax.set(output, { ...node, inputs: [flatten.inputs[0] as string] });
    }
  }

  #reads(name: string): number {
    return this.#readCounts.get(name) ?? 0;
  }

  #shapeConstant(shape: readonly number[], node: Node): string {
    let name = `${node.name}.shape`;
    for (let count = 2; this.#known.has(name); count++) name = `${node.name}.shape_${count}`;
    this.#known.setConstant(name, int64s(shape));
    return name;
  }
}
