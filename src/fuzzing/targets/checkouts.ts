// Documents beside weights that others wrote: config.json, the index of a checkout's parts, adapter_config.json; and
// evaluation.json of a run's folder.

import assert from 'node:assert/strict';
import { resultsOf } from '../../cli/results/read-run.ts';
import { buildCheckout } from '../../models/checkout/build.ts';
import { parseAdapterConfig } from '../../runtime/host/peft.ts';
import { shardsOf } from '../../storage/node/checkouts/checkout-files.ts';
import { damagedText, damagedValue, oneOf } from '../inputs.ts';
import type { Target } from '../target.ts';

const encoder = { hidden_size: 8, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 12 };
const decoder = { ...encoder, vocab_size: 16, num_key_value_heads: 1, max_position_embeddings: 8 };
const text = {
  ...encoder,
  vocab_size: 16,
  max_position_embeddings: 8,
  type_vocab_size: 2,
  id2label: { 0: 'a', 1: 'b' },
};
const picture = { ...encoder, image_size: 8, patch_size: 4, num_channels: 3, num_labels: 2 };

const configs: readonly object[] = [
  { model_type: 'bert', ...text, hidden_act: 'gelu', classifier_dropout: 0.1 },
  { model_type: 'roberta', ...text, max_position_embeddings: 10, pad_token_id: 1 },
  {
    model_type: 'distilbert',
    vocab_size: 16,
    dim: 8,
    n_layers: 1,
    n_heads: 2,
    hidden_dim: 8,
    max_position_embeddings: 8,
  },
  { model_type: 'vit', ...picture, qkv_bias: false },
  { model_type: 'deit', ...picture, architectures: ['DeiTForImageClassificationWithTeacher'] },
  { model_type: 'resnet', image_size: 8, embedding_size: 4, hidden_sizes: [4, 8], depths: [1, 1], num_labels: 2 },
  { model_type: 'mobilenet_v2', image_size: 8, depth_multiplier: 0.1, depth_divisible_by: 2, min_depth: 2 },
  { model_type: 'efficientnet', image_size: 8, width_coefficient: 0.1, depth_coefficient: 1, hidden_dim: 16 },
  { model_type: 'gpt2', vocab_size: 16, n_positions: 8, n_embd: 8, n_layer: 1, n_head: 2, tie_word_embeddings: true },
  { model_type: 'llama', ...decoder, rope_parameters: { rope_type: 'default', rope_theta: 500 }, head_dim: 4 },
  { model_type: 'qwen2', ...decoder, rope_theta: 500, tie_word_embeddings: true },
];

/** A net that is built has inputs and an output. */
export function checkoutConfigTarget(): Target<unknown> {
  return {
    input: (random) => damagedValue(oneOf(configs, random), random),
    take(config) {
      const { graph } = buildCheckout(config, '/m/config.json');
      assert.ok(graph.inputs.length > 0 && graph.outputs.length === 1 && graph.parameters.length > 0);
    },
  };
}

const index = {
  metadata: { total_size: 96 },
  weight_map: { 'a.weight': 'model-00001-of-00002.safetensors', 'b.weight': 'model-00002-of-00002.safetensors' },
};
const files = [
  ...Object.values(index.weight_map),
  '../up.safetensors',
  '/etc/up.safetensors',
  'C:\\up.safetensors',
  'x',
];

/** No file of an index lies outside of its folder. */
export function checkoutIndexTarget(): Target<unknown> {
  return {
    input: (random) =>
      damagedValue({ ...index, weight_map: { ...index.weight_map, 'c.weight': oneOf(files, random) } }, random),
    take(document) {
      for (const file of shardsOf(document, '/m/index.json').values())
        assert.ok(file.endsWith('.safetensors') && !/[/\\:]/.test(file), file);
    },
  };
}

const adapter = {
  peft_type: 'LORA',
  r: 8,
  lora_alpha: 16,
  lora_dropout: 0.05,
  bias: 'none',
  rank_pattern: { 'layer.0.query': 4 },
  alpha_pattern: { 'layer.0.query': 8 },
  target_modules: ['query', 'value'],
};

/** Ranks and factors of an adapter that is taken are numbers to compute with. */
export function adapterConfigTarget(): Target<unknown> {
  return {
    input: (random) => damagedValue(adapter, random),
    take(document) {
      const config = parseAdapterConfig(document, '/a/adapter_config.json');
      const { r, lora_alpha: alpha, lora_dropout: dropout, rank_pattern: ranks, alpha_pattern: alphas } = config;
      for (const rank of [r, ...Object.values(ranks ?? {})]) assert.ok(Number.isInteger(rank) && rank >= 1);
      for (const value of [alpha, ...Object.values(alphas ?? {})]) assert.ok(Number.isFinite(value) && value > 0);
      assert.ok(dropout >= 0 && dropout < 1);
    },
  };
}

const results = {
  round: 20,
  loss: 0.5,
  accuracy: 0.75,
  sampleCount: 4,
  classes: ['cat', 'dog'].map((name) => ({ name, sampleCount: 2, recall: 0.5, precision: 1, f1: 0.67 })),
  confusion: [
    [1, 1],
    [0, 2],
  ],
  worst: [
    { name: 'a.jpg', loss: 2, label: 'cat', predicted: 'dog', probability: 0.9, picture: 'data:image/png;base64,AA==' },
  ],
};

/** A test's results hold what the report shows: a square matrix, pictures that are pictures. */
export function evaluationTarget(): Target<string> {
  return {
    input: (random) => {
      const said = JSON.stringify(random.integer(4) === 0 ? results : damagedValue(results, random));
      return random.integer(4) === 0 ? damagedText(said, random) : said;
    },
    take(given) {
      const { confusion = [], worst } = resultsOf(given, '/run/evaluation.json');
      for (const row of confusion) assert.equal(row.length, confusion.length);
      for (const { picture: source = 'data:image/png;base64,' } of worst)
        assert.match(source, /^data:image\/png;base64,[\w+/=]*$/);
    },
  };
}
