// Einsum: factors are joined one after another, each pair by one matrix product over the indices that nothing after it
// needs.

import { defined } from '../../assert.ts';
import { stringAttribute } from '../graph.ts';
import { check } from '../operators/define.ts';
import { tensor } from '../tensor.ts';
import type { Composite } from './composite.ts';
import { product, range, type Writer } from './writer.ts';

/** A value with named axes; names are distinct. */
interface Labelled {
  readonly value: string;
  readonly labels: readonly string[];
}

/**
 * Σ, over the indices that the result lacks, of the product of the factors, each indexed by its letters; "..."
 * broadcasts.
 */
export const einsum: Composite = {
  inputs: [1, Number.POSITIVE_INFINITY],
  attributes: { equation: 'string' },
  write(w) {
    const { factors, result } = parse(w);
    const rest = [...factors];
    let joined = prepared(w, rest.shift() as Labelled, [...result, ...rest.flatMap(({ labels }) => labels)]);
    while (rest.length > 0) {
      const next = rest.shift() as Labelled;
      const needed = new Set([...result, ...rest.flatMap(({ labels }) => labels)]);
      joined = join(w, joined, prepared(w, next, [...needed, ...joined.labels]), needed);
    }
    return [arranged(w, summed(w, joined, new Set(result)), result)];
  },
};

interface Equation {
  readonly factors: readonly Labelled[];
  readonly result: readonly string[];
}

/** Letters name axes; the axes of "..." are named by their position from the end (".0" is the last). */
function parse(w: Writer): Equation {
  const { node } = w;
  const equation = stringAttribute(node, 'equation', '').replaceAll(' ', '');
  const wrong = (problem: string): never =>
    check(false, node, () => `has the equation "${equation}", ${problem}`) as never;
  const match = /^((?:[a-zA-Z]|\.\.\.|,)*)(?:->((?:[a-zA-Z]|\.\.\.)*))?$/.exec(equation);
  const terms = (match?.[1] ?? wrong('which does not have a list of indices for each input')).split(',');
  if (terms.length !== node.inputs.length) wrong(`which is for ${terms.length} inputs, not ${node.inputs.length}`);
  let dots = 0;
  const labels = terms.map((term, index) => {
    const shape = w.shape(w.input(index));
    const letters = term.replace('...', '').length;
    const extra = shape.length - letters;
    if (extra < 0 || (extra > 0 && !term.includes('...')) || term.replace('...', '').includes('.'))
      wrong(`whose term "${term}" does not fit an input of rank ${shape.length}`);
    dots = Math.max(dots, extra);
    return spread(term, extra);
  });
  const sizes = new Map<string, number>();
  labels.forEach((own, index) => {
    own.forEach((label, axis) => {
      const size = w.shape(w.input(index))[axis] as number;
      const known = sizes.get(label) ?? 1;
      if (known !== 1 && size !== 1 && known !== size)
        wrong(`whose index "${label}" has the sizes ${known} and ${size}`);
      sizes.set(label, Math.max(known, size));
    });
  });
  const result = match?.[2] === undefined ? implied(labels, dots) : spread(match[2], dots);
  const unknown = result.find((label, index) => !sizes.has(label) || result.indexOf(label) !== index);
  if (unknown !== undefined) wrong(`whose result has the index "${unknown}" twice or from no input`);
  const factors = labels.map((own, index) => unbroadcast(w, { value: w.input(index), labels: own }, sizes));
  return { factors, result };
}

function spread(term: string, dots: number): readonly string[] {
  const [before = '', after] = term.split('...');
  return after === undefined ? [...term] : [...before, ...range(dots).map((index) => `.${dots - 1 - index}`), ...after];
}

/** Without "->": the axes of "...", then the letters that occur once, in alphabetic order. */
function implied(labels: readonly (readonly string[])[], dots: number): readonly string[] {
  const all = labels.flat().filter((label) => !label.startsWith('.'));
  const once = all.filter((label) => all.indexOf(label) === all.lastIndexOf(label)).sort();
  return [...spread('...', dots), ...once];
}

/** Removes axes of size 1 if another factor has more: multiplying broadcasts. */
function unbroadcast(w: Writer, { value, labels }: Labelled, sizes: ReadonlyMap<string, number>): Labelled {
  const shape = w.shape(value);
  const kept = range(labels.length).filter((axis) => shape[axis] !== 1 || sizes.get(labels[axis] as string) === 1);
  return {
    value: w.reshape(
      value,
      kept.map((axis) => shape[axis] as number),
    ),
    labels: kept.map((axis) => labels[axis] as string),
  };
}

/** The factor with the diagonal taken of axes with the same name, and unneeded axes summed. */
function prepared(w: Writer, factor: Labelled, needed: readonly string[]): Labelled {
  let { value, labels } = factor;
  for (let axis = 0; axis < labels.length; axis++) {
    for (
      let twin = labels.lastIndexOf(labels[axis] as string);
      twin > axis;
      twin = labels.lastIndexOf(labels[axis] as string)
    ) {
      // x · identity, summed over one of the two axes
      const size = w.shape(value)[axis] as number;
      const identity = Float32Array.from({ length: size * size }, (_, index) => (index % (size + 1) === 0 ? 1 : 0));
      const places = w.shape(value).map((_, other) => (other === axis || other === twin ? size : 1));
      value = w.reduce('ReduceSum', w.mul(value, w.constant(tensor(w.type(value), places, identity))), [twin], false);
      labels = labels.toSpliced(twin, 1);
    }
  }
  return summed(w, { value, labels }, new Set(needed));
}

/** Sums the axes that are not needed. */
function summed(w: Writer, { value, labels }: Labelled, needed: ReadonlySet<string>): Labelled {
  const axes = range(labels.length).filter((axis) => !needed.has(labels[axis] as string));
  return { value: w.reduce('ReduceSum', value, axes, false), labels: labels.filter((label) => needed.has(label)) };
}

/** The value with its axes in this order; a broadcast axis that no factor has left has size 1. */
function arranged(w: Writer, { value, labels }: Labelled, wanted: readonly string[]): string {
  const present = wanted.filter((label) => labels.includes(label));
  const ordered = w.transpose(
    value,
    present.map((label) => labels.indexOf(label)),
  );
  const shape = w.shape(ordered);
  return w.reshape(
    ordered,
    wanted.map((label) => (labels.includes(label) ? (shape[present.indexOf(label)] as number) : 1)),
  );
}

/** The product of a and b, summed over their common indices that are not needed. */
function join(w: Writer, a: Labelled, b: Labelled, needed: ReadonlySet<string>): Labelled {
  const left = summed(w, a, new Set([...needed, ...b.labels]));
  const shared = left.labels.filter((label) => b.labels.includes(label));
  const batch = shared.filter((label) => needed.has(label));
  const inner = shared.filter((label) => !needed.has(label));
  const rows = left.labels.filter((label) => !shared.includes(label));
  const columns = b.labels.filter((label) => !shared.includes(label));
  const labels = [...batch, ...rows, ...columns];
  if (inner.length === 0) {
    const place = ({ value, labels: own }: Labelled): string => arranged(w, { value, labels: own }, labels);
    return { value: w.mul(place(left), place(b)), labels };
  }
  const size = (of: Labelled, names: readonly string[]): readonly number[] =>
    names.map((label) => defined(w.shape(of.value)[of.labels.indexOf(label)], label));
  const lead = batch.length === 0 ? [] : [product(size(left, batch))];
  const [rowSizes, columnSizes, innerSize] = [size(left, rows), size(b, columns), product(size(left, inner))];
  const first = w.reshape(arranged(w, left, [...batch, ...rows, ...inner]), [...lead, product(rowSizes), innerSize]);
  const second = w.reshape(arranged(w, b, [...batch, ...inner, ...columns]), [
    ...lead,
    innerSize,
    product(columnSizes),
  ]);
  const joined = w.op('MatMul', [first, second]);
  return { value: w.reshape(joined, [...size(left, batch), ...rowSizes, ...columnSizes]), labels };
}
