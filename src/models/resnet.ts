// ResNet (He et al. 2016) as in torchvision: the stride of a bottleneck is in its 3x3 convolution.

import type { GraphBuilder } from '../graph/builder.ts';
import { convNorm, pooledFeatures } from './blocks.ts';

/** Which blocks, and how many in each of the four stages. */
export interface ResNetConfig {
  readonly block: 'basic' | 'bottleneck';
  readonly counts: readonly number[];
}

export const resNet18Config: ResNetConfig = { block: 'basic', counts: [2, 2, 2, 2] };
export const resNet50Config: ResNetConfig = { block: 'bottleneck', counts: [3, 4, 6, 3] };

/** Logits of images x [N, C, H, W]. */
export function resNet(
  b: GraphBuilder,
  x: string,
  { config, classes }: { config: ResNetConfig; classes: number },
): string {
  let y = convNorm(b, x, {
    name: 'stem',
    names: ['conv1', 'bn1'],
    outChannels: 64,
    kernel: 7,
    stride: 2,
    activation: 'relu',
  });
  y = b.maxPool2d(y, { kernel: 3, stride: 2, padding: 1 });
  config.counts.forEach((count, stage) => {
    for (let index = 0; index < count; index++) {
      const stride = index === 0 && stage > 0 ? 2 : 1;
      y = residualBlock(b, y, {
        name: `layer${stage + 1}.${index}`,
        kind: config.block,
        width: 64 * 2 ** stage,
        stride,
      });
    }
  });
  return b.linear(pooledFeatures(b, y), { name: 'fc', outFeatures: classes });
}

function residualBlock(
  b: GraphBuilder,
  x: string,
  { name, kind, width, stride }: { name: string; kind: ResNetConfig['block']; width: number; stride: number },
): string {
  const part = (
    y: string,
    index: number,
    outChannels: number,
    kernel: number,
    step: number,
    activation: 'relu' | 'none',
  ): string =>
    convNorm(b, y, {
      name,
      names: [`${name}.conv${index}`, `${name}.bn${index}`],
      outChannels,
      kernel,
      stride: step,
      activation,
    });
  const outChannels = kind === 'basic' ? width : 4 * width;
  let y: string;
  if (kind === 'basic') {
    y = part(part(x, 1, width, 3, stride, 'relu'), 2, width, 3, 1, 'none');
  } else {
    y = part(part(part(x, 1, width, 1, 1, 'relu'), 2, width, 3, stride, 'relu'), 3, outChannels, 1, 1, 'none');
  }
  const changes = stride !== 1 || b.size(x, 1) !== outChannels;
  const shortcut = changes
    ? convNorm(b, x, { name: `${name}.downsample`, outChannels, kernel: 1, stride, activation: 'none' })
    : x;
  return b.relu(b.add(y, shortcut));
}
