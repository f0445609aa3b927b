// How a picture becomes numbers: resized, cropped, and normalised as torchvision does it. Plain data, which travels to
// the threads that decode and into the trained model, so that whoever uses it feeds it alike.

import { z } from 'zod';
import { InputError } from '../../../errors.ts';

/** The form in which a model takes pictures. */
export interface PictureForm {
  readonly channels: 1 | 3;
  readonly height: number;
  readonly width: number;
  /**
   * The shorter side's pixels before the middle is cut out (torchvision's Resize and CenterCrop); 0: resized to height
   * and width whatever the picture's own proportions.
   */
  readonly resize: number;
  /** For each channel, of values 0 to 1: (value − mean) / deviation. */
  readonly mean: readonly number[];
  readonly deviation: readonly number[];
}

const side = z.number().int().min(1).max(4096);

export const pictureFormSchema: z.ZodType<PictureForm> = z
  .object({
    channels: z.union([z.literal(1), z.literal(3)]),
    height: side,
    width: side,
    resize: z.number().int().min(0).max(8192),
    mean: z.array(z.number()),
    deviation: z.array(z.number().gt(0)),
  })
  .refine(({ channels, mean, deviation }) => mean.length === channels && deviation.length === channels);

/** Mean and deviation of ImageNet, by which torchvision's and timm's weights were trained. */
const imageNet = { mean: [0.485, 0.456, 0.406], deviation: [0.229, 0.224, 0.225] } as const;
/** Grey pictures stay from 0 to 1, as the digits of the quickstart do. */
const grey = { mean: [0], deviation: [1] } as const;
/** torchvision resizes to 256 and cuts out 224. */
const cropFraction = 0.875;
/** The side of pictures where neither model nor user says one. */
const defaultSide = 224;

/** What the model's input leaves open is undefined. */
export interface PictureInput {
  readonly channels?: number;
  readonly height?: number;
  readonly width?: number;
}

/**
 * The form for a model's input: its sizes, else `imageSize`, else 224; ImageNet's mean and deviation. What a
 * preprocessor_config.json says wins over these. Throws InputError.
 */
export function pictureFormOf(input: PictureInput, imageSize?: number, config?: PreprocessorConfig): PictureForm {
  const { channels = 3 } = input;
  if (channels !== 1 && channels !== 3)
    throw new InputError(
      `The model takes ${channels} channels, and pictures have 1 (grey) or 3 (colour): choose another model or data.`,
    );
  const height = input.height ?? imageSize ?? config?.height ?? defaultSide;
  const width = input.width ?? imageSize ?? config?.width ?? defaultSide;
  if (imageSize !== undefined && (imageSize !== height || imageSize !== width))
    throw new InputError(
      `--image-size ${imageSize} does not fit the model, whose input is ${height}x${width}: leave it out.`,
    );
  const usual = channels === 3 ? imageNet : grey;
  return {
    channels,
    height,
    width,
    resize: resizeOf(Math.min(height, width), config),
    mean: perChannel(config?.mean, channels) ?? usual.mean,
    deviation: perChannel(config?.deviation, channels) ?? usual.deviation,
  };
}

/** Small pictures, such as digits, are not cropped: every pixel counts. */
const smallestCropped = 96;

function resizeOf(cropped: number, config: PreprocessorConfig | undefined): number {
  if (config?.shortestEdge !== undefined && config.side !== undefined)
    return Math.max(cropped, Math.round((config.shortestEdge / config.side) * cropped));
  if (config?.isExact === true) return 0;
  return cropped < smallestCropped ? cropped : Math.round(cropped / cropFraction);
}

function perChannel(values: readonly number[] | undefined, channels: number): readonly number[] | undefined {
  return values?.length === channels ? values : undefined;
}

/** What a preprocessor_config.json of Hugging Face says. */
export interface PreprocessorConfig {
  readonly height?: number;
  readonly width?: number;
  /** The side after cropping, for the proportion of `shortestEdge` to it. */
  readonly side?: number;
  readonly shortestEdge?: number;
  /** Resized to height and width without cropping. */
  readonly isExact?: boolean;
  readonly mean?: readonly number[];
  readonly deviation?: readonly number[];
}

const size = z.union([
  side.transform((value) => ({ height: value, width: value })),
  z.object({ height: side, width: side }),
  z.object({ shortest_edge: side }),
]);

const configSchema = z.object({
  size: size.optional(),
  crop_size: size.optional(),
  do_center_crop: z.boolean().optional(),
  do_normalize: z.boolean().optional(),
  crop_pct: z.number().gt(0).max(1).nullish(),
  image_mean: z.array(z.number()).optional(),
  image_std: z.array(z.number().gt(0)).optional(),
});

/** Reads the text of a preprocessor_config.json. Throws InputError that names `path`. */
export function parsePreprocessor(text: string, path: string): PreprocessorConfig {
  let config: z.infer<typeof configSchema>;
  try {
    config = configSchema.parse(JSON.parse(text));
  } catch {
    throw new InputError(
      `${path} is not the preprocessor_config.json of pictures, with size, image_mean and image_std: name another.`,
    );
  }
  const { size: resized, crop_size: cropped, do_center_crop: crops, crop_pct: fraction } = config;
  const target = crops === false ? resized : (cropped ?? resized);
  const sides = target !== undefined && 'height' in target ? target : undefined;
  const edge = resized !== undefined && 'shortest_edge' in resized ? resized.shortest_edge : undefined;
  const squared = sides ?? (edge === undefined ? undefined : { height: edge, width: edge });
  const shortest = edge !== undefined && typeof fraction === 'number' ? Math.round(edge / fraction) : edge;
  const isNormalized = config.do_normalize !== false;
  return {
    ...(squared === undefined ? {} : { ...squared, side: Math.min(squared.height, squared.width) }),
    ...(shortest === undefined ? { isExact: squared !== undefined } : { shortestEdge: shortest }),
    ...(isNormalized && config.image_mean !== undefined ? { mean: config.image_mean } : {}),
    ...(isNormalized && config.image_std !== undefined ? { deviation: config.image_std } : {}),
  };
}
