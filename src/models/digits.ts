// The quickstart's network for 28x28 grey digits: two convolutions with pools, two linear layers with dropout between;
// 237,514 parameters. No batch normalization, so that any stage may be replicated and the distributed run equals the
// single-device run.

import type { GraphBuilder } from '../graph/builder.ts';

/** Logits [N, 10] of images [N, 1, 28, 28] with values 0–1. */
export function digits(builder: GraphBuilder, image: string): string {
  let x = builder.relu(builder.conv2d(image, { name: 'conv1', outChannels: 24, kernel: 3, padding: 1 }));
  x = builder.maxPool2d(x, { kernel: 2 });
  x = builder.relu(builder.conv2d(x, { name: 'conv2', outChannels: 48, kernel: 3, padding: 1 }));
  x = builder.maxPool2d(x, { kernel: 2 });
  x = builder.relu(builder.linear(builder.flatten(x), { name: 'hidden', outFeatures: 96 }));
  x = builder.dropout(x, 0.25);
  return builder.linear(x, { name: 'classifier', outFeatures: 10 });
}
