// ShuffleNetV2 (Ma et al. 2018) as in torchvision.

import type { GraphBuilder } from '../graph/builder.ts';
import { int } from '../graph/graph.ts';
import { fanInUniform } from '../graph/initialization.ts';
import { int64s } from '../graph/tensor.ts';
import { type Activation, convNorm, pooledFeatures } from './blocks.ts';

/** Blocks of the three stages, and channels: of the stem, the three stages, the last convolution. */
export interface ShuffleNetV2Config {
  readonly counts: readonly number[];
  readonly channels: readonly [stem: number, ...stages: [number, number, number], last: number];
}

export const shuffleNetV2HalfConfig: ShuffleNetV2Config = { counts: [4, 8, 4], channels: [24, 48, 96, 192, 1024] };

/** Logits of images x [N, C, H, W]. */
export function shuffleNetV2(
  b: GraphBuilder,
  x: string,
  { config, classes }: { config: ShuffleNetV2Config; classes: number },
): string {
  const [stem, ...rest] = config.channels;
  const last = rest.pop() as number;
  let y = layer(b, x, 'conv1', 0, { outChannels: stem, kernel: 3, stride: 2, activation: 'relu' });
  y = b.maxPool2d(y, { kernel: 3, stride: 2, padding: 1 });
  rest.forEach((channels, stage) => {
    for (let index = 0; index < (config.counts[stage] as number); index++) {
      const name = `stage${stage + 2}.${index}`;
      y = shuffle(b, index === 0 ? splitUnit(b, y, name, channels / 2) : unit(b, y, name));
    }
  });
  y = layer(b, y, 'conv5', 0, { outChannels: last, kernel: 1, activation: 'relu' });
  return b.linear(pooledFeatures(b, y), { name: 'fc', outFeatures: classes });
}

interface LayerOptions {
  readonly outChannels: number;
  readonly kernel: number;
  readonly stride?: number;
  readonly groups?: number;
  readonly activation: Activation;
}

/**
 * Convolution and normalization as modules `index` and `index + 1` of a sequence, with PyTorch's own initial weights.
 */
function layer(b: GraphBuilder, x: string, name: string, index: number, options: LayerOptions): string {
  const fanIn = (b.size(x, 1) / (options.groups ?? 1)) * options.kernel ** 2;
  const names = [`${name}.${index}`, `${name}.${index + 1}`] as const;
  return convNorm(b, x, { name, names, weightInitialization: fanInUniform(fanIn), ...options });
}

/** A unit of stride 1: half of the channels pass unchanged, the other half are convolved. */
function unit(b: GraphBuilder, x: string, name: string): string {
  const half = b.size(x, 1) / 2;
  const [pass = '', work = ''] = b.node('Split', [x, b.constant(int64s([half, half]))], { axis: int(1) }, 2);
  return b.concat([pass, branch(b, work, `${name}.branch2`, half, 1)], 1);
}

/** A unit of stride 2: two branches over all channels. */
function splitUnit(b: GraphBuilder, x: string, name: string, outChannels: number): string {
  const inChannels = b.size(x, 1);
  const short = `${name}.branch1`;
  const spatial = layer(b, x, short, 0, {
    outChannels: inChannels,
    kernel: 3,
    stride: 2,
    groups: inChannels,
    activation: 'none',
  });
  const first = layer(b, spatial, short, 2, { outChannels, kernel: 1, activation: 'relu' });
  return b.concat([first, branch(b, x, `${name}.branch2`, outChannels, 2)], 1);
}

function branch(b: GraphBuilder, x: string, name: string, outChannels: number, stride: number): string {
  const expanded = layer(b, x, name, 0, { outChannels, kernel: 1, activation: 'relu' });
  const spatial = layer(b, expanded, name, 3, {
    outChannels,
    kernel: 3,
    stride,
    groups: outChannels,
    activation: 'none',
  });
  return layer(b, spatial, name, 5, { outChannels, kernel: 1, activation: 'relu' });
}

/** Interleaves the channels of the two halves. */
function shuffle(b: GraphBuilder, x: string): string {
  const [channels, height, width] = [b.size(x, 1), b.size(x, 2), b.size(x, 3)];
  const split = b.transpose(b.reshape(x, ['N', 2, channels / 2, height, width]), [0, 2, 1, 3, 4]);
  return b.reshape(split, ['N', channels, height, width]);
}
