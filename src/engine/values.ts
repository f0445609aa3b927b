// What every engine keeps on the caller's side: handles of the values alive and their bytes, and the static types of a
// graph's inputs and outputs. A wrong handle, name, type or shape is a mistake of our own and throws at the call.

import { assert } from '../assert.ts';
import type { Graph, ValueInfo } from '../graph/graph.ts';
import { byteLength, elementCount, sameShape, type Tensor, type ValueType } from '../graph/tensor.ts';
import type { Value } from './engine.ts';

/** A graph's inputs or outputs by name, with static shapes, in the graph's order. */
export type Types = ReadonlyMap<string, ValueType>;

/** The names and static types on a graph's border. */
export interface Signature {
  readonly inputs: Types;
  readonly outputs: Types;
}

/** The signature of a graph (or of its translation) whose shapes are all numbers. */
export function signatureOf(graph: Pick<Graph, 'name' | 'inputs' | 'outputs'>): Signature {
  return { inputs: staticTypes(graph.name, graph.inputs), outputs: staticTypes(graph.name, graph.outputs) };
}

function staticTypes(graph: string, values: readonly ValueInfo[]): Types {
  const types = new Map<string, ValueType>();
  for (const { name, type, shape } of values) {
    const numbers = shape.filter((dimension) => typeof dimension === 'number');
    assert(
      numbers.length === shape.length,
      `"${name}" of graph "${graph}" has the shape [${shape.join(', ')}], not a static one`,
    );
    types.set(name, { type, shape: numbers });
  }
  return types;
}

/** The outputs that a run is asked for: the named ones, or all. */
export function wantedOutputs({ outputs }: Signature, names: readonly string[] | undefined): Types {
  if (names === undefined) return outputs;
  return new Map(
    names.map((name) => {
      const type = outputs.get(name);
      assert(type !== undefined, `the graph has no output "${name}"`);
      return [name, type];
    }),
  );
}

/** The values for a graph's inputs, in its order, checked. Values under other names are not looked at. */
export function orderedInputs({ inputs }: Signature, values: Readonly<Record<string, Value>>): Value[] {
  return Array.from(inputs, ([name, { type, shape }]) => {
    const value = values[name];
    assert(value !== undefined, `input "${name}" is missing`);
    const fits = value.type === type && sameShape(value.shape, shape);
    assert(fits, `input "${name}" is ${type} [${shape.join(', ')}], not ${value.type} [${value.shape.join(', ')}]`);
    return value;
  });
}

/** By output, the input that it replaces in a run with these values, checked: see `Executable.run`. */
export function replacedInputs(
  { inputs }: Signature,
  values: Readonly<Record<string, Value>>,
  {
    wanted,
    replaced = {},
  }: { readonly wanted: Types; readonly replaced?: Readonly<Record<string, string>> | undefined },
): ReadonlyMap<string, Value> {
  const found = new Map<string, Value>();
  for (const [output, input] of Object.entries(replaced)) {
    const [of, value] = [wanted.get(output), inputs.has(input) ? values[input] : undefined];
    assert(
      of !== undefined && value !== undefined,
      `output "${output}" cannot replace "${input}": the run has not both`,
    );
    assert(
      of.type === value.type && sameShape(of.shape, value.shape),
      `output "${output}" is of another type or shape than "${input}"`,
    );
    found.set(output, value);
  }
  return found;
}

/** Checks that a tensor still has its elements: an array that was handed over before has none. */
export function checkUpload({ shape, data }: Tensor): void {
  assert(
    elementCount(shape) === data.length,
    `a tensor of shape [${shape.join(', ')}] with ${data.length} elements was uploaded`,
  );
}

/** The values alive in one engine, each with what the engine keeps for it. */
export class ValueTable<Content> {
  readonly #contents = new Map<number, Content>();
  #bytes = 0;
  #next = 1;

  /** Bytes of all values alive. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Makes a value. */
  add({ type, shape }: ValueType, content: Content): Value {
    const value: Value = { handle: this.#next++, type, shape };
    this.#contents.set(value.handle, content);
    this.#bytes += byteLength(value);
    return value;
  }

  /** What the engine keeps for a value that is alive. */
  get({ handle }: Value): Content {
    assert(this.#contents.has(handle), `value ${handle} was released or is of another engine`);
    return this.#contents.get(handle) as Content;
  }

  /** Ends a value and returns what was kept for it. */
  remove(value: Value): Content {
    const content = this.get(value);
    this.#contents.delete(value.handle);
    this.#bytes -= byteLength(value);
    return content;
  }

  /** Ends all values and returns what was kept for them. */
  clear(): Content[] {
    const contents = [...this.#contents.values()];
    this.#contents.clear();
    this.#bytes = 0;
    return contents;
  }
}
