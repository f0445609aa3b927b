// Vision transformers with a classifier, as transformers' ViTForImageClassification, DeiTForImageClassification and
// DeiTForImageClassificationWithTeacher, by the names in their files.

import { z } from 'zod';
import type { GraphBuilder } from '../../graph/builder.ts';
import { zeros } from '../../graph/initialization.ts';
import { int64s, scalar } from '../../graph/tensor.ts';
import { selfAttention, sliceRows } from '../attention.ts';
import { dropoutOf } from '../blocks.ts';
import {
  activation,
  activationName,
  type CheckoutOptions,
  dense,
  epsilonOf,
  type Family,
  family,
  initialWeights,
  layerCount,
  ratio,
  size,
  widthField,
} from './family.ts';
import { labelCount, labelFields } from './labels.ts';

const vitSchema = z.object({
  ...labelFields,
  architectures: z.array(z.string()).nullish(),
  hidden_size: widthField,
  num_hidden_layers: layerCount,
  num_attention_heads: size,
  intermediate_size: widthField,
  hidden_act: activationName.default('gelu'),
  hidden_dropout_prob: ratio.default(0),
  attention_probs_dropout_prob: ratio.default(0),
  layer_norm_eps: epsilonOf(1e-12),
  image_size: size.default(224),
  patch_size: size.default(16),
  num_channels: size.default(3),
  qkv_bias: z.boolean().default(true),
});

type VitFields = z.infer<typeof vitSchema>;

/** Files keep the names of transformers 4; in memory these are others since transformers 5. */
const renamed: readonly (readonly [inFiles: RegExp, inMemory: string])[] = [
  [/\.encoder\.layer\./, '.layers.'],
  [/\.attention\.attention\.query\b/, '.attention.q_proj'],
  [/\.attention\.attention\.key\b/, '.attention.k_proj'],
  [/\.attention\.attention\.value\b/, '.attention.v_proj'],
  [/\.attention\.output\.dense\b/, '.attention.o_proj'],
  [/\.intermediate\.dense\b/, '.mlp.fc1'],
  [/\.output\.dense\b/, '.mlp.fc2'],
];

function moduleName(fileName: string): string {
  return renamed.reduce((name, [inFiles, inMemory]) => name.replace(inFiles, inMemory), fileName);
}

export const vit: Family = family(vitSchema, {
  task: 'pictures',
  prefix: 'vit.',
  head: /^classifier\./,
  moduleName,
  build(b, config, options) {
    const encoded = encoder(b, config, options, { name: 'vit', tokens: ['cls_token'] });
    return dense(b, normedPosition(b, encoded, 0, config, 'vit'), 'classifier', labelCount(config, options));
  },
});

export const deit: Family = family(vitSchema, {
  task: 'pictures',
  prefix: 'deit.',
  head: /^(classifier|cls_classifier|distillation_classifier)\./,
  moduleName,
  build(b, config, options) {
    const encoded = encoder(b, config, options, { name: 'deit', tokens: ['cls_token', 'distillation_token'] });
    const classes = labelCount(config, options);
    const first = normedPosition(b, encoded, 0, config, 'deit');
    if (!(config.architectures ?? []).some((name) => name.endsWith('WithTeacher')))
      return dense(b, first, 'classifier', classes);
    // the mean of what both tokens say
    const second = normedPosition(b, encoded, 1, config, 'deit');
    const sum = b.add(dense(b, first, 'cls_classifier', classes), dense(b, second, 'distillation_classifier', classes));
    return b.mul(sum, b.constant(scalar('float32', 0.5)));
  },
});

/** Only one position is read, and positions are normalized independently; weights and biases are those of all. */
function normedPosition(b: GraphBuilder, x: string, index: number, config: VitFields, name: string): string {
  const row = sliceRows(b, x, { axis: 1, start: index, end: index + 1 });
  const position = b.node('Squeeze', [row, b.constant(int64s([1]))]);
  return index === 0
    ? b.layerNorm(position, { name: `${name}.layernorm`, epsilon: config.layer_norm_eps })
    : b.node('LayerNormalization', [position, `${name}.layernorm.weight`, `${name}.layernorm.bias`], {
        axis: { type: 'int', value: -1 },
        epsilon: { type: 'float', value: Math.fround(config.layer_norm_eps) },
      });
}

/** Tokens and patches, [N, tokens + patches, width], with their positions, through all layers. */
function encoder(
  b: GraphBuilder,
  config: VitFields,
  options: CheckoutOptions,
  { name, tokens }: { readonly name: string; readonly tokens: readonly string[] },
): string {
  const { dropout = config.hidden_dropout_prob } = options;
  let x = dropoutOf(b, embeddings(b, config, `${name}.embeddings`, tokens), dropout);
  const { layer_norm_eps: epsilon, hidden_size: width } = config;
  for (let index = 0; index < config.num_hidden_layers; index++) {
    const layer = `${name}.encoder.layer.${index}`;
    const self = `${layer}.attention.attention`;
    const mixed = selfAttention(b, b.layerNorm(x, { name: `${layer}.layernorm_before`, epsilon }), {
      query: `${self}.query`,
      key: `${self}.key`,
      value: `${self}.value`,
      headCount: config.num_attention_heads,
      dropout: options.dropout ?? config.attention_probs_dropout_prob,
      bias: config.qkv_bias,
      weightInitialization: initialWeights,
    });
    const attended = b.add(dropoutOf(b, dense(b, mixed, `${layer}.attention.output.dense`, width), dropout), x);
    const again = b.layerNorm(attended, { name: `${layer}.layernorm_after`, epsilon });
    const hidden = dense(b, again, `${layer}.intermediate.dense`, config.intermediate_size);
    const y = dense(b, activation(b, hidden, config.hidden_act), `${layer}.output.dense`, width);
    x = b.add(dropoutOf(b, y, dropout), attended);
  }
  return x;
}

function embeddings(b: GraphBuilder, config: VitFields, name: string, tokens: readonly string[]): string {
  const { hidden_size: width, patch_size: patch, image_size: side, num_channels: channels } = config;
  const pictures = b.input('pixel_values', 'float32', ['N', channels, side, side]);
  const projected = b.conv2d(pictures, {
    name: `${name}.patch_embeddings.projection`,
    outChannels: width,
    kernel: patch,
    stride: patch,
    weightInitialization: initialWeights,
    biasInitialization: zeros,
  });
  const patchCount = b.size(projected, 2) * b.size(projected, 3);
  const patches = b.transpose(b.reshape(projected, ['N', width, patchCount]), [0, 2, 1]);
  const rows = tokens.map((token) => b.parameter(`${name}.${token}`, [1, 1, width], initialWeights));
  const count = tokens.length + patchCount;
  const positions = b.parameter(`${name}.position_embeddings`, [1, count, width], initialWeights);
  // [tokens; patches] + positions = [0; patches] + ([tokens; 0] + positions): no token is repeated for each sample
  const pad = (value: string, before: number, after: number): string =>
    b.node('Pad', [value, b.constant(int64s([0, before, 0, 0, after, 0]))]);
  const [first = '', ...others] = rows;
  const joined = others.length === 0 ? first : b.concat(rows, 1);
  return b.add(pad(patches, tokens.length, 0), b.add(pad(joined, 0, patchCount), positions));
}
