// The quickstart's network for 28x28 grey digits: two convolutions with pools, two linear layers with dropout between; 237,514 parameters. No batch normalization, so that any
// stage may be replicated and the distributed run equals the single-device run.

import { GraphBuilder } from '../graph/builder.ts';
import type { Graph } from '../graph/graph.ts';

/** Input `image` float32 [N, 1, 28, 28] with values 0–1; output: logits [N, 10]. */
export function digitsNet(seed: number): Graph {
  const builder = new GraphBuilder('digits', { seed });
  let x = builder.input('image', 'float32', ['N', 1, 28, 28]);
  x = builder.relu(builder.conv2d(x, { name: 'conv1', outChannels: 24, kernel: 3, padding: 1 }));
  x = builder.maxPool2d(x, { kernel: 2 });
  x = builder.relu(builder.conv2d(x, { name: 'conv2', outChannels: 48, kernel: 3, padding: 1 }));
  x = builder.maxPool2d(x, { kernel: 2 });
  x = builder.relu(builder.linear(builder.flatten(x), { name: 'hidden', outFeatures: 96 }));
  x = builder.dropout(x, 0.25);
  return builder.build([builder.linear(x, { name: 'classifier', outFeatures: 10 })]);
}
