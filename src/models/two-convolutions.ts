// The network of the Fashion-MNIST example: two convolutions with pools, two linear layers with dropout before each;
// 421,642 parameters. No batch normalization, so that any stage may be replicated.

import type { GraphBuilder } from '../graph/builder.ts';

/** Logits [N, 10] of grey images [N, 1, 28, 28] with values 0–1. */
export function twoConvolutions(b: GraphBuilder, image: string): string {
  let x = b.relu(b.conv2d(image, { name: 'conv1', outChannels: 32, kernel: 3, padding: 1 }));
  x = b.maxPool2d(x, { kernel: 2 });
  x = b.relu(b.conv2d(x, { name: 'conv2', outChannels: 64, kernel: 3, padding: 1 }));
  x = b.maxPool2d(x, { kernel: 2 });
  x = b.dropout(b.flatten(x), 0.25);
  x = b.relu(b.linear(x, { name: 'hidden', outFeatures: 128 }));
  return b.linear(b.dropout(x, 0.25), { name: 'classifier', outFeatures: 10 });
}
