// Which neighbours of a node can be computed together with it: the sum and the activation after a normalization, the
// centering after a convolution. Writes nothing.

import { deferredOperator } from '../autodiff/deferred.ts';
import { floatAttribute, intAttribute, type Node, type ValueInfo } from '../graph/graph.ts';
import { sameShape, type Tensor, toNumbers, type ValueType } from '../graph/tensor.ts';
import type { Activation } from './convolutions.ts';
import type { Layouts } from './layouts.ts';

/** The graph to be lowered. */
export interface Source {
  readonly inputs: readonly ValueInfo[];
  readonly initializers: ReadonlyMap<string, Tensor>;
  readonly nodes: readonly Node[];
  type(name: string): ValueType;
}

/**
 * Whether a node normalizes by the batch's own statistics, which are its outputs 1 and 2; separate nodes write the
 * running ones (autodiff/forward.ts).
 */
export function isBatchStatistics(node: Node): boolean {
  return (
    intAttribute(node, 'training_mode', 0) !== 0 &&
    floatAttribute(node, 'momentum', 0.9) === 0 &&
    node.outputs.length === 3
  );
}

/** The nodes of a graph by their inputs and outputs, and which of them were fused with an earlier one. */
export class Fusing {
  readonly #source: Source;
  readonly #l: Layouts;
  readonly #readers = new Map<string, Node[]>();
  readonly #producers = new Map<string, Node>();
  readonly #results: ReadonlySet<string>;
  readonly #done = new Set<Node>();

  /** `results`: values that are read by others than the nodes. */
  constructor(source: Source, results: ReadonlySet<string>, layouts: Layouts) {
    this.#source = source;
    this.#results = results;
    this.#l = layouts;
    for (const node of source.nodes) {
      for (const input of new Set(node.inputs)) {
        const list = this.#readers.get(input);
        if (list === undefined) this.#readers.set(input, [node]);
        else list.push(node);
      }
      for (const output of node.outputs) this.#producers.set(output, node);
    }
  }

  /** True for a node that was fused with an earlier one. */
  isDone(node: Node): boolean {
    return this.#done.has(node);
  }

  /** The node that computes a value. */
  producer(value: string): Node | undefined {
    return this.#producers.get(value);
  }

  /** The value's elements if it is a constant. */
  constant(value: string): Tensor | undefined {
    return this.#source.initializers.get(value);
  }

  /** The only reader of a value, if there is exactly one and the value is not a result. */
  onlyReader(value: string): Node | undefined {
    const readers = this.#readers.get(value) ?? [];
    return readers.length === 1 && !this.#results.has(value) ? readers[0] : undefined;
  }

  /**
   * The values that centre y (its sample, and y minus it), if nothing else reads y. Their nodes count as fused with the
   * one that computes y.
   */
  centering(y: string): { readonly sample: string; readonly centered: string } | undefined {
    const readers = this.#readers.get(y) ?? [];
    const sampling = readers.find((reader) => deferredOperator(reader) === 'ChannelSample');
    const sample = sampling?.outputs[0];
    const difference = readers.find(
      ({ operator, domain, inputs }) => operator === 'Sub' && domain === '' && inputs[0] === y && inputs[1] === sample,
    );
    if (sampling === undefined || sample === undefined || difference === undefined) return undefined;
    if (readers.length > 2 || this.#results.has(y)) return undefined;
    this.#done.add(sampling).add(difference);
    return { sample, centered: difference.outputs[0] as string };
  }

  /**
   * Marks as fused what can be computed together with y: the sum with an existing blocked value, and the activation
   * after it, provided the values in between are not read elsewhere.
   */
  following(y: string): {
    readonly last: string;
    readonly sum: string | undefined;
    readonly activation: Activation | undefined;
  } {
    let last = y;
    let sum: string | undefined;
    const next = this.onlyReader(y);
    if (next?.operator === 'Add' && next.domain === '') {
      const other = next.inputs[0] === y ? (next.inputs[1] as string) : (next.inputs[0] as string);
      if (other !== y && sameShape(this.#l.shape(other), this.#l.shape(y)) && this.#l.isBlocked(other)) {
        sum = this.#l.blocked(other);
        last = next.outputs[0] as string;
        this.#done.add(next);
      }
    }
    const behind = this.onlyReader(last);
    const activation = behind === undefined ? undefined : this.#activationOf(behind);
    if (behind !== undefined && activation !== undefined) {
      last = behind.outputs[0] as string;
      this.#done.add(behind);
    }
    return { last, sum, activation };
  }

  #activationOf(node: Node): Activation | undefined {
    if (node.domain !== '') return undefined;
    if (node.operator === 'Relu') return { name: 'Relu' };
    if (node.operator !== 'Clip') return undefined;
    const bound = (index: number, fallback: number): number | undefined => {
      const name = node.inputs[index] ?? '';
      if (name === '') return fallback;
      const value: Tensor | undefined = this.constant(name);
      return value === undefined ? undefined : toNumbers(value)[0];
    };
    const [low, high] = [bound(1, -3.4028234663852886e38), bound(2, 3.4028234663852886e38)];
    return low === undefined || high === undefined ? undefined : { name: 'Clip', parameters: [low, high] };
  }
}
