// Rotary positions (Su et al. 2021) as transformers has them: halves of a head's width are turned against each other by
// an angle that grows with the position; with the scalings "linear" and "llama3".

import { z } from 'zod';
import type { GraphBuilder } from '../../graph/builder.ts';
import { int } from '../../graph/graph.ts';
import { tensor } from '../../graph/tensor.ts';

/** Turns [N, H, S, d]. */
export type Rotation = (b: GraphBuilder, x: string) => string;

/** How frequencies change for contexts longer than those of training. */
interface Scaling {
  readonly rope_type?: ScalingKind | undefined;
  /** The name before transformers 4.43. */
  readonly type?: ScalingKind | undefined;
  readonly rope_theta?: number | undefined;
  readonly factor?: number | undefined;
  readonly low_freq_factor?: number | undefined;
  readonly high_freq_factor?: number | undefined;
  readonly original_max_position_embeddings?: number | undefined;
}

type ScalingKind = 'default' | 'linear' | 'llama3';

/** The fields of config.json: `rope_parameters` of transformers 5, the others of those before. */
interface RotationFields {
  readonly rope_theta?: number | undefined;
  readonly rope_scaling?: Scaling | null | undefined;
  readonly rope_parameters?: Scaling | null | undefined;
}

const positive = z.number().positive();
const kind = z.enum(['default', 'linear', 'llama3']);

const scalingSchema: z.ZodType<Scaling> = z.object({
  rope_type: kind.optional(),
  type: kind.optional(),
  rope_theta: positive.optional(),
  factor: positive.optional(),
  low_freq_factor: positive.optional(),
  high_freq_factor: positive.optional(),
  original_max_position_embeddings: positive.optional(),
});

/** Checks these fields. */
export const rotationSchema: { readonly [K in keyof RotationFields]-?: z.ZodType<RotationFields[K]> } = {
  rope_theta: positive.optional(),
  rope_scaling: scalingSchema.nullish(),
  rope_parameters: scalingSchema.nullish(),
};

/** The rotation of heads of this width at positions 0 … length − 1. */
export function rotation(b: GraphBuilder, config: RotationFields, width: number, length: number): Rotation {
  const parameters = config.rope_parameters ?? config.rope_scaling ?? {};
  const theta = parameters.rope_theta ?? config.rope_theta ?? 10_000;
  const half = width / 2;
  const [cosines, sines] = [new Float64Array(length * width), new Float64Array(length * width)];
  for (let index = 0; index < half; index++) {
    const frequency = scaled(theta ** (-index / half), parameters);
    for (let position = 0; position < length; position++) {
      const angle = position * frequency;
      const place = position * width + index;
      cosines[place] = cosines[place + half] = Math.cos(angle);
      sines[place] = -Math.sin(angle);
      sines[place + half] = Math.sin(angle);
    }
  }
  const table = (values: Float64Array): string => b.constant(tensor('float32', [1, 1, length, width], values));
  const [cosine, sine] = [table(cosines), table(sines)];
  const halves = b.constant(tensor('int64', [2], [half, half]));
  return (builder, x) => {
    const [first = '', second = ''] = builder.node('Split', [x, halves], { axis: int(3) }, 2);
    const swapped = builder.concat([second, first], 3);
    return builder.add(builder.mul(x, cosine), builder.mul(swapped, sine));
  };
}

/** A frequency as a longer context has it: "linear" divides it, "llama3" those of long waves only. */
function scaled(frequency: number, parameters: Scaling): number {
  const { factor = 1, low_freq_factor: low = 1, high_freq_factor: high = 4 } = parameters;
  const scaling = parameters.rope_type ?? parameters.type ?? 'default';
  if (scaling === 'default') return frequency;
  if (scaling === 'linear') return frequency / factor;
  const { original_max_position_embeddings: original = 8192 } = parameters;
  const waveLength = (2 * Math.PI) / frequency;
  if (waveLength < original / high) return frequency;
  if (waveLength > original / low) return frequency / factor;
  const smooth = (original / waveLength - low) / (high - low);
  return (1 - smooth) * (frequency / factor) + smooth * frequency;
}
