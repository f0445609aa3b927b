// Matrix products: MatMul with numpy's rules for batches and vectors, Gemm.

import { floatAttribute, intAttribute, type Node } from '../graph.ts';
import { elementCount, type Tensor, type ValueType } from '../tensor.ts';
import { arithmeticTypes, check, define, required, shapeText, typeText } from './define.ts';
import type { OperatorDefinition } from './definition.ts';
import { broadcast, broadcastOffsets, broadcastsTo } from './indexing.ts';
import { isBig, literal, type Numbers, numbers, plainNumbers, scratch, store, storePlain } from './numbers.ts';

export const matmul: Readonly<Record<'Gemm' | 'MatMul', OperatorDefinition>> = {
  // Y = α·A'·B' + β·C
  Gemm: define({
    inputs: [2, 3],
    types: [arithmeticTypes],
    sameType: 'all',
    attributes: { alpha: 'float', beta: 'float', transA: 'int', transB: 'int' },
    infer(node, inputs) {
      const [a, b, c] = [required(inputs, 0), required(inputs, 1), inputs[2]];
      check(
        a.shape.length === 2 && b.shape.length === 2,
        node,
        () => `wants two matrices, not ${shapeText(a.shape)} and ${shapeText(b.shape)}`,
      );
      const { rows, inner, columns, innerOfB } = gemmSizes(node, a, b);
      check(
        inner === innerOfB,
        node,
        () =>
          `multiplies ${rows}x${inner} by ${innerOfB}x${columns} (A ${shapeText(a.shape)}, B ` +
          `${shapeText(b.shape)}); the inner dimensions must be equal`,
      );
      check(
        !c || broadcastsTo(c.shape, [rows, columns]),
        node,
        () => `adds C of shape ${c && shapeText(c.shape)}, which does not broadcast to ${shapeText([rows, columns])}`,
      );
      return [{ type: a.type, shape: [rows, columns] }];
    },
    evaluate: (node, inputs, [result]) => [
      gemm(node, required(inputs, 0), required(inputs, 1), inputs[2], result as ValueType),
    ],
  }),
  MatMul: define({
    inputs: [2, 2],
    types: [arithmeticTypes],
    sameType: 'all',
    infer(node, inputs) {
      const [a, b] = [required(inputs, 0), required(inputs, 1)];
      return [{ type: a.type, shape: productShape(node, a, b) }];
    },
    evaluate: (_node, inputs, [result]) => [product(required(inputs, 0), required(inputs, 1), result as ValueType)],
  }),
};

/** Shapes as matrices: a vector on the left is one row, on the right one column. */
function asMatrices(
  a: readonly number[],
  b: readonly number[],
): readonly [left: readonly number[], right: readonly number[]] {
  return [a.length === 1 ? [1, ...a] : a, b.length === 1 ? [...b, 1] : b];
}

function productShape(node: Node, a: ValueType, b: ValueType): readonly number[] {
  check(
    a.shape.length > 0 && b.shape.length > 0,
    node,
    () => `multiplies ${typeText(a)} by ${typeText(b)}; scalars are for Mul`,
  );
  const [left, right] = asMatrices(a.shape, b.shape);
  const batch = broadcast([left.slice(0, -2), right.slice(0, -2)]);
  check(
    batch && left.at(-1) === right.at(-2),
    node,
    () => `cannot multiply shapes ${shapeText(a.shape)} and ${shapeText(b.shape)}`,
  );
  return [
    ...batch,
    ...(a.shape.length === 1 ? [] : [left.at(-2) as number]),
    ...(b.shape.length === 1 ? [] : [right.at(-1) as number]),
  ];
}

function product(a: Tensor, b: Tensor, { type, shape }: ValueType): Tensor {
  const [left, right] = asMatrices(a.shape, b.shape);
  const [rows, inner, columns] = [left.at(-2) as number, left.at(-1) as number, right.at(-1) as number];
  const batch = broadcast([left.slice(0, -2), right.slice(0, -2)]) as readonly number[];
  const leftBatches = broadcastOffsets(left.slice(0, -2), batch);
  const rightBatches = broadcastOffsets(right.slice(0, -2), batch);
  const [x, y] = [numbers(a), numbers(b)];
  const values = scratch(type, elementCount(shape));
  leftBatches.forEach((leftBatch, index) => {
    const from = {
      x: leftBatch * rows * inner,
      y: (rightBatches[index] as number) * inner * columns,
      result: index * rows * columns,
    };
    accumulate(x, y, values, { rows, inner, columns, ...from, strideX: [inner, 1], strideY: [columns, 1] });
  });
  return store(type, shape, values);
}

interface Block {
  readonly rows: number;
  readonly inner: number;
  readonly columns: number;
  /** Where each matrix starts. */
  readonly x: number;
  readonly y: number;
  readonly result: number;
  readonly strideX: readonly [row: number, column: number];
  readonly strideY: readonly [row: number, column: number];
}

/** result[i, j] += Σₖ x[i, k]·y[k, j]; numbers or bigints alike. */
function accumulate(x: Numbers, y: Numbers, result: Numbers, block: Block): void {
  for (let row = 0; row < block.rows; row++) {
    for (let k = 0; k < block.inner; k++) {
      const factor = x[block.x + row * block.strideX[0] + k * block.strideX[1]] as number;
      for (let column = 0; column < block.columns; column++) {
        (result[block.result + row * block.columns + column] as number) +=
          factor * (y[block.y + k * block.strideY[0] + column * block.strideY[1]] as number);
      }
    }
  }
}

function gemmSizes(
  node: Node,
  a: ValueType,
  b: ValueType,
): { readonly rows: number; readonly inner: number; readonly innerOfB: number; readonly columns: number } {
  const [transA, transB] = [intAttribute(node, 'transA', 0) !== 0, intAttribute(node, 'transB', 0) !== 0];
  const [aRows, aColumns] = a.shape as [number, number];
  const [bRows, bColumns] = b.shape as [number, number];
  return {
    rows: transA ? aColumns : aRows,
    inner: transA ? aRows : aColumns,
    innerOfB: transB ? bColumns : bRows,
    columns: transB ? bRows : bColumns,
  };
}

function gemm(node: Node, a: Tensor, b: Tensor, c: Tensor | undefined, { type, shape }: ValueType): Tensor {
  const { rows, inner, columns } = gemmSizes(node, a, b);
  const strideX: readonly [number, number] = intAttribute(node, 'transA', 0) !== 0 ? [1, rows] : [inner, 1];
  const strideY: readonly [number, number] = intAttribute(node, 'transB', 0) !== 0 ? [1, inner] : [columns, 1];
  const [alpha, beta] = [floatAttribute(node, 'alpha', 1), floatAttribute(node, 'beta', 1)];
  // Whole factors keep 64-bit integers exact; others go through double precision.
  const exact = isBig(type) && Number.isInteger(alpha) && Number.isInteger(beta);
  const read = exact ? numbers : plainNumbers;
  const working = exact || !isBig(type) ? type : 'float64';
  const values = scratch(working, rows * columns);
  accumulate(read(a), read(b), values, { rows, inner, columns, x: 0, y: 0, result: 0, strideX, strideY });
  const [scale, scaleOfC] = [literal(working, alpha), literal(working, beta)];
  const addend = c && read(c);
  const table = c && broadcastOffsets(c.shape, shape);
  for (let index = 0; index < values.length; index++) {
    values[index] = (values[index] as number) * scale;
    if (addend && table) (values[index] as number) += scaleOfC * (addend[table[index] as number] as number);
  }
  return exact ? store(type, shape, values) : storePlain(type, shape, values);
}
