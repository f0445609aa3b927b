// Adapters as PEFT writes them: adapter_config.json, and adapter_model.safetensors with names that begin with
// `base_model.model.`. Read to go on from one, and written for PEFT to load.

import { join } from 'node:path';
import { z } from 'zod';
import { InputError } from '../../errors.ts';
import { type Adapter, type AdapterOptions, adaptable, adapterNames, isAdapterName } from '../../graph/lora.ts';
import type { Tensor } from '../../graph/tensor.ts';
import { openSafetensors, readJson } from '../../storage/node/checkouts/checkout-files.ts';
import { writeSafetensors } from '../../training/safetensors.ts';
import type { GivenAdapter } from '../run/adapters.ts';
import type { LoadedModel } from '../run/loaded-model.ts';

const prefix = 'base_model.model.';
export const adapterConfigName = 'adapter_config.json';
export const adapterWeightsName = 'adapter_model.safetensors';

type Patterns = Readonly<Record<string, number>> | null | undefined;

/** What PEFT's adapter_config.json says. */
export interface AdapterConfig {
  readonly r: number;
  readonly lora_alpha: number;
  readonly lora_dropout: number;
  readonly use_rslora?: boolean | null | undefined;
  /** Ranks and alphas of some modules, by the ends of their names. */
  readonly rank_pattern?: Patterns;
  readonly alpha_pattern?: Patterns;
}

const rank = z.number().int().min(1).max(65_536);
const alpha = z.number().positive();

const configSchema = z.object({
  peft_type: z.literal('LORA'),
  r: rank,
  lora_alpha: alpha,
  lora_dropout: z.number().min(0).lt(1).default(0),
  bias: z.literal('none').default('none'),
  use_rslora: z.boolean().nullish(),
  use_dora: z.literal(false).nullish(),
  rank_pattern: z.record(z.string(), rank).nullish(),
  alpha_pattern: z.record(z.string(), alpha).nullish(),
});

/** Checks an adapter_config.json. Throws InputError that names `path`. */
export function parseAdapterConfig(document: unknown, path: string): AdapterConfig {
  const parsed = configSchema.safeParse(document);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  throw new InputError(
    `${path}: "${(issue?.path ?? []).join('.')}" is missing, wrong or not supported (${issue?.message}); ` +
      'adapters are LoRA, without biases.',
  );
}

/** A model's weights, and what PEFT calls them. */
type Named = Pick<LoadedModel, 'graph' | 'moduleName'>;

const sameName = (name: string): string => name;

/** Reads the adapter in a folder, for a model without it; by PEFT's names or the files'. Throws InputError. */
export function readAdapter(folder: string, { graph, moduleName = sameName }: Named): GivenAdapter {
  const configPath = join(folder, adapterConfigName);
  const config = parseAdapterConfig(readJson(configPath), configPath);
  const path = join(folder, adapterWeightsName);
  const byModule = new Map(
    adaptable(graph).flatMap((weight) =>
      [weight, moduleName(weight)].map((name) => [name.replace(/\.weight$/, ''), weight] as const),
    ),
  );
  const byName = new Map(graph.parameters.map((parameter) => [moduleName(parameter), parameter]));
  const options = new Map<string, AdapterOptions>();
  const values = new Map<string, Tensor>();
  for (const [fileName, value] of openSafetensors(path)) {
    const name = fileName.startsWith(prefix) ? fileName.slice(prefix.length) : fileName;
    const [, module, side] = /^(.*)\.lora_([AB])\.weight$/.exec(name) ?? [];
    const weight = byModule.get(module ?? '');
    if (module !== undefined && weight === undefined)
      throw new InputError(`${path} adapts ${module}, which is no linear layer of the model: take its own adapter.`);
    if (module !== undefined && weight !== undefined && side === 'A') {
      const rank = rankOf(config, module);
      if (value.shape[0] !== rank)
        throw new InputError(
          `${path} has ${module} with rank ${value.shape[0]}, and ${configPath} says ${rank}: they do not belong ` +
            'together; copy both again.',
        );
      options.set(weight, optionsOf(config, module, rank));
    }
    const own = weight === undefined ? undefined : adapterNames(weight);
    values.set((side === 'A' ? own?.a : own?.b) ?? byName.get(name) ?? name, value);
  }
  if (options.size === 0) throw new InputError(`${path} holds no lora_A: it is no adapter of LoRA's.`);
  return { source: path, options, values };
}

/** What a pattern says of a module, if one names it. */
function patternOf(patterns: Patterns, module: string): number | undefined {
  const found = Object.entries(patterns ?? {}).find(([name]) => module === name || module.endsWith(`.${name}`));
  return found?.[1];
}

function rankOf({ rank_pattern: patterns, r }: AdapterConfig, module: string): number {
  return patternOf(patterns, module) ?? r;
}

/** The factor of one module, whose rank and alpha may be its own. */
function optionsOf(config: AdapterConfig, module: string, rank: number): AdapterOptions {
  const alpha = patternOf(config.alpha_pattern, module) ?? config.lora_alpha;
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
  readonly moduleName?: NonNullable<LoadedModel['moduleName']>;
  tensorOf(name: string): Tensor;
}

/** PEFT's files, by name. */
export function writeAdapter({
  adapters,
  whole,
  baseModel,
  taskType,
  moduleName = sameName,
  tensorOf,
}: TrainedAdapter): ReadonlyMap<string, readonly Uint8Array[]> {
  const [first] = adapters;
  const moduleOf = (weight: string): string => moduleName(weight).replace(/\.(weight|bias)$/, '');
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
    const names = adapterNames(moduleName(weight));
    tensors.set(prefix + names.a, tensorOf(a));
    tensors.set(prefix + names.b, tensorOf(b));
  }
  for (const name of whole) if (!isAdapterName(name)) tensors.set(prefix + moduleName(name), tensorOf(name));
  return new Map([
    [adapterConfigName, [new TextEncoder().encode(`${JSON.stringify(config, null, 2)}\n`)]],
    [adapterWeightsName, writeSafetensors(tensors, new Map([['format', 'pt']]))],
  ]);
}

/** PEFT saves whole modules: a head of several layers is one. */
function topModule(module: string): string {
  return /^(classifier|pre_classifier|score|lm_head)(\.|$)/.exec(module)?.[1] ?? module;
}
