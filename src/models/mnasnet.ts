// MNASNet-B1 (Tan et al. 2019) as in torchvision, at half width.

import type { GraphBuilder } from '../graph/builder.ts';
import { uniform, zeros } from '../graph/initialization.ts';
import { type Activation, convNorm, dropoutOf, pooledFeatures, roundChannels } from './blocks.ts';

/** A stack of inverted residual blocks: kernel, stride of the first, expansion, blocks, channels at full width. */
type Stack = readonly [kernel: number, stride: number, expansion: number, count: number, channels: number];

const stacks: readonly Stack[] = [
  [3, 2, 3, 3, 24],
  [5, 2, 3, 3, 40],
  [5, 2, 6, 3, 80],
  [3, 1, 6, 2, 96],
  [5, 2, 6, 4, 192],
  [3, 1, 6, 1, 320],
];

/** torchvision passes one minus TensorFlow's 0.9997 as PyTorch's momentum. */
const norm = { momentum: 0.9997 };

/** Logits of images x [N, C, H, W]. `width` scales the channels of all but the last convolution. */
export function mnasNet(
  b: GraphBuilder,
  x: string,
  { width, classes, dropout }: { width: number; classes: number; dropout: number },
): string {
  const channelsOf = (full: number): number => roundChannels(full * width);
  let index = 0;
  const layer = (value: string, outChannels: number, options: LayerOptions): string => {
    const y = namedLayer(b, value, 'layers', index, { outChannels, ...options });
    index += options.activation === 'none' ? 2 : 3;
    return y;
  };
  const stem = channelsOf(32);
  let y = layer(x, stem, { kernel: 3, stride: 2, activation: 'relu' });
  y = layer(y, stem, { kernel: 3, groups: stem, activation: 'relu' });
  y = layer(y, channelsOf(16), { kernel: 1, activation: 'none' });
  for (const [kernel, stride, expansion, count, full] of stacks) {
    for (let block = 0; block < count; block++) {
      const name = `layers.${index}.${block}.layers`;
      y = invertedResidual(b, y, name, {
        kernel,
        stride: block === 0 ? stride : 1,
        expansion,
        channels: channelsOf(full),
      });
    }
    index++;
  }
  y = dropoutOf(b, pooledFeatures(b, layer(y, 1280, { kernel: 1, activation: 'relu' })), dropout);
  return b.linear(y, {
    name: 'classifier.1',
    outFeatures: classes,
    weightInitialization: uniform(Math.sqrt(3 / classes)),
    biasInitialization: zeros,
  });
}

interface LayerOptions {
  readonly kernel: number;
  readonly stride?: number;
  readonly groups?: number;
  readonly activation: Activation;
}

/** Convolution and normalization as modules `index` and `index + 1` of a sequence. */
function namedLayer(
  b: GraphBuilder,
  x: string,
  name: string,
  index: number,
  options: LayerOptions & { outChannels: number },
): string {
  return convNorm(b, x, { name, names: [`${name}.${index}`, `${name}.${index + 1}`], norm, ...options });
}

function invertedResidual(
  b: GraphBuilder,
  x: string,
  name: string,
  { kernel, stride, expansion, channels }: { kernel: number; stride: number; expansion: number; channels: number },
): string {
  const inChannels = b.size(x, 1);
  const hidden = inChannels * expansion;
  let y = namedLayer(b, x, name, 0, { outChannels: hidden, kernel: 1, activation: 'relu' });
  y = namedLayer(b, y, name, 3, { outChannels: hidden, kernel, stride, groups: hidden, activation: 'relu' });
  y = namedLayer(b, y, name, 6, { outChannels: channels, kernel: 1, activation: 'none' });
  return stride === 1 && inChannels === channels ? b.add(y, x) : y;
}
