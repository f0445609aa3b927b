// The types that ONNX Runtime's operators on blocked values give their results (what lowering writes, see
// lowering/layouts.ts).

import { defined } from '../assert.ts';
import { intAttribute, intsAttribute, type Node } from '../graph/graph.ts';
import type { ValueType } from '../graph/tensor.ts';
import { blockedDomain } from '../lowering/layouts.ts';

/** The type of a node's result; undefined for other domains. `block` is the number of channels of a block. */
export function blockedType(node: Node, [x, w]: readonly (ValueType | undefined)[], block = 16): ValueType | undefined {
  if (node.domain !== blockedDomain || x === undefined) return undefined;
  const [samples = 1, channels = 1, ...image] = x.shape;
  const { type } = x;
  switch (node.operator) {
    case 'ReorderInput':
      return { type, shape: [samples, Math.ceil(channels / block) * block, ...image] };
    case 'ReorderOutput': {
      const kept = intAttribute(node, 'channels', channels);
      return {
        type,
        shape: intAttribute(node, 'channels_last', 0) === 0 ? [samples, kept, ...image] : [samples, ...image, kept],
      };
    }
    case 'Conv':
      return { type, shape: [samples, defined(w, 'the filter').shape[0] as number, ...windows(node, image)] };
    case 'GlobalAveragePool':
    case 'GlobalMaxPool':
      return { type, shape: [samples, channels, ...image.map(() => 1)] };
    default:
      return { type, shape: [samples, channels, ...windows(node, image)] };
  }
}

/** Places that a kernel takes on each axis. */
function windows(node: Node, image: readonly number[]): readonly number[] {
  const kernel = intsAttribute(node, 'kernel_shape') ?? image.map(() => 1);
  const strides = intsAttribute(node, 'strides');
  const dilations = intsAttribute(node, 'dilations');
  const pads = intsAttribute(node, 'pads');
  return image.map((size, axis) => {
    const padded = size + (pads?.[axis] ?? 0) + (pads?.[axis + image.length] ?? 0);
    const reach = ((kernel[axis] as number) - 1) * (dilations?.[axis] ?? 1) + 1;
    return Math.floor((padded - reach) / (strides?.[axis] ?? 1)) + 1;
  });
}
