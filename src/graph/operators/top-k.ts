// TopK: the k greatest (or least) elements along an axis, with their indices. Equal elements keep their order.

import { intAttribute } from '../graph.ts';
import { allocate, elementCount, type Tensor, type ValueType } from '../tensor.ts';
import {
  check,
  constantIntegers,
  define,
  int64Only,
  normalizeAxis,
  numericTypes,
  required,
  typeText,
} from './define.ts';
import type { OperatorDefinition } from './definition.ts';
import { span } from './indexing.ts';
import { numbers } from './numbers.ts';

export const topK: OperatorDefinition = define({
  inputs: [2, 2],
  outputs: [2, 2],
  types: [numericTypes, int64Only],
  attributes: { axis: 'int', largest: 'int', sorted: 'int' },
  constantInputs: [1],
  infer(node, inputs, constants) {
    const x = required(inputs, 0);
    const axis = normalizeAxis(node, intAttribute(node, 'axis', -1), x.shape.length);
    check(
      elementCount(required(inputs, 1).shape) === 1,
      node,
      () => `wants one count, not ${typeText(required(inputs, 1))}`,
    );
    check(node.outputs[0] && node.outputs[1], node, () => 'lacks one of its two outputs');
    const count = constantIntegers(node, inputs, constants, 1)?.[0] ?? 0;
    check(count >= 0 && count <= (x.shape[axis] as number), node, () => `wants ${count} of ${x.shape[axis]} elements`);
    const shape = x.shape.with(axis, count);
    return [
      { type: x.type, shape },
      { type: 'int64', shape },
    ];
  },
  evaluate(node, inputs, [result]) {
    const x = required(inputs, 0);
    const { type, shape } = result as ValueType;
    const axis = normalizeAxis(node, intAttribute(node, 'axis', -1), shape.length);
    const largest = intAttribute(node, 'largest', 1) !== 0;
    const [length, count, inner] = [x.shape[axis] as number, shape[axis] as number, span(shape, axis + 1)];
    const values = numbers(x);
    const best = allocate(type, elementCount(shape)) as Float64Array;
    const places = new BigInt64Array(elementCount(shape));
    for (let lane = 0; lane < span(shape, 0, axis) * inner; lane++) {
      const block = Math.floor(lane / inner);
      const at = (index: number): number => values[(block * length + index) * inner + (lane % inner)] as number;
      const order = Array.from({ length }, (_, index) => index).sort((a, b) => {
        const [first, second] = [at(a), at(b)];
        if (first === second) return a - b;
        return first > second === largest ? -1 : 1;
      });
      for (let rank = 0; rank < count; rank++) {
        const [from, to] = [order[rank] as number, (block * count + rank) * inner + (lane % inner)];
        best[to] = x.data[(block * length + from) * inner + (lane % inner)] as number;
        places[to] = BigInt(from);
      }
    }
    const taken: Tensor = { type, shape, data: best };
    return [taken, { type: 'int64', shape, data: places }];
  },
});
