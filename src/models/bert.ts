// BERT (Devlin et al. 2019) for sequence classification, as in transformers' BertForSequenceClassification, with its
// parameter names. Sequences are assumed to be full: there is no attention mask, and every token is of the first type.

import type { GraphBuilder } from '../graph/builder.ts';
import { normal, zeros } from '../graph/initialization.ts';
import { firstPosition, selfAttention, sliceRows } from './attention.ts';
import { dropoutOf } from './blocks.ts';

/** A size of BERT. */
export interface BertConfig {
  readonly layerCount: number;
  readonly width: number;
  readonly headCount: number;
  readonly intermediateWidth: number;
  readonly vocabularySize: number;
  readonly positionCount: number;
}

const size = (layerCount: number, width: number, headCount: number): BertConfig => ({
  layerCount,
  width,
  headCount,
  intermediateWidth: 4 * width,
  vocabularySize: 30522,
  positionCount: 512,
});

/** L-4, H-512, A-8 of Turc et al. 2019. */
export const bertSmallConfig: BertConfig = size(4, 512, 8);
export const bertBaseConfig: BertConfig = size(12, 768, 12);
export const bertLargeConfig: BertConfig = size(24, 1024, 16);

const weightInitialization = normal(0.02);
const epsilon = 1e-12;

/** Logits of token ids [N, S], S at most `positionCount`. */
export function bert(
  b: GraphBuilder,
  ids: string,
  { config, classes, dropout }: { config: BertConfig; classes: number; dropout: number },
): string {
  let x = embeddings(b, ids, config, dropout);
  for (let index = 0; index < config.layerCount; index++)
    x = encoderLayer(b, x, `bert.encoder.layer.${index}`, config, dropout);
  const pooled = b.tanh(dense(b, firstPosition(b, x), 'bert.pooler.dense', config.width));
  return dense(b, dropoutOf(b, pooled, dropout), 'classifier', classes);
}

function embeddings(
  b: GraphBuilder,
  ids: string,
  { width, vocabularySize, positionCount }: BertConfig,
  dropout: number,
): string {
  const name = 'bert.embeddings';
  const words = b.embedding(ids, {
    name: `${name}.word_embeddings`,
    count: vocabularySize,
    width,
    initialization: weightInitialization,
  });
  const positions = b.parameter(`${name}.position_embeddings.weight`, [positionCount, width], weightInitialization);
  const types = b.parameter(`${name}.token_type_embeddings.weight`, [2, width], weightInitialization);
  const length = b.size(ids, 1);
  const type = sliceRows(b, types, { axis: 0, end: 1 });
  const position = length === positionCount ? positions : sliceRows(b, positions, { axis: 0, end: length });
  return dropoutOf(
    b,
    b.layerNorm(b.add(words, b.add(position, type)), { name: `${name}.LayerNorm`, epsilon }),
    dropout,
  );
}

function encoderLayer(
  b: GraphBuilder,
  x: string,
  name: string,
  { width, headCount, intermediateWidth }: BertConfig,
  dropout: number,
): string {
  const self = `${name}.attention.self`;
  const mixed = selfAttention(b, x, {
    query: `${self}.query`,
    key: `${self}.key`,
    value: `${self}.value`,
    headCount,
    dropout,
    weightInitialization,
  });
  const projected = dropoutOf(b, dense(b, mixed, `${name}.attention.output.dense`, width), dropout);
  const attended = b.layerNorm(b.add(projected, x), { name: `${name}.attention.output.LayerNorm`, epsilon });
  const hidden = b.gelu(dense(b, attended, `${name}.intermediate.dense`, intermediateWidth));
  const y = dropoutOf(b, dense(b, hidden, `${name}.output.dense`, width), dropout);
  return b.layerNorm(b.add(y, attended), { name: `${name}.output.LayerNorm`, epsilon });
}

function dense(b: GraphBuilder, x: string, name: string, outFeatures: number): string {
  return b.linear(x, { name, outFeatures, weightInitialization, biasInitialization: zeros });
}
