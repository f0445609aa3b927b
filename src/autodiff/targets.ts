// Assigns the gradients' names to values of a backward pass. If a value cannot have the gradient's name, a copy gets
// it.

import type { Emitter } from '../graph/emitter.ts';
import { gradientName } from '../graph/gradient-name.ts';
import type { Node } from '../graph/graph.ts';
import type { mergeEqualNodes } from './subgraph.ts';

/** The values that become gradients, under their final names; each is found only once. */
export class Targets {
  /** The backward nodes, including added copies. */
  readonly nodes: Node[];
  /** Value → the name of the gradient that it is. */
  readonly rename: Map<string, string> = new Map();
  readonly #emitter: Emitter;
  readonly #aliases: ReadonlyMap<string, string>;
  readonly #gradients: ReadonlyMap<string, string>;
  readonly #computed: ReadonlySet<string>;
  readonly #read: ReadonlySet<string>;
  readonly #known = new Map<string, string>();

  constructor(emitter: Emitter, merged: ReturnType<typeof mergeEqualNodes>, gradients: ReadonlyMap<string, string>) {
    this.nodes = [...merged.nodes];
    this.#emitter = emitter;
    this.#aliases = merged.aliases;
    this.#gradients = gradients;
    this.#computed = new Set(this.nodes.flatMap((node) => node.outputs));
    const totals = [...gradients.values()].map((total) => merged.aliases.get(total) ?? total);
    const shared = totals.filter((total, index) => totals.indexOf(total) !== index);
    this.#read = new Set([...this.nodes.flatMap((node) => node.inputs), ...shared]);
  }

  /**
   * The values that are gradients of `names`; names without one are left out. Copies a value that is in `excluded`, has
   * another name already, or, with `alone`, is read by others too.
   */
  of(names: readonly string[], excluded: ReadonlySet<string>, alone = false): string[] {
    return names
      .filter((name) => this.#gradients.has(name))
      .map((name) => this.#known.get(name) ?? this.#create(name, excluded, alone));
  }

  #create(name: string, excluded: ReadonlySet<string>, alone: boolean): string {
    const total = this.#gradients.get(name) as string;
    let value = this.#aliases.get(total) ?? total;
    if (
      !this.#computed.has(value) ||
      this.rename.has(value) ||
      excluded.has(value) ||
      (alone && this.#read.has(value))
    ) {
      const copy = this.#emitter.fresh('Identity');
      this.#emitter.append({
        operator: 'Identity',
        domain: '',
        name: copy,
        inputs: [value],
        outputs: [copy],
        attributes: {},
      });
      this.nodes.push(this.#emitter.nodes.at(-1) as Node);
      value = copy;
    }
    this.rename.set(value, gradientName(name));
    this.#known.set(name, value);
    return value;
  }
}
