// Language models: GPT-2, and Llama with its relatives SmolLM and Qwen2, as transformers' GPT2LMHeadModel,
// LlamaForCausalLM and Qwen2ForCausalLM, by the names in their files. Logits are of every position, [N, S, vocabulary].

import { z } from 'zod';
import type { GraphBuilder } from '../../graph/builder.ts';
import { zeros } from '../../graph/initialization.ts';
import { tensor } from '../../graph/tensor.ts';
import { attend, widthOfHeads } from '../attention.ts';
import { dropoutOf } from '../blocks.ts';
import { rowsOf } from './encoders.ts';
import {
  activation,
  activationName,
  dense,
  epsilonOf,
  type Family,
  family,
  initialWeights,
  layerCount,
  ratio,
  rmsNorm,
  size,
  unseen,
  widthField,
} from './family.ts';
import { type Rotation, rotation, rotationSchema } from './rotation.ts';

const gpt2Schema = z.object({
  vocab_size: size,
  n_positions: size,
  n_embd: widthField,
  n_layer: layerCount,
  n_head: size,
  n_inner: widthField.nullish(),
  activation_function: activationName.default('gelu_new'),
  layer_norm_epsilon: epsilonOf(1e-5),
  resid_pdrop: ratio.default(0.1),
  embd_pdrop: ratio.default(0.1),
  attn_pdrop: ratio.default(0.1),
  scale_attn_weights: z.literal(true).default(true),
  scale_attn_by_inverse_layer_idx: z.literal(false).default(false),
  tie_word_embeddings: z.boolean().default(true),
});

export const gpt2: Family = family(gpt2Schema, {
  task: 'language',
  prefix: 'transformer.',
  head: /^lm_head\./,
  positions: (config) => config.n_positions,
  build(b, config, options) {
    const { n_embd: width, vocab_size: count, layer_norm_epsilon: epsilon } = config;
    const { sequence = 0, dropout = config.resid_pdrop } = options;
    const ids = b.input('input_ids', 'int64', ['N', sequence]);
    const words = b.parameter('transformer.wte.weight', [count, width], initialWeights);
    const positions = b.parameter('transformer.wpe.weight', [config.n_positions, width], initialWeights);
    const embedded = b.add(b.node('Gather', [words, ids]), rowsOf(b, positions, 0, sequence));
    let x = dropoutOf(b, embedded, options.dropout ?? config.embd_pdrop);
    const mask = causalMask(b, sequence, 1);
    for (let index = 0; index < config.n_layer; index++) {
      const name = `transformer.h.${index}`;
      const normed = b.layerNorm(x, { name: `${name}.ln_1`, epsilon });
      const attention = { mask, headCount: config.n_head, dropout: options.dropout ?? config.attn_pdrop };
      const mixed = gpt2Attention(b, normed, `${name}.attn`, attention);
      x = b.add(dropoutOf(b, conv1d(b, mixed, `${name}.attn.c_proj`, width), dropout), x);
      const again = b.layerNorm(x, { name: `${name}.ln_2`, epsilon });
      const hidden = conv1d(b, again, `${name}.mlp.c_fc`, config.n_inner ?? 4 * width);
      const y = conv1d(b, activation(b, hidden, config.activation_function), `${name}.mlp.c_proj`, width);
      x = b.add(dropoutOf(b, y, dropout), x);
    }
    const last = b.layerNorm(x, { name: 'transformer.ln_f', epsilon });
    return languageHead(b, last, count, config.tie_word_embeddings ? words : undefined);
  },
});

/** transformers' Conv1D: a linear layer whose weight is [inputs, outputs]. */
function conv1d(b: GraphBuilder, x: string, name: string, outFeatures: number): string {
  const weight = b.parameter(`${name}.weight`, [b.size(x, -1), outFeatures], initialWeights);
  return b.add(b.matMul(x, weight), b.parameter(`${name}.bias`, [outFeatures], zeros));
}

function gpt2Attention(
  b: GraphBuilder,
  x: string,
  name: string,
  { headCount, dropout, mask }: { readonly headCount: number; readonly dropout: number; readonly mask: string },
): string {
  const [length, width] = [b.size(x, 1), b.size(x, 2)];
  const all = conv1d(b, x, `${name}.c_attn`, 3 * width);
  const widths = b.constant(tensor('int64', [3], [width, width, width]));
  const [query = '', key = '', value = ''] = b.node('Split', [all, widths], { axis: { type: 'int', value: 2 } }, 3);
  const heads = (part: string, order: readonly number[]): string =>
    b.transpose(b.reshape(part, ['N', length, headCount, widthOfHeads(width, headCount)]), order);
  const mixed = attend(
    b,
    { query: heads(query, [0, 2, 1, 3]), key: heads(key, [0, 2, 3, 1]), value: heads(value, [0, 2, 1, 3]) },
    { dropout, mask },
  );
  return b.reshape(b.transpose(mixed, [0, 2, 1, 3]), ['N', length, width]);
}

const llamaSchema = z.object({
  vocab_size: size,
  hidden_size: widthField,
  num_hidden_layers: layerCount,
  num_attention_heads: size,
  num_key_value_heads: size.nullish(),
  head_dim: widthField.nullish(),
  intermediate_size: widthField,
  hidden_act: activationName.default('silu'),
  max_position_embeddings: size,
  rms_norm_eps: epsilonOf(1e-6),
  attention_dropout: ratio.default(0),
  attention_bias: z.boolean().default(false),
  mlp_bias: z.boolean().default(false),
  tie_word_embeddings: z.boolean().default(false),
  use_sliding_window: z.literal(false).default(false),
  sliding_window: size.nullish(),
  ...rotationSchema,
});

type LlamaFields = z.infer<typeof llamaSchema>;

/** Which projections have biases. */
type Biases = (config: LlamaFields) => { readonly inputs: boolean; readonly output: boolean };

function llamaFamily(biases: Biases): Family {
  return family(llamaSchema, {
    task: 'language',
    prefix: 'model.',
    head: /^lm_head\./,
    positions: (config) => config.max_position_embeddings,
    build(b, config, options) {
      const { hidden_size: width, vocab_size: count, rms_norm_eps: epsilon } = config;
      const { sequence = 0, dropout = config.attention_dropout } = options;
      const ids = b.input('input_ids', 'int64', ['N', sequence]);
      const words = b.parameter('model.embed_tokens.weight', [count, width], initialWeights);
      let x = b.node('Gather', [words, ids]);
      const headWidth = config.head_dim ?? widthOfHeads(width, config.num_attention_heads);
      const groupCount = config.num_key_value_heads ?? config.num_attention_heads;
      const attention: Attention = {
        headCount: config.num_attention_heads,
        groupCount,
        headWidth,
        dropout,
        biases: biases(config),
        mask: causalMask(b, sequence, config.num_attention_heads / groupCount),
        rotation: rotation(b, config, headWidth, sequence),
      };
      for (let index = 0; index < config.num_hidden_layers; index++) {
        const name = `model.layers.${index}`;
        const normed = rmsNorm(b, x, `${name}.input_layernorm`, epsilon);
        x = b.add(x, groupedAttention(b, normed, `${name}.self_attn`, attention));
        const again = rmsNorm(b, x, `${name}.post_attention_layernorm`, epsilon);
        const up = (part: string): string =>
          dense(b, again, `${name}.mlp.${part}`, config.intermediate_size, config.mlp_bias);
        const hidden = b.mul(activation(b, up('gate_proj'), config.hidden_act), up('up_proj'));
        x = b.add(x, dense(b, hidden, `${name}.mlp.down_proj`, width, config.mlp_bias));
      }
      const last = rmsNorm(b, x, 'model.norm', epsilon);
      return languageHead(b, last, count, config.tie_word_embeddings ? words : undefined);
    },
  });
}

export const llama: Family = llamaFamily(({ attention_bias: bias }) => ({ inputs: bias, output: bias }));

/** Qwen2 has biases where queries, keys and values are made, and nowhere else. */
export const qwen2: Family = llamaFamily(() => ({ inputs: true, output: false }));

interface Attention {
  readonly headCount: number;
  /** Heads of keys and values, each of which several queries' heads share. */
  readonly groupCount: number;
  readonly headWidth: number;
  readonly dropout: number;
  readonly biases: { readonly inputs: boolean; readonly output: boolean };
  readonly mask: string;
  readonly rotation: Rotation;
}

/**
 * Attention whose keys and values several heads share (Ainslie et al. 2023): the queries of a group stand below each
 * other, [N, groups, heads of a group · S, d], so that nothing is repeated.
 */
function groupedAttention(b: GraphBuilder, x: string, name: string, attention: Attention): string {
  const { headCount, groupCount, headWidth, dropout, biases, mask } = attention;
  const [length, width] = [b.size(x, 1), b.size(x, 2)];
  const heads = (part: string, count: number): string => {
    const projected = dense(b, x, `${name}.${part}`, count * headWidth, biases.inputs);
    return b.transpose(b.reshape(projected, ['N', length, count, headWidth]), [0, 2, 1, 3]);
  };
  const turned = attention.rotation(b, heads('q_proj', headCount));
  const query = b.reshape(turned, ['N', groupCount, (headCount / groupCount) * length, headWidth]);
  const key = b.transpose(attention.rotation(b, heads('k_proj', groupCount)), [0, 1, 3, 2]);
  const mixed = attend(b, { query, key, value: heads('v_proj', groupCount) }, { dropout, mask });
  const apart = b.reshape(mixed, ['N', headCount, length, headWidth]);
  const joined = b.reshape(b.transpose(apart, [0, 2, 1, 3]), ['N', length, headCount * headWidth]);
  return dense(b, joined, `${name}.o_proj`, width, biases.output);
}

/** [1, 1, copies · S, S]: no position sees later ones. */
function causalMask(b: GraphBuilder, length: number, copies: number): string {
  const values = new Float32Array(copies * length * length);
  for (let row = 0; row < copies * length; row++)
    values.fill(unseen, row * length + (row % length) + 1, (row + 1) * length);
  return b.constant({ type: 'float32', shape: [1, 1, copies * length, length], data: values });
}

/** Logits of each position, by the table of the tokens where it is `tied`. */
function languageHead(b: GraphBuilder, x: string, count: number, tied: string | undefined): string {
  if (tied === undefined) return dense(b, x, 'lm_head', count, false);
  return b.matMul(x, b.transpose(tied, [1, 0]));
}
