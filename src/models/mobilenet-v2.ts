// MobileNetV2 (Sandler et al. 2018) as in torchvision, and with its early strides removed for images of 32x32.

import type { GraphBuilder } from '../graph/builder.ts';
import { normal, zeros } from '../graph/initialization.ts';
import { convNorm, dropoutOf, pooledFeatures } from './blocks.ts';

/** A run of inverted residual blocks: expansion, output channels, blocks, stride of the first. */
type Stage = readonly [expansion: number, channels: number, count: number, stride: number];

/** The parameters in which variants differ. */
export interface MobileNetV2Config {
  readonly stemStride: number;
  readonly stages: readonly Stage[];
}

export const mobileNetV2Config: MobileNetV2Config = {
  stemStride: 2,
  stages: [
    [1, 16, 1, 1],
    [6, 24, 2, 2],
    [6, 32, 3, 2],
    [6, 64, 4, 2],
    [6, 96, 3, 1],
    [6, 160, 3, 2],
    [6, 320, 1, 1],
  ],
};

/** Without the first two of the five strides, as for CIFAR: 32x32 images end as planes of 4x4. */
export const mobileNetV2CifarConfig: MobileNetV2Config = {
  stemStride: 1,
  stages: mobileNetV2Config.stages.map(([expansion, channels, count, stride]) => [
    expansion,
    channels,
    count,
    channels === 24 ? 1 : stride,
  ]),
};

/** Logits of images x [N, C, H, W]. */
export function mobileNetV2(
  b: GraphBuilder,
  x: string,
  { config, classes, dropout }: { config: MobileNetV2Config; classes: number; dropout: number },
): string {
  let y = convNorm(b, x, {
    name: 'features.0',
    outChannels: 32,
    kernel: 3,
    stride: config.stemStride,
    activation: 'relu6',
  });
  let index = 1;
  for (const [expansion, channels, count, stride] of config.stages) {
    for (let block = 0; block < count; block++) {
      y = invertedResidual(b, y, {
        name: `features.${index++}.conv`,
        expansion,
        channels,
        stride: block === 0 ? stride : 1,
      });
    }
  }
  y = convNorm(b, y, { name: `features.${index}`, outChannels: 1280, kernel: 1, activation: 'relu6' });
  y = dropoutOf(b, pooledFeatures(b, y), dropout);
  return b.linear(y, {
    name: 'classifier.1',
    outFeatures: classes,
    weightInitialization: normal(0.01),
    biasInitialization: zeros,
  });
}

function invertedResidual(
  b: GraphBuilder,
  x: string,
  { name, expansion, channels, stride }: { name: string; expansion: number; channels: number; stride: number },
): string {
  const inChannels = b.size(x, 1);
  const hidden = inChannels * expansion;
  let part = 0;
  let y = x;
  if (expansion !== 1)
    y = convNorm(b, y, { name: `${name}.${part++}`, outChannels: hidden, kernel: 1, activation: 'relu6' });
  y = convNorm(b, y, {
    name: `${name}.${part++}`,
    outChannels: hidden,
    kernel: 3,
    stride,
    groups: hidden,
    activation: 'relu6',
  });
  y = convNorm(b, y, {
    name,
    names: [`${name}.${part}`, `${name}.${part + 1}`],
    outChannels: channels,
    kernel: 1,
    activation: 'none',
  });
  return stride === 1 && inChannels === channels ? b.add(x, y) : y;
}
