// The built-in models by name: the function that builds each, its options and its input. Weights are drawn by the seed
// and each parameter's name.

import { InputError } from '../errors.ts';
import { GraphBuilder } from '../graph/builder.ts';
import type { Graph } from '../graph/graph.ts';
import { convL, convS, fcL, fcS } from './asyncfgd.ts';
import { type BertConfig, bert, bertBaseConfig, bertLargeConfig, bertSmallConfig } from './bert.ts';
import { digits } from './digits.ts';
import { efficientNet, efficientNetStages } from './efficientnet.ts';
import { mlp } from './mlp.ts';
import { mnasNet } from './mnasnet.ts';
import { mobileNetV2, mobileNetV2CifarConfig, mobileNetV2Config } from './mobilenet-v2.ts';
import { mobileNetV3Small } from './mobilenet-v3.ts';
import { type ModelOptions, type OptionName, parseOptions, splitSpec } from './options.ts';
import { resNet, resNet18Config, resNet50Config } from './resnet.ts';
import { shuffleNetV2, shuffleNetV2HalfConfig } from './shufflenet-v2.ts';
import { twoConvolutions } from './two-convolutions.ts';
import {
  deitSmallConfig,
  deitTinyConfig,
  type VitConfig,
  vit,
  vitBaseConfig,
  vitHugeConfig,
  vitLargeConfig,
} from './vit.ts';

/** The input of a built-in model. */
export interface InputSpec {
  readonly name: string;
  readonly type: 'float32' | 'int64';
  /** The shape of one sample, without the batch. */
  readonly shape: readonly number[];
  /** For integers: exclusive upper bound of the values. */
  readonly valueCount?: number;
}

/** A built-in model with its weights. */
export interface BuiltModel {
  /** The name, without options. */
  readonly name: string;
  /** In training mode; its only output is the logits [N, classCount]. */
  readonly graph: Graph;
  readonly input: InputSpec;
  /** Labels are one class number for each sample. */
  readonly label: { readonly type: 'int64'; readonly shape: readonly number[]; readonly classCount: number };
}

/** Options of {@link buildModel}: the model's own, and those of its initial weights. */
export interface BuildOptions extends Partial<ModelOptions> {
  /** Default 0. */
  readonly seed?: number;
  /** False leaves weights zero, at no cost in time or memory. Default true. */
  readonly initialize?: boolean;
}

interface Entry {
  /** For lists, such as "MobileNetV2, 3.5 M parameters". */
  readonly summary: string;
  /** The model's options with their default values. */
  readonly defaults: Partial<ModelOptions>;
  /** Default: images by `channels` and `input`. */
  readonly input?: (options: ModelOptions) => InputSpec;
  /** The images' side must be a multiple of this. */
  readonly multipleOf?: number;
  readonly build: (b: GraphBuilder, x: string, options: ModelOptions) => string;
}

const everyOption: ModelOptions = {
  input: 224,
  channels: 3,
  classes: 1000,
  dropout: 0,
  sequence: 128,
  activation: 'relu',
  features: 16,
  hidden: '128-64',
};
const imageNet = { input: 224, channels: 3, classes: 1000 };
const small = { input: 28, channels: 1, classes: 10, activation: 'relu' } as const;

const entries: ReadonlyMap<string, Entry> = new Map<string, Entry>([
  [
    'digits',
    {
      summary: 'two convolutions for 28x28 grey digits',
      defaults: {},
      input: () => ({ name: 'image', type: 'float32', shape: [1, 28, 28] }),
      build: digits,
    },
  ],
  [
    'fashion',
    {
      summary: 'two wider convolutions for 28x28 grey images of clothes',
      defaults: {},
      input: () => ({ name: 'image', type: 'float32', shape: [1, 28, 28] }),
      build: twoConvolutions,
    },
  ],
  [
    'mobilenet-v2',
    {
      summary: 'MobileNetV2',
      defaults: { ...imageNet, dropout: 0.2 },
      build: (b, x, options) => mobileNetV2(b, x, { config: mobileNetV2Config, ...options }),
    },
  ],
  [
    'mobilenet-v2-cifar',
    {
      summary: 'MobileNetV2 without its first two strides',
      defaults: { input: 32, channels: 3, classes: 10, dropout: 0.2 },
      build: (b, x, options) => mobileNetV2(b, x, { config: mobileNetV2CifarConfig, ...options }),
    },
  ],
  [
    'mobilenet-v3-small',
    { summary: 'MobileNetV3-Small', defaults: { ...imageNet, dropout: 0.2 }, build: mobileNetV3Small },
  ],
  [
    'mnasnet-0.5',
    {
      summary: 'MNASNet-B1 at half width',
      defaults: { ...imageNet, dropout: 0.2 },
      build: (b, x, options) => mnasNet(b, x, { width: 0.5, ...options }),
    },
  ],
  [
    'shufflenet-v2-x0.5',
    {
      summary: 'ShuffleNetV2 at half width',
      defaults: imageNet,
      build: (b, x, options) => shuffleNetV2(b, x, { config: shuffleNetV2HalfConfig, ...options }),
    },
  ],
  ['efficientnet-b0', efficientNetEntry('EfficientNet-B0', 1)],
  ['efficientnet-b1', efficientNetEntry('EfficientNet-B1', 1.1)],
  [
    'resnet-18',
    {
      summary: 'ResNet-18',
      defaults: imageNet,
      build: (b, x, options) => resNet(b, x, { config: resNet18Config, ...options }),
    },
  ],
  [
    'resnet-50',
    {
      summary: 'ResNet-50',
      defaults: imageNet,
      build: (b, x, options) => resNet(b, x, { config: resNet50Config, ...options }),
    },
  ],
  ['bert-small', bertEntry('BERT, 4 layers of 512, for sequence classification', bertSmallConfig)],
  ['bert-base', bertEntry('BERT, 12 layers of 768, for sequence classification', bertBaseConfig)],
  ['bert-large', bertEntry('BERT, 24 layers of 1024, for sequence classification', bertLargeConfig)],
  ['vit-base', vitEntry('ViT-B/16', vitBaseConfig)],
  ['vit-large', vitEntry('ViT-L/16', vitLargeConfig)],
  ['vit-huge', vitEntry('ViT-H/14', vitHugeConfig)],
  ['deit-tiny', vitEntry('DeiT-Ti/16', deitTinyConfig)],
  ['deit-small', vitEntry('DeiT-S/16', deitSmallConfig)],
  ['deit-base', vitEntry('DeiT-B/16', vitBaseConfig)],
  [
    'mlp',
    {
      summary: 'fully connected layers for the rows of a table',
      defaults: { features: 16, hidden: '128-64', classes: 2, dropout: 0, activation: 'relu' },
      input: ({ features }) => ({ name: 'input', type: 'float32', shape: [features] }),
      build: mlp,
    },
  ],
  ['conv-s', { summary: "AsyncFGD's ConvS", defaults: small, build: convS }],
  ['conv-l', { summary: "AsyncFGD's ConvL", defaults: small, build: convL }],
  ['fc-s', { summary: "AsyncFGD's FCS", defaults: small, build: fcS }],
  ['fc-l', { summary: "AsyncFGD's FCL", defaults: small, build: fcL }],
]);

/** The built-in models: name, one-line summary, and options with their defaults. */
export const zoo: readonly {
  readonly name: string;
  readonly summary: string;
  readonly defaults: Partial<ModelOptions>;
}[] = [...entries].map(([name, { summary, defaults }]) => ({ name, summary, defaults }));

/** True if a spec names a built-in model, with or without options, valid or not. */
export function isZooSpec(spec: string): boolean {
  return canonicalName(splitSpec(spec).name) !== undefined;
}

/**
 * Builds the model of a spec such as `resnet-18` or `mobilenet-v2:input=32,classes=10`; `options` override the spec's.
 * Names are compared without case, hyphens, points and underscores. Throws InputError for an unknown name or an invalid
 * option.
 */
export function buildModel(spec: string, options: BuildOptions = {}): BuiltModel {
  const { seed = 0, initialize = true, ...given } = options;
  const parts = splitSpec(spec);
  const name = canonicalName(parts.name);
  const entry = name === undefined ? undefined : entries.get(name);
  if (name === undefined || entry === undefined) {
    throw new InputError(
      `There is no built-in model "${parts.name}" (there are: ${[...entries.keys()].join(', ')}); give the ` +
        'path of an .onnx file.',
    );
  }
  const chosen = resolveOptions(name, entry, parts.options, given);
  const input = entry.input?.(chosen) ?? {
    name: 'input',
    type: 'float32',
    shape: [chosen.channels, chosen.input, chosen.input],
  };
  const builder = new GraphBuilder(name, { seed, initialize });
  const x = builder.input(input.name, input.type, ['N', ...input.shape]);
  const graph: Graph = { ...builder.build([entry.build(builder, x, chosen)]), runningVariance: 'unbiased' };
  const classCount = Number(graph.outputs[0]?.shape[1]);
  return { name, graph, input, label: { type: 'int64', shape: [], classCount } };
}

function resolveOptions(
  name: string,
  { defaults, multipleOf = 1 }: Entry,
  text: string,
  given: Partial<ModelOptions>,
): ModelOptions {
  const names = Object.keys(defaults) as OptionName[];
  const values = Object.entries(given).filter(([, value]) => value !== undefined);
  const written = parseOptions(name, values.map(([key, value]) => `${key}=${value}`).join(','), names);
  const chosen = { ...everyOption, ...defaults, ...parseOptions(name, text, names), ...written };
  if (chosen.input % multipleOf !== 0) {
    throw new InputError(
      `The option input of the built-in model ${name} is ${chosen.input}; it must be a multiple of ` +
        `${multipleOf}, the side of a patch.`,
    );
  }
  return chosen;
}

/** The name in `entries` that is equal except for case, hyphens, points and underscores. */
function canonicalName(name: string): string | undefined {
  const bare = (text: string): string => text.toLowerCase().replaceAll(/[-._]/g, '');
  return [...entries.keys()].find((known) => bare(known) === bare(name));
}

function efficientNetEntry(summary: string, depth: number): Entry {
  const stages = efficientNetStages(depth);
  return {
    summary,
    defaults: { ...imageNet, dropout: 0.2 },
    build: (b, x, options) => efficientNet(b, x, { stages, ...options }),
  };
}

function bertEntry(summary: string, config: BertConfig): Entry {
  return {
    summary,
    defaults: { sequence: 128, classes: 2, dropout: 0.1 },
    input: ({ sequence }) => ({
      name: 'input_ids',
      type: 'int64',
      shape: [sequence],
      valueCount: config.vocabularySize,
    }),
    build: (b, x, options) => bert(b, x, { config, ...options }),
  };
}

function vitEntry(summary: string, config: VitConfig): Entry {
  return {
    summary,
    defaults: { ...imageNet, dropout: 0 },
    multipleOf: config.patch,
    build: (b, x, options) => vit(b, x, { config, ...options }),
  };
}
