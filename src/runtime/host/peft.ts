// Adapters as PEFT writes them: adapter_config.json, and adapter_model.safetensors with names that begin with
// `base_model.model.`. Read to go on from one, and written for PEFT to load.

import { join } from 'node:path';
import { z } from 'zod';
import { InputError } from '../../errors.ts';
import type { Graph } from '../../graph/graph.ts';
import { type Adapter, type AdapterOptions, adaptable, adapterNames, isAdapterName } from '../../graph/lora.ts';
import type { Tensor } from '../../graph/tensor.ts';
import { openSafetensors, readJson } from '../../storage/node/checkouts/checkout-files.ts';
import { writeSafetensors } from '../../training/safetensors.ts';
import type { GivenAdapter } from '../run/adapters.ts';

const prefix = 'base_model.model.';
export const adapterConfigName = 'adapter_config.json';
export const adapterWeightsName = 'adapter_model.safetensors';

const patternSchema = z.record(z.string(), z.number().positive()).nullish();

const configSchema = z.object({
  peft_type: z.literal('LORA'),
  r: z.number().int().min(1).max(65_536),
  lora_alpha: z.number().positive(),
  lora_dropout: z.number().min(0).lt(1).default(0),
  bias: z.literal('none').default('none'),
  use_rslora: z.boolean().nullish(),
  use_dora: z.literal(false).nullish(),
  rank_pattern: patternSchema,
  alpha_pattern: patternSchema,
});

type AdapterConfig = z.infer<typeof configSchema>;

/** Reads the adapter in a folder, for a model without it. Throws InputError. */
export function readAdapter(folder: string, graph: Graph): GivenAdapter {
  const configPath = join(folder, adapterConfigName);
  const parsed = configSchema.safeParse(readJson(configPath));
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    throw new InputError(
      `${configPath}: "${(issue?.path ?? []).join('.')}" is missing, wrong or not supported (${issue?.message}); ` +
        'adapters are LoRA, without biases.',
    );
  }
  const path = join(folder, adapterWeightsName);
  const byModule = new Map(adaptable(graph).map((weight) => [weight.replace(/\.weight$/, ''), weight]));
  const options = new Map<string, AdapterOptions>();
  const values = new Map<string, Tensor>();
  for (const [fileName, value] of openSafetensors(path)) {
    const name = fileName.startsWith(prefix) ? fileName.slice(prefix.length) : fileName;
    const module = /^(.*)\.lora_A\.weight$/.exec(name)?.[1];
    const weight = byModule.get(module ?? '');
    if (module !== undefined && weight === undefined)
      throw new InputError(`${path} adapts ${module}, which is no linear layer of the model: take its own adapter.`);
    const rank = value.shape[0] ?? 1;
    if (module !== undefined && weight !== undefined) options.set(weight, optionsOf(parsed.data, module, rank));
    values.set(name, value);
  }
  if (options.size === 0) throw new InputError(`${path} holds no lora_A: it is no adapter of LoRA's.`);
  return { source: path, options, values };
}

/** The factor of one module, whose rank and alpha may be its own. */
function optionsOf(config: AdapterConfig, module: string, rank: number): AdapterOptions {
  const own = Object.entries(config.alpha_pattern ?? {}).find(
    ([pattern]) => module === pattern || module.endsWith(`.${pattern}`),
  );
  const alpha = own?.[1] ?? config.lora_alpha;
  return {
    rank,
    scaling: alpha / (config.use_rslora === true ? Math.sqrt(rank) : rank),
    dropout: config.lora_dropout,
  };
}

/** What PEFT's files say of a trained adapter. */
export interface TrainedAdapter {
  readonly adapters: readonly Adapter[];
  /** Weights that were trained whole. */
  readonly whole: readonly string[];
  /** Folder of the net, or its file. */
  readonly baseModel: string;
  /** PEFT's name of what the net is for. */
  readonly taskType?: 'SEQ_CLS' | 'CAUSAL_LM';
  tensorOf(name: string): Tensor;
}

/** PEFT's files, by name. */
export function writeAdapter({
  adapters,
  whole,
  baseModel,
  taskType,
  tensorOf,
}: TrainedAdapter): ReadonlyMap<string, readonly Uint8Array[]> {
  const [first] = adapters;
  const moduleOf = (weight: string): string => weight.replace(/\.(weight|bias)$/, '');
  const others = adapters.filter(({ rank, scaling }) => rank !== first?.rank || scaling !== first.scaling);
  const config = {
    peft_type: 'LORA',
    ...(taskType === undefined ? {} : { task_type: taskType }),
    base_model_name_or_path: baseModel,
    r: first?.rank,
    lora_alpha: (first?.scaling ?? 1) * (first?.rank ?? 1),
    lora_dropout: first?.dropout,
    rank_pattern: Object.fromEntries(others.map(({ weight, rank }) => [moduleOf(weight), rank])),
    alpha_pattern: Object.fromEntries(others.map(({ weight, rank, scaling }) => [moduleOf(weight), scaling * rank])),
    target_modules: adapters.map(({ weight }) => moduleOf(weight)),
    modules_to_save: whole.length === 0 ? null : [...new Set(whole.map((name) => topModule(moduleOf(name))))],
    fan_in_fan_out: adapters.some(({ isFlipped }) => isFlipped),
    bias: 'none',
    init_lora_weights: true,
    inference_mode: true,
  };
  const tensors = new Map<string, Tensor>();
  for (const { a, b, weight } of adapters) {
    const names = adapterNames(weight);
    tensors.set(prefix + names.a, tensorOf(a));
    tensors.set(prefix + names.b, tensorOf(b));
  }
  for (const name of whole) if (!isAdapterName(name)) tensors.set(prefix + name, tensorOf(name));
  return new Map([
    [adapterConfigName, [new TextEncoder().encode(`${JSON.stringify(config, null, 2)}\n`)]],
    [adapterWeightsName, writeSafetensors(tensors, new Map([['format', 'pt']]))],
  ]);
}

/** PEFT saves whole modules: a head of several layers is one. */
function topModule(module: string): string {
  return /^(classifier|pre_classifier|score|lm_head)(\.|$)/.exec(module)?.[1] ?? module;
}
