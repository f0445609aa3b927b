// Vision transformers (Dosovitskiy et al. 2021) as in transformers' ViTForImageClassification, with its parameter
// names; DeiT (Touvron et al. 2021) without distillation is the same network with smaller widths.

import type { GraphBuilder } from '../graph/builder.ts';
import { normal, zeros } from '../graph/initialization.ts';
import { int64s } from '../graph/tensor.ts';
import { firstPosition, selfAttention } from './attention.ts';
import { dropoutOf } from './blocks.ts';

/** A size of the vision transformer. */
export interface VitConfig {
  readonly layerCount: number;
  readonly width: number;
  readonly headCount: number;
  /** Side of the squares that the image is cut into. */
  readonly patch: number;
}

export const vitBaseConfig: VitConfig = { layerCount: 12, width: 768, headCount: 12, patch: 16 };
export const vitLargeConfig: VitConfig = { layerCount: 24, width: 1024, headCount: 16, patch: 16 };
export const vitHugeConfig: VitConfig = { layerCount: 32, width: 1280, headCount: 16, patch: 14 };
export const deitTinyConfig: VitConfig = { layerCount: 12, width: 192, headCount: 3, patch: 16 };
export const deitSmallConfig: VitConfig = { layerCount: 12, width: 384, headCount: 6, patch: 16 };

/** transformers truncates it at ±2, a hundred standard deviations away. */
const weightInitialization = normal(0.02);
const epsilon = 1e-12;

/** Logits of images x [N, C, H, W], H and W multiples of the patch. */
export function vit(
  b: GraphBuilder,
  x: string,
  { config, classes, dropout }: { config: VitConfig; classes: number; dropout: number },
): string {
  let y = dropoutOf(b, embeddings(b, x, config), dropout);
  for (let index = 0; index < config.layerCount; index++)
    y = encoderLayer(b, y, `vit.layers.${index}`, config, dropout);
  // Only the first position is read, and positions are normalized independently.
  return dense(b, b.layerNorm(firstPosition(b, y), { name: 'vit.layernorm', epsilon }), 'classifier', classes);
}

/** The class token and the patches' projections, [N, 1 + patches, width], plus the positions' embeddings. */
function embeddings(b: GraphBuilder, x: string, { width, patch }: VitConfig): string {
  const name = 'vit.embeddings';
  const projected = b.conv2d(x, {
    name: `${name}.patch_embeddings.projection`,
    outChannels: width,
    kernel: patch,
    stride: patch,
    weightInitialization,
    biasInitialization: zeros,
  });
  const patchCount = b.size(projected, 2) * b.size(projected, 3);
  const patches = b.transpose(b.reshape(projected, ['N', width, patchCount]), [0, 2, 1]);
  const token = b.parameter(`${name}.cls_token`, [1, 1, width], weightInitialization);
  const positions = b.parameter(`${name}.position_embeddings`, [1, 1 + patchCount, width], weightInitialization);
  // [token; patches] + positions = [0; patches] + ([token; 0] + positions): avoids repeating the token for each sample.
  const pad = (value: string, before: number, after: number): string =>
    b.node('Pad', [value, b.constant(int64s([0, before, 0, 0, after, 0]))]);
  return b.add(pad(patches, 1, 0), b.add(pad(token, 0, patchCount), positions));
}

function encoderLayer(
  b: GraphBuilder,
  x: string,
  name: string,
  { width, headCount }: VitConfig,
  dropout: number,
): string {
  const mixed = selfAttention(b, b.layerNorm(x, { name: `${name}.layernorm_before`, epsilon }), {
    query: `${name}.attention.q_proj`,
    key: `${name}.attention.k_proj`,
    value: `${name}.attention.v_proj`,
    headCount,
    dropout: 0,
    weightInitialization,
  });
  const attended = b.add(dropoutOf(b, dense(b, mixed, `${name}.attention.o_proj`, width), dropout), x);
  const hidden = b.gelu(
    dense(b, b.layerNorm(attended, { name: `${name}.layernorm_after`, epsilon }), `${name}.mlp.fc1`, 4 * width),
  );
  return b.add(dropoutOf(b, dense(b, hidden, `${name}.mlp.fc2`, width), dropout), attended);
}

function dense(b: GraphBuilder, x: string, name: string, outFeatures: number): string {
  return b.linear(x, { name, outFeatures, weightInitialization, biasInitialization: zeros });
}
