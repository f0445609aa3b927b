// MobileNetV3-Small (Howard et al. 2019) as in torchvision.

import type { GraphBuilder } from '../graph/builder.ts';
import { normal, zeros } from '../graph/initialization.ts';
import { type Activation, convNorm, dropoutOf, pooledFeatures, roundChannels, squeezeExcite } from './blocks.ts';

/** One block: kernel, expanded channels, output channels, squeeze-and-excitation, activation, stride. */
type Block = readonly [
  kernel: number,
  expanded: number,
  channels: number,
  squeezes: boolean,
  activation: 'relu' | 'hardSwish',
  stride: number,
];

/** The paper's Table 2. */
const smallBlocks: readonly Block[] = [
  [3, 16, 16, true, 'relu', 2],
  [3, 72, 24, false, 'relu', 2],
  [3, 88, 24, false, 'relu', 1],
  [5, 96, 40, true, 'hardSwish', 2],
  [5, 240, 40, true, 'hardSwish', 1],
  [5, 240, 40, true, 'hardSwish', 1],
  [5, 120, 48, true, 'hardSwish', 1],
  [5, 144, 48, true, 'hardSwish', 1],
  [5, 288, 96, true, 'hardSwish', 2],
  [5, 576, 96, true, 'hardSwish', 1],
  [5, 576, 96, true, 'hardSwish', 1],
];

const norm = { epsilon: 1e-3, momentum: 0.99 };

/** Logits of images x [N, C, H, W]. */
export function mobileNetV3Small(
  b: GraphBuilder,
  x: string,
  { classes, dropout }: { classes: number; dropout: number },
): string {
  let y = convNorm(b, x, { name: 'features.0', outChannels: 16, kernel: 3, stride: 2, activation: 'hardSwish', norm });
  smallBlocks.forEach((block, index) => {
    y = invertedResidual(b, y, `features.${index + 1}.block`, block);
  });
  const last = smallBlocks.length + 1;
  y = convNorm(b, y, {
    name: `features.${last}`,
    outChannels: 6 * b.size(y, 1),
    kernel: 1,
    activation: 'hardSwish',
    norm,
  });
  const linear = { weightInitialization: normal(0.01), biasInitialization: zeros };
  y = b.hardSwish(b.linear(pooledFeatures(b, y), { name: 'classifier.0', outFeatures: 1024, ...linear }));
  return b.linear(dropoutOf(b, y, dropout), { name: 'classifier.3', outFeatures: classes, ...linear });
}

function invertedResidual(
  b: GraphBuilder,
  x: string,
  name: string,
  [kernel, expanded, channels, squeezes, activation, stride]: Block,
): string {
  let part = 0;
  const layer = (
    value: string,
    outChannels: number,
    options: { kernel: number; stride?: number; groups?: number; activation: Activation },
  ): string => convNorm(b, value, { name: `${name}.${part++}`, outChannels, norm, ...options });
  const inChannels = b.size(x, 1);
  let y = expanded === inChannels ? x : layer(x, expanded, { kernel: 1, activation });
  y = layer(y, expanded, { kernel, stride, groups: expanded, activation });
  if (squeezes) {
    const squeezeChannels = roundChannels(Math.floor(expanded / 4));
    y = squeezeExcite(b, y, { name: `${name}.${part++}`, squeezeChannels, activation: 'relu', gate: 'hardSigmoid' });
  }
  y = layer(y, channels, { kernel: 1, activation: 'none' });
  return stride === 1 && inChannels === channels ? b.add(y, x) : y;
}
