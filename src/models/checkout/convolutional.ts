// Convolutional nets with a classifier: ResNet, MobileNetV2 and EfficientNet, as transformers'
// ResNetForImageClassification, MobileNetV2ForImageClassification and EfficientNetForImageClassification, by the names
// in their files. The momentum in a config.json is the part of the running statistics that is kept, as TensorFlow means
// it; transformers hands it to PyTorch, which takes it for the part that is new.

import { z } from 'zod';
import type { GraphBuilder } from '../../graph/builder.ts';
import { fans, heNormal } from '../../graph/initialization.ts';
import { dropoutOf, pooledFeatures } from '../blocks.ts';
import {
  activation,
  activationName,
  dense,
  epsilonOf,
  type Family,
  family,
  layerCount,
  ratio,
  size,
  widthField,
} from './family.ts';
import { type LabelFields, labelCount, labelFields } from './labels.ts';

const pictureFields = {
  ...labelFields,
  num_channels: z.number().int().min(1).max(16).default(3),
  /** ResNet's config.json has none. */
  image_size: z.number().int().min(1).max(4096).default(224),
};
const listOf = (item: z.ZodType<number>): z.ZodArray<z.ZodType<number>> => z.array(item).min(1).max(100);
const factor = z.number().positive().max(100);
const stride = z.number().int().min(1).max(2);

interface PictureFields extends LabelFields {
  readonly num_channels: number;
  readonly image_size: number;
}

function pictures(b: GraphBuilder, { num_channels: channels, image_size: side }: PictureFields): string {
  return b.input('pixel_values', 'float32', ['N', channels, side, side]);
}

/** A convolution without bias, batch normalization, and an activation. */
interface Layer {
  /** Names of the two. */
  readonly names: readonly [convolution: string, norm: string];
  readonly outChannels: number;
  readonly kernel: number;
  readonly stride?: number;
  readonly padding?: 'same' | readonly [start: number, end: number];
  readonly isDepthwise?: boolean;
  readonly dilation?: number;
  readonly activation?: z.infer<typeof activationName> | undefined;
  readonly epsilon?: number;
  readonly momentum?: number;
}

function layer(b: GraphBuilder, x: string, { names: [convolution, norm], ...options }: Layer): string {
  const { outChannels, kernel, padding = [kernel >> 1, kernel >> 1], isDepthwise = false } = options;
  const { fanOut } = fans([outChannels, 1, kernel, kernel]);
  const y = b.conv2d(x, {
    name: convolution,
    ...{ outChannels, kernel, padding, stride: options.stride ?? 1, dilation: options.dilation ?? 1 },
    groups: isDepthwise ? outChannels : 1,
    bias: false,
    weightInitialization: heNormal(fanOut),
  });
  const { epsilon = 1e-5, momentum = 0.9 } = options;
  const normed = b.batchNorm(y, { name: norm, epsilon, momentum });
  return options.activation === undefined ? normed : activation(b, normed, options.activation);
}

const resnetSchema = z.object({
  ...pictureFields,
  embedding_size: widthField.default(64),
  hidden_sizes: listOf(widthField).default([256, 512, 1024, 2048]),
  depths: listOf(layerCount).default([3, 4, 6, 3]),
  layer_type: z.enum(['basic', 'bottleneck']).default('bottleneck'),
  hidden_act: activationName.default('relu'),
  downsample_in_first_stage: z.boolean().default(false),
  downsample_in_bottleneck: z.boolean().default(false),
});

type ResNetFields = z.infer<typeof resnetSchema>;

export const resnet: Family = family(resnetSchema, {
  task: 'pictures',
  prefix: 'resnet.',
  head: /^classifier\./,
  build(b, config, options) {
    const { embedding_size: outChannels, hidden_act: act } = config;
    const stem = namesIn('resnet.embedder.embedder');
    let x = layer(b, pictures(b, config), { names: stem, outChannels, kernel: 7, stride: 2, activation: act });
    x = b.maxPool2d(x, { kernel: 3, stride: 2, padding: 1 });
    if (config.depths.length !== config.hidden_sizes.length) throw new Error('depths are not as many as hidden_sizes');
    for (const [stage, depth] of config.depths.entries())
      for (let index = 0; index < depth; index++) {
        const halves = index === 0 && (stage > 0 || config.downsample_in_first_stage);
        x = residualBlock(b, x, config, {
          name: `resnet.encoder.stages.${stage}.layers.${index}`,
          outChannels: config.hidden_sizes[stage] as number,
          stride: halves ? 2 : 1,
        });
      }
    return dense(b, pooledFeatures(b, x), 'classifier.1', labelCount(config, options));
  },
});

function residualBlock(
  b: GraphBuilder,
  x: string,
  { hidden_act: act, layer_type: kind, downsample_in_bottleneck: isEarly }: ResNetFields,
  block: { readonly name: string; readonly outChannels: number; readonly stride: number },
): string {
  const { name, outChannels, stride: step } = block;
  const part = (y: string, index: number, options: Omit<Layer, 'names'>): string =>
    layer(b, y, { names: namesIn(`${name}.layer.${index}`), ...options });
  const narrow = Math.floor(outChannels / 4);
  const [first, second] = isEarly ? [step, 1] : [1, step];
  const y =
    kind === 'basic'
      ? part(part(x, 0, { outChannels, kernel: 3, stride: step, activation: act }), 1, { outChannels, kernel: 3 })
      : part(
          part(part(x, 0, { outChannels: narrow, kernel: 1, stride: first, activation: act }), 1, {
            ...{ outChannels: narrow, kernel: 3, stride: second, activation: act },
          }),
          2,
          { outChannels, kernel: 1 },
        );
  const changes = step !== 1 || b.size(x, 1) !== outChannels;
  const shortcut = { names: namesIn(`${name}.shortcut`), outChannels, kernel: 1, stride: step };
  return activation(b, b.add(y, changes ? layer(b, x, shortcut) : x), act);
}

const namesIn = (name: string): readonly [string, string] => [`${name}.convolution`, `${name}.normalization`];

const mobilenetSchema = z.object({
  ...pictureFields,
  depth_multiplier: factor.default(1),
  depth_divisible_by: size.default(8),
  min_depth: size.default(8),
  expand_ratio: factor.default(6),
  output_stride: z.number().int().min(1).max(32).default(32),
  first_layer_is_expansion: z.boolean().default(true),
  finegrained_output: z.boolean().default(true),
  hidden_act: activationName.default('relu6'),
  tf_padding: z.boolean().default(true),
  classifier_dropout_prob: ratio.default(0.8),
  layer_norm_eps: epsilonOf(0.001),
});

const mobilenetChannels = [16, 24, 24, 32, 32, 32, 64, 64, 64, 64, 96, 96, 96, 160, 160, 160, 320];
const mobilenetStrides = [2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1];

export const mobilenetV2: Family = family(mobilenetSchema, {
  task: 'pictures',
  prefix: 'mobilenet_v2.',
  head: /^classifier\./,
  build(b, config, options) {
    const { depth_divisible_by: divisor, min_depth: least, depth_multiplier: multiplier } = config;
    const wide = (channels: number): number => divisible(halfToEven(channels), divisor, least);
    const part = (x: string, name: string, given: Omit<Layer, 'names'>): string =>
      layer(b, x, {
        names: namesIn(`mobilenet_v2.${name}`),
        ...{ epsilon: config.layer_norm_eps, momentum: 0.997, ...given },
        padding: config.tf_padding ? 'same' : paddingOf(given),
      });
    const [act, channels] = [config.hidden_act, mobilenetChannels.map((count) => wide(count * multiplier))];
    const stemChannels = wide(32 * multiplier);
    const stem = { outChannels: stemChannels, activation: act };
    let x = part(pictures(b, config), 'conv_stem.first_conv', { ...stem, kernel: 3, stride: 2 });
    if (!config.first_layer_is_expansion) x = part(x, 'conv_stem.expand_1x1', { ...stem, kernel: 1 });
    x = part(x, 'conv_stem.conv_3x3', { ...stem, kernel: 3, isDepthwise: true });
    x = part(x, 'conv_stem.reduce_1x1', { outChannels: channels[0] as number, kernel: 1 });
    let [current, dilation] = [2, 1];
    for (const [index, usual] of mobilenetStrides.entries()) {
      const isDilated = current === config.output_stride;
      const [step, spread] = isDilated ? [1, dilation] : [usual, 1];
      if (isDilated) dilation *= usual;
      else current *= step;
      const outChannels = channels[index + 1] as number;
      const middle = { outChannels: wide(b.size(x, 1) * config.expand_ratio), activation: act };
      const expanded = part(x, `layer.${index}.expand_1x1`, { ...middle, kernel: 1 });
      const filtered = { ...middle, kernel: 3, stride: step, dilation: spread, isDepthwise: true };
      const y = part(part(expanded, `layer.${index}.conv_3x3`, filtered), `layer.${index}.reduce_1x1`, {
        ...{ outChannels, kernel: 1 },
      });
      x = step === 1 && b.size(x, 1) === outChannels ? b.add(x, y) : y;
    }
    const last = config.finegrained_output && multiplier < 1 ? 1280 : wide(1280 * multiplier);
    x = part(x, 'conv_1x1', { outChannels: last, kernel: 1, activation: act });
    const { dropout = config.classifier_dropout_prob } = options;
    return dense(b, dropoutOf(b, pooledFeatures(b, x), dropout), 'classifier', labelCount(config, options));
  },
});

function paddingOf({ kernel, dilation = 1 }: Pick<Layer, 'kernel' | 'dilation'>): readonly [number, number] {
  const side = Math.floor((kernel - 1) / 2) * dilation;
  return [side, side];
}

/** Python's round: a half goes to the even neighbour. */
function halfToEven(value: number): number {
  const rounded = Math.round(value);
  return value % 1 === 0.5 && rounded % 2 === 1 ? rounded - 1 : rounded;
}

/** The nearest multiple, and not below nine tenths of the value. */
function divisible(value: number, divisor: number, least: number = divisor): number {
  const near = Math.max(least, Math.floor(Math.floor(value + divisor / 2) / divisor) * divisor);
  return near < 0.9 * value ? near + divisor : near;
}

const efficientnetSchema = z.object({
  ...pictureFields,
  image_size: pictureFields.image_size.default(600),
  width_coefficient: factor.default(2),
  depth_coefficient: factor.max(10).default(3.1),
  depth_divisor: size.default(8),
  kernel_sizes: listOf(z.number().int().min(1).max(11)).default([3, 3, 5, 3, 5, 5, 3]),
  in_channels: listOf(widthField).default([32, 16, 24, 40, 80, 112, 192]),
  out_channels: listOf(widthField).default([16, 24, 40, 80, 112, 192, 320]),
  strides: listOf(stride).default([1, 2, 2, 2, 1, 2, 1]),
  num_block_repeats: listOf(layerCount).default([1, 2, 2, 3, 3, 4, 1]),
  expand_ratios: listOf(z.number().int().min(1).max(100)).default([1, 6, 6, 6, 6, 6, 6]),
  depthwise_padding: z.array(z.number().int().min(0)).max(1000).default([]),
  squeeze_expansion_ratio: factor.max(1).default(0.25),
  hidden_act: activationName.default('swish'),
  hidden_dim: widthField.default(2560),
  pooling_type: z.literal('mean').default('mean'),
  batch_norm_eps: epsilonOf(0.001),
  batch_norm_momentum: z.number().min(0).max(1).default(0.99),
  dropout_rate: ratio.default(0.5),
  drop_connect_rate: ratio.default(0.2),
});

type EfficientNetFields = z.infer<typeof efficientnetSchema>;

export const efficientnet: Family = family(efficientnetSchema, {
  task: 'pictures',
  prefix: 'efficientnet.',
  head: /^classifier\./,
  build(b, config, options) {
    const { depth_divisor: divisor, width_coefficient: factorOf, hidden_act: act } = config;
    const wide = (channels: number): number => divisible(channels * factorOf, divisor);
    const norms = { epsilon: config.batch_norm_eps, momentum: config.batch_norm_momentum };
    let x = layer(b, pictures(b, config), {
      names: ['efficientnet.embeddings.convolution', 'efficientnet.embeddings.batchnorm'],
      ...{ outChannels: wide(32), kernel: 3, stride: 2, padding: [0, 1], activation: act, ...norms },
    });
    const blocks = blocksOf(config, wide);
    for (const [index, block] of blocks.entries()) {
      const dropout = options.dropout ?? (config.drop_connect_rate * index) / blocks.length;
      x = efficientBlock(b, x, config, { ...block, name: `efficientnet.encoder.blocks.${index}`, dropout });
    }
    x = layer(b, x, {
      names: ['efficientnet.encoder.top_conv', 'efficientnet.encoder.top_bn'],
      ...{ outChannels: config.hidden_dim, kernel: 1, activation: act, ...norms },
    });
    const { dropout = config.dropout_rate } = options;
    return dense(b, dropoutOf(b, pooledFeatures(b, x), dropout), 'classifier', labelCount(config, options));
  },
});

interface EfficientBlock {
  readonly inChannels: number;
  readonly outChannels: number;
  readonly kernel: number;
  readonly stride: number;
  readonly expansion: number;
  readonly isFirst: boolean;
  readonly padding: readonly [number, number];
}

function blocksOf(config: EfficientNetFields, wide: (channels: number) => number): readonly EfficientBlock[] {
  const blocks: EfficientBlock[] = [];
  const lists = [config.in_channels, config.out_channels, config.strides, config.kernel_sizes, config.expand_ratios];
  const { num_block_repeats: repeats, depth_coefficient: depth } = config;
  if (lists.some(({ length }) => length !== repeats.length)) throw new Error('lists of blocks have different lengths');
  for (const [stage, repeat] of repeats.entries()) {
    const [inChannels, outChannels] = [wide(lists[0]?.[stage] ?? 0), wide(lists[1]?.[stage] ?? 0)];
    const [step = 1, kernel = 1, expansion = 1] = lists.slice(2).map((list) => list[stage]);
    for (let index = 0; index < Math.ceil(depth * repeat); index++) {
      const half = kernel >> 1;
      const isAdjusted = index === 0 && step === 2 && !config.depthwise_padding.includes(blocks.length);
      blocks.push({
        inChannels: index === 0 ? inChannels : outChannels,
        ...{ outChannels, kernel, expansion, stride: index === 0 ? step : 1, isFirst: index === 0 },
        padding: isAdjusted ? [half - 1, half] : [half, half],
      });
    }
  }
  if (blocks.length > 1000) throw new Error(`${blocks.length} blocks are more than 1000`);
  return blocks;
}

function efficientBlock(
  b: GraphBuilder,
  x: string,
  config: EfficientNetFields,
  block: EfficientBlock & { readonly name: string; readonly dropout: number },
): string {
  const { name, inChannels, outChannels, kernel, expansion } = block;
  const { hidden_act: act, batch_norm_eps: epsilon, batch_norm_momentum: momentum } = config;
  const part = (y: string, convolution: string, norm: string, given: Omit<Layer, 'names' | 'epsilon'>): string =>
    layer(b, y, { names: [`${name}.${convolution}`, `${name}.${norm}`], epsilon, momentum, ...given });
  const middle = inChannels * expansion;
  let y = x;
  if (expansion !== 1)
    y = part(y, 'expansion.expand_conv', 'expansion.expand_bn', {
      ...{ outChannels: middle, kernel: 1, activation: act, momentum: 0.9 },
    });
  y = part(y, 'depthwise_conv.depthwise_conv', 'depthwise_conv.depthwise_norm', {
    ...{ outChannels: middle, kernel, stride: block.stride, padding: block.padding },
    ...{ isDepthwise: true, activation: act },
  });
  const squeezed = Math.max(1, Math.floor(inChannels * config.squeeze_expansion_ratio));
  const conv = (z: string, at: string, count: number): string =>
    b.conv2d(z, { name: `${name}.squeeze_excite.${at}`, outChannels: count, kernel: 1 });
  const reduced = activation(b, conv(b.globalAveragePool(y), 'reduce', squeezed), act);
  y = b.mul(y, b.sigmoid(conv(reduced, 'expand', middle)));
  y = part(y, 'projection.project_conv', 'projection.project_bn', { outChannels, kernel: 1 });
  return block.stride === 1 && !block.isFirst ? b.add(dropoutOf(b, y, block.dropout), x) : y;
}
