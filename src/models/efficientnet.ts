// EfficientNet (Tan and Le 2019) as in torchvision, B0 and B1, without stochastic depth.

import type { GraphBuilder } from '../graph/builder.ts';
import { uniform, zeros } from '../graph/initialization.ts';
import { convNorm, dropoutOf, pooledFeatures, squeezeExcite } from './blocks.ts';

/** A run of blocks: expansion, kernel, stride of the first, output channels, blocks. */
type Stage = readonly [expansion: number, kernel: number, stride: number, channels: number, count: number];

/** The paper's Table 1. */
const baseStages: readonly Stage[] = [
  [1, 3, 1, 16, 1],
  [6, 3, 2, 24, 2],
  [6, 5, 2, 40, 2],
  [6, 3, 2, 80, 3],
  [6, 5, 1, 112, 3],
  [6, 5, 2, 192, 4],
  [6, 3, 1, 320, 1],
];

/** The stages with their numbers of blocks multiplied by `depth`, rounded up. */
export function efficientNetStages(depth: number): readonly Stage[] {
  return baseStages.map(([expansion, kernel, stride, channels, count]) => [
    expansion,
    kernel,
    stride,
    channels,
    Math.ceil(count * depth),
  ]);
}

/** Logits of images x [N, C, H, W]. */
export function efficientNet(
  b: GraphBuilder,
  x: string,
  { stages, classes, dropout }: { stages: readonly Stage[]; classes: number; dropout: number },
): string {
  let y = convNorm(b, x, { name: 'features.0', outChannels: 32, kernel: 3, stride: 2, activation: 'silu' });
  stages.forEach(([expansion, kernel, stride, channels, count], stage) => {
    for (let block = 0; block < count; block++) {
      const name = `features.${stage + 1}.${block}.block`;
      y = mobileBlock(b, y, { name, expansion, kernel, stride: block === 0 ? stride : 1, channels });
    }
  });
  const outChannels = 4 * b.size(y, 1);
  y = convNorm(b, y, { name: `features.${stages.length + 1}`, outChannels, kernel: 1, activation: 'silu' });
  y = dropoutOf(b, pooledFeatures(b, y), dropout);
  return b.linear(y, {
    name: 'classifier.1',
    outFeatures: classes,
    weightInitialization: uniform(1 / Math.sqrt(classes)),
    biasInitialization: zeros,
  });
}

function mobileBlock(
  b: GraphBuilder,
  x: string,
  block: { name: string; expansion: number; kernel: number; stride: number; channels: number },
): string {
  const { name, expansion, kernel, stride, channels } = block;
  const inChannels = b.size(x, 1);
  const hidden = inChannels * expansion;
  let part = 0;
  let y = x;
  if (hidden !== inChannels)
    y = convNorm(b, y, { name: `${name}.${part++}`, outChannels: hidden, kernel: 1, activation: 'silu' });
  y = convNorm(b, y, {
    name: `${name}.${part++}`,
    outChannels: hidden,
    kernel,
    stride,
    groups: hidden,
    activation: 'silu',
  });
  const squeezeChannels = Math.max(1, Math.floor(inChannels / 4));
  y = squeezeExcite(b, y, { name: `${name}.${part++}`, squeezeChannels, activation: 'silu', gate: 'sigmoid' });
  y = convNorm(b, y, { name: `${name}.${part}`, outChannels: channels, kernel: 1, activation: 'none' });
  return stride === 1 && inChannels === channels ? b.add(y, x) : y;
}
