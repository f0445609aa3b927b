// The numbers of element types in ONNX attributes (Cast's `to`, EyeLike's `dtype`): TensorProto.DataType.

import type { Node } from '../graph.ts';
import type { ElementType } from '../tensor.ts';
import { fail } from './define.ts';

const codes: Readonly<Record<ElementType, number>> = {
  float32: 1,
  uint8: 2,
  int8: 3,
  uint16: 4,
  int16: 5,
  int32: 6,
  int64: 7,
  bool: 9,
  float16: 10,
  float64: 11,
  uint32: 12,
  uint64: 13,
};

/** TensorProto.DataType of an element type. */
export function dataTypeCode(type: ElementType): number {
  return codes[type];
}

/** The element type of a code, or undefined if Asteroid does not support it. */
export function elementTypeOfCode(code: number): ElementType | undefined {
  return (Object.keys(codes) as ElementType[]).find((type) => codes[type] === code);
}

/** The element type that a node's attribute names. */
export function elementTypeAttribute(node: Node, attribute: string, code: number): ElementType {
  return (
    elementTypeOfCode(code) ??
    fail(
      node,
      `asks in "${attribute}" for element type ${code} of ONNX, which is not supported; it supports ${Object.entries(
        codes,
      )
        .map(([name, value]) => `${value} (${name})`)
        .join(', ')}`,
    )
  );
}
