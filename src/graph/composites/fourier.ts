// The discrete Fourier transform as products with matrices of cosines and sines.

import { intAttribute } from '../graph.ts';
import { check, normalizeAxis } from '../operators/define.ts';
import { tensor } from '../tensor.ts';
import type { Composite } from './composite.ts';
import { range, type Writer } from './writer.ts';

/**
 * DFT: x [..., n, ..., 1 or 2] (the last axis: a real number, or real and imaginary part), transformed along one axis,
 * cut or filled up with zeros to dft_length.
 */
export const fourier: Composite = {
  inputs: [1, 3],
  attributes: { inverse: 'int', onesided: 'int' },
  ranks: [[2, Number.POSITIVE_INFINITY]],
  otherTypes: [1, 2],
  constantInputs: [1, 2],
  write: (w) => [transform(w)],
};

function transform(w: Writer): string {
  const { node } = w;
  const x = w.input(0);
  const shape = w.shape(x);
  const rank = shape.length;
  const axis = normalizeAxis(node, w.numbers(2)?.[0] ?? -2, rank);
  const length = w.numbers(1)?.[0] ?? (shape[axis] as number);
  const isInverse = intAttribute(node, 'inverse', 0) !== 0;
  const isOneSided = intAttribute(node, 'onesided', 0) !== 0;
  const parts = shape[rank - 1] as number;
  check(axis < rank - 1 && (parts === 1 || parts === 2), node, () => `does not transform [${shape.join(', ')}]`);
  check(!isOneSided || (!isInverse && parts === 1), node, () => 'is one-sided for complex numbers');
  // The transformed axis last, the parts apart.
  const order = [...range(rank - 1).filter((one) => one !== axis), axis];
  const used = Math.min(length, shape[axis] as number);
  const part = (index: number): string => {
    const own = w.reshape(w.slice(x, rank - 1, index, index + 1), shape.slice(0, -1));
    return w.slice(w.transpose(own, order), rank - 2, 0, used);
  };
  const count = isOneSided ? Math.floor(length / 2) + 1 : length;
  const matrix = (wave: (angle: number) => number): string => {
    const scale = isInverse ? 1 / length : 1;
    const elements = range(used * count).map((index) => {
      const [place, frequency] = [Math.floor(index / count), index % count];
      return scale * wave((2 * Math.PI * ((place * frequency) % length)) / length);
    });
    return w.constant(tensor(w.type(x), [used, count], elements));
  };
  const [cosines, sines] = [matrix(Math.cos), matrix(isInverse ? (angle) => -Math.sin(angle) : Math.sin)];
  const product = (a: string, b: string): string => w.op('MatMul', [a, b]);
  // (a + bi)·(cos − i·sin) = a·cos + b·sin + (b·cos − a·sin)·i
  const a = part(0);
  const b = parts === 2 ? part(1) : undefined;
  const real = b === undefined ? product(a, cosines) : w.add(product(a, cosines), product(b, sines));
  const imaginary = b === undefined ? w.op('Neg', [product(a, sines)]) : w.sub(product(b, cosines), product(a, sines));
  const back = range(rank - 1).map((one) => order.indexOf(one));
  return w.concat(
    [real, imaginary].map((one) => {
      const turned = w.transpose(one, back);
      return w.reshape(turned, [...w.shape(turned), 1]);
    }),
    rank - 1,
  );
}
