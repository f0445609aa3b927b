// The small networks of AsyncFGD's Tables 8-11: ConvS, ConvL, FCS, FCL, with ReLU or Tanh. Their tensors have the
// tables' names. Table 9 ends with 256 features although Table 5 names another activation: here a layer `fc4` computes
// logits from them.

import type { GraphBuilder } from '../graph/builder.ts';

/** The parameters that the tables leave open. */
export interface AsyncFgdOptions {
  readonly activation: 'relu' | 'tanh';
  readonly classes: number;
}

/** Table 8. Logits of images x [N, C, H, W]. */
export function convS(b: GraphBuilder, x: string, { activation, classes }: AsyncFgdOptions): string {
  let y = b[activation](b.conv2d(x, { name: 'conv1', outChannels: 32, kernel: 5, padding: 2 }));
  y = b.flatten(b.maxPool2d(y, { kernel: 2 }));
  y = b[activation](b.linear(y, { name: 'fc1', outFeatures: 1000 }));
  return b.linear(y, { name: 'fc2', outFeatures: classes });
}

/** Table 11. Logits of images x [N, C, H, W]. */
export function convL(b: GraphBuilder, x: string, { activation, classes }: AsyncFgdOptions): string {
  let y = x;
  [32, 64, 128, 256, 512].forEach((outChannels, index) => {
    y = b.conv2d(y, { name: `conv${index + 1}`, outChannels, kernel: 3, padding: 2 });
    y = b.maxPool2d(b[activation](b.batchNorm(y, { name: `bn${index + 1}` })), { kernel: 2 });
  });
  return b.linear(b.flatten(y), { name: 'fc1', outFeatures: classes });
}

/** Table 9. Logits of images x [N, C, H, W]. */
export function fcS(b: GraphBuilder, x: string, { activation, classes }: AsyncFgdOptions): string {
  let y = b.flatten(x);
  [1024, 512, 256].forEach((outFeatures, index) => {
    y = b[activation](b.linear(y, { name: `fc${index + 1}`, outFeatures }));
  });
  return b.linear(y, { name: 'fc4', outFeatures: classes });
}

/** Table 10. Logits of images x [N, C, H, W]. */
export function fcL(b: GraphBuilder, x: string, { activation, classes }: AsyncFgdOptions): string {
  let y = b.flatten(x);
  [1024, 1024, 1024, 1024, 512].forEach((outFeatures, index) => {
    y = b.linear(y, { name: `fc${index + 1}`, outFeatures });
    y = b[activation](b.batchNorm(y, { name: `bn${index + 1}` }));
  });
  return b.linear(y, { name: 'fc6', outFeatures: classes });
}
