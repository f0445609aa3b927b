// Encoders of texts with a classifier, as transformers' BertForSequenceClassification (MiniLM is one of these),
// RobertaForSequenceClassification and DistilBertForSequenceClassification, by the names in their files. Texts are
// filled up at their ends: positions count from the first token.

import { z } from 'zod';
import type { GraphBuilder } from '../../graph/builder.ts';
import { firstPosition, selfAttention, sliceRows } from '../attention.ts';
import { dropoutOf } from '../blocks.ts';
import {
  type ActivationName,
  activation,
  activationName,
  type CheckoutOptions,
  dense,
  epsilonOf,
  type Family,
  family,
  initialWeights,
  layerCount,
  paddingMask,
  ratio,
  size,
  widthField,
} from './family.ts';
import { labelCount, labelFields } from './labels.ts';

/** Of BERT and RoBERTa. */
const bertSchema = z.object({
  ...labelFields,
  vocab_size: size,
  hidden_size: widthField,
  num_hidden_layers: layerCount,
  num_attention_heads: size,
  intermediate_size: widthField,
  hidden_act: activationName.default('gelu'),
  max_position_embeddings: size,
  type_vocab_size: size.default(2),
  layer_norm_eps: epsilonOf(1e-12),
  hidden_dropout_prob: ratio.default(0.1),
  attention_probs_dropout_prob: ratio.default(0.1),
  classifier_dropout: ratio.nullish(),
  pad_token_id: z.number().int().min(0).max(10_000_000).nullish(),
  position_embedding_type: z.literal('absolute').nullish(),
});

type BertFields = z.infer<typeof bertSchema>;

/** transformers leaves these positions of RoBERTa unused: those before the first after the filling token. */
const firstRobertaPosition = ({ pad_token_id: pad }: BertFields): number => (pad ?? 1) + 1;

export const bert: Family = family(bertSchema, {
  task: 'texts',
  prefix: 'bert.',
  head: /^(bert\.pooler|classifier)\./,
  positions: (config) => config.max_position_embeddings,
  build(b, config, options) {
    const { x, mask } = bertEmbeddings(b, config, options, { name: 'bert', firstPosition: 0 });
    const encoded = bertLayers(b, x, config, options, { name: 'bert', mask });
    const pooled = b.tanh(dense(b, firstPosition(b, encoded), 'bert.pooler.dense', config.hidden_size));
    return dense(b, headDropout(b, pooled, config, options), 'classifier', labelCount(config, options));
  },
});

export const roberta: Family = family(bertSchema, {
  task: 'texts',
  prefix: 'roberta.',
  head: /^classifier\./,
  positions: (config) => config.max_position_embeddings - firstRobertaPosition(config),
  build(b, config, options) {
    const place = { name: 'roberta', firstPosition: firstRobertaPosition(config) };
    const { x, mask } = bertEmbeddings(b, config, options, place);
    const encoded = bertLayers(b, x, config, options, { name: 'roberta', mask });
    const first = headDropout(b, firstPosition(b, encoded), config, options);
    const hidden = headDropout(b, b.tanh(dense(b, first, 'classifier.dense', config.hidden_size)), config, options);
    return dense(b, hidden, 'classifier.out_proj', labelCount(config, options));
  },
});

function headDropout(b: GraphBuilder, x: string, config: BertFields, { dropout }: CheckoutOptions): string {
  return dropoutOf(b, x, dropout ?? config.classifier_dropout ?? config.hidden_dropout_prob);
}

/** The embedded tokens [N, S, W] and the mask of the filled-up ones. */
function bertEmbeddings(
  b: GraphBuilder,
  config: BertFields,
  { sequence = 0, dropout = config.hidden_dropout_prob }: CheckoutOptions,
  place: { readonly name: string; readonly firstPosition: number },
): { readonly x: string; readonly mask: string } {
  const { hidden_size: width, type_vocab_size: typeCount, vocab_size: count, layer_norm_eps: epsilon } = config;
  const name = `${place.name}.embeddings`;
  const ids = b.input('input_ids', 'int64', ['N', sequence]);
  const mask = paddingMask(b, b.input('attention_mask', 'int64', ['N', sequence]));
  const table = (part: string, indices: string, rows: number): string =>
    b.embedding(indices, { name: `${name}.${part}`, count: rows, width, initialization: initialWeights });
  const words = table('word_embeddings', ids, count);
  const typed =
    typeCount > 1
      ? table('token_type_embeddings', b.input('token_type_ids', 'int64', ['N', sequence]), typeCount)
      : b.parameter(`${name}.token_type_embeddings.weight`, [1, width], initialWeights);
  const positions = b.parameter(
    `${name}.position_embeddings.weight`,
    [config.max_position_embeddings, width],
    initialWeights,
  );
  const position = rowsOf(b, positions, place.firstPosition, sequence);
  const sum = b.add(b.add(words, typed), position);
  const x = dropoutOf(b, b.layerNorm(sum, { name: `${name}.LayerNorm`, epsilon }), dropout);
  return { x, mask };
}

/** Rows first … first + count − 1 of a table. */
export function rowsOf(b: GraphBuilder, table: string, first: number, count: number): string {
  if (first === 0 && b.size(table, 0) === count) return table;
  return sliceRows(b, table, { axis: 0, start: first, end: first + count });
}

function bertLayers(
  b: GraphBuilder,
  input: string,
  config: BertFields,
  options: CheckoutOptions,
  { name: stem, mask }: { readonly name: string; readonly mask: string },
): string {
  const { dropout = config.hidden_dropout_prob } = options;
  let x = input;
  for (let index = 0; index < config.num_hidden_layers; index++) {
    const name = `${stem}.encoder.layer.${index}`;
    x = encoderLayer(b, x, {
      query: `${name}.attention.self.query`,
      key: `${name}.attention.self.key`,
      value: `${name}.attention.self.value`,
      out: `${name}.attention.output.dense`,
      firstNorm: `${name}.attention.output.LayerNorm`,
      up: `${name}.intermediate.dense`,
      down: `${name}.output.dense`,
      secondNorm: `${name}.output.LayerNorm`,
      headCount: config.num_attention_heads,
      hiddenWidth: config.intermediate_size,
      activation: config.hidden_act,
      epsilon: config.layer_norm_eps,
      dropout,
      attentionDropout: options.dropout ?? config.attention_probs_dropout_prob,
      mask,
    });
  }
  return x;
}

/** The names and sizes of one layer. */
interface EncoderLayer {
  readonly query: string;
  readonly key: string;
  readonly value: string;
  readonly out: string;
  readonly firstNorm: string;
  readonly up: string;
  readonly down: string;
  readonly secondNorm: string;
  readonly headCount: number;
  readonly hiddenWidth: number;
  readonly activation: ActivationName;
  readonly epsilon: number;
  readonly dropout: number;
  readonly attentionDropout: number;
  readonly mask: string;
}

/** Attention and a network of two layers, each added to its input and then normalized. */
function encoderLayer(b: GraphBuilder, x: string, layer: EncoderLayer): string {
  const { dropout, epsilon } = layer;
  const width = b.size(x, 2);
  const { query, key, value, headCount, attentionDropout, mask } = layer;
  const weights = { weightInitialization: initialWeights };
  const mixed = selfAttention(b, x, { query, key, value, headCount, dropout: attentionDropout, mask, ...weights });
  const projected = dropoutOf(b, dense(b, mixed, layer.out, width), dropout);
  const attended = b.layerNorm(b.add(projected, x), { name: layer.firstNorm, epsilon });
  const hidden = activation(b, dense(b, attended, layer.up, layer.hiddenWidth), layer.activation);
  const y = dropoutOf(b, dense(b, hidden, layer.down, width), dropout);
  return b.layerNorm(b.add(y, attended), { name: layer.secondNorm, epsilon });
}

const distilbertSchema = z.object({
  ...labelFields,
  vocab_size: size,
  dim: widthField,
  n_layers: layerCount,
  n_heads: size,
  hidden_dim: widthField,
  activation: activationName.default('gelu'),
  max_position_embeddings: size,
  dropout: ratio.default(0.1),
  attention_dropout: ratio.default(0.1),
  seq_classif_dropout: ratio.default(0.2),
});

export const distilbert: Family = family(distilbertSchema, {
  task: 'texts',
  prefix: 'distilbert.',
  head: /^(pre_classifier|classifier)\./,
  positions: (config) => config.max_position_embeddings,
  build(b, config, options) {
    const { sequence = 0, dropout = config.dropout } = options;
    const { dim: width, vocab_size: count } = config;
    const ids = b.input('input_ids', 'int64', ['N', sequence]);
    const mask = paddingMask(b, b.input('attention_mask', 'int64', ['N', sequence]));
    const name = 'distilbert.embeddings';
    const words = b.embedding(ids, { name: `${name}.word_embeddings`, count, width, initialization: initialWeights });
    const table = b.parameter(
      `${name}.position_embeddings.weight`,
      [config.max_position_embeddings, width],
      initialWeights,
    );
    const sum = b.add(words, rowsOf(b, table, 0, sequence));
    let x = dropoutOf(b, b.layerNorm(sum, { name: `${name}.LayerNorm`, epsilon: 1e-12 }), dropout);
    for (let index = 0; index < config.n_layers; index++) {
      const layer = `distilbert.transformer.layer.${index}`;
      x = encoderLayer(b, x, {
        query: `${layer}.attention.q_lin`,
        key: `${layer}.attention.k_lin`,
        value: `${layer}.attention.v_lin`,
        out: `${layer}.attention.out_lin`,
        firstNorm: `${layer}.sa_layer_norm`,
        up: `${layer}.ffn.lin1`,
        down: `${layer}.ffn.lin2`,
        secondNorm: `${layer}.output_layer_norm`,
        headCount: config.n_heads,
        hiddenWidth: config.hidden_dim,
        activation: config.activation,
        epsilon: 1e-12,
        dropout,
        attentionDropout: options.dropout ?? config.attention_dropout,
        mask,
      });
    }
    const hidden = b.relu(dense(b, firstPosition(b, x), 'pre_classifier', width));
    const dropped = dropoutOf(b, hidden, options.dropout ?? config.seq_classif_dropout);
    return dense(b, dropped, 'classifier', labelCount(config, options));
  },
});
