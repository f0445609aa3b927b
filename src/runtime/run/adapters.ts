// Adapters of a run: what --lora says, and a model with them, of which nothing else is trained. The model that is
// written at the end has them merged into its weights.

import { defined } from '../../assert.ts';
import { InputError } from '../../errors.ts';
import type { Graph } from '../../graph/graph.ts';
import { type AdapterOptions, adaptable, addAdapters, mergedWeight } from '../../graph/lora.ts';
import { sameShape, type Tensor } from '../../graph/tensor.ts';
import type { LoadedModel } from './loaded-model.ts';
import { closest, matching, patternExpression } from './parameter-patterns.ts';

/** What a run trains of a model with adapters. */
export interface AdapterSettings {
  /** `PATTERN:rank=8,alpha=16,dropout=0.05` each. */
  readonly lora: readonly string[];
  /** Patterns of weights that are trained whole, beside the adapters. */
  readonly modulesToSave: readonly string[];
  readonly seed: number;
}

/** An adapter that was trained before. */
export interface GivenAdapter {
  /** For messages. */
  readonly source: string;
  /** By weight. */
  readonly options: ReadonlyMap<string, AdapterOptions>;
  /** Of A and B, and of what was trained whole. */
  readonly values: ReadonlyMap<string, Tensor>;
}

/** PEFT's defaults. */
const usual = { rank: 8, alpha: 8, dropout: 0 };
const maxRank = 65_536;

/** A pattern and the adapters of what it matches. */
interface LoraSpec {
  readonly pattern: string;
  readonly options: AdapterOptions;
}

/** Reads `PATTERN:rank=8,alpha=16,dropout=0.05`. Throws InputError. */
export function parseLora(text: string): LoraSpec {
  const [, pattern = text, settings = ''] = /^(.*?):((?:\w+=[^,]*)(?:,\w+=[^,]*)*)$/.exec(text) ?? [];
  const chosen = { ...usual };
  let hasAlpha = false;
  for (const part of settings === '' ? [] : settings.split(',')) {
    const [name = '', value = ''] = part.split('=');
    const number = value.trim() === '' ? Number.NaN : Number(value);
    const isRight =
      (name === 'rank' && Number.isInteger(number) && number >= 1 && number <= maxRank) ||
      (name === 'alpha' && number > 0 && number <= 1e6) ||
      (name === 'dropout' && number >= 0 && number < 1);
    if (!isRight)
      throw new InputError(
        `--lora ${text}: "${part}" is none of rank=N, alpha=A above 0 and dropout=D from 0 to below 1, as in ` +
          '*query:rank=8,alpha=16,dropout=0.05.',
      );
    chosen[name as 'rank'] = number;
    hasAlpha ||= name === 'alpha';
  }
  if (pattern === '') throw new InputError(`--lora ${text} has no pattern: name weights, such as *query.`);
  const alpha = hasAlpha ? chosen.alpha : chosen.rank;
  return { pattern, options: { rank: chosen.rank, scaling: alpha / chosen.rank, dropout: chosen.dropout } };
}

/**
 * The model with adapters, of which only these, what --modules-to-save names and a new head are trained. Without
 * --lora and a given adapter it is the model itself. Throws InputError for patterns that match nothing.
 */
export function withAdapters(model: LoadedModel, settings: AdapterSettings, given?: GivenAdapter): LoadedModel {
  const { lora, modulesToSave, seed } = settings;
  if (lora.length === 0 && given === undefined) {
    if (modulesToSave.length === 0) return model;
    throw new InputError('--modules-to-save goes with --lora; without it, --freeze-all-but names what is trained.');
  }
  const wanted = new Map([...(given?.options ?? []), ...chosenWeights(model, lora)]);
  const { graph, adapters } = addAdapters(model.graph, wanted, seed);
  const saved = matching(model.graph.parameters, modulesToSave, '--modules-to-save');
  const head = model.newNames ?? [];
  const whole = new Set([...saved, ...head]);
  const filled = given === undefined ? graph : withValues(graph, given, whole);
  const names = new Set([...adapters.flatMap(({ a, b }) => [a, b]), ...whole]);
  const weightCount = (some: Iterable<string>): number =>
    [...some].reduce((sum, name) => sum + (graph.initializers.get(name)?.shape ?? []).reduce((x, y) => x * y, 1), 0);
  const [trained, all] = [weightCount(names), weightCount(graph.parameters)];
  const share = ((100 * trained) / all).toPrecision(2);
  const note =
    `${adapters.length} adapters: ${trained.toLocaleString('en')} of ${all.toLocaleString('en')} weights are trained ` +
    `(${share} %)${whole.size === 0 ? '' : `, with ${[...whole].slice(0, 4).join(', ')} whole`}.`;
  const { atLength } = model;
  return {
    ...model,
    graph: filled,
    ...(atLength === undefined ? {} : { atLength: (length) => addAdapters(atLength(length), wanted, seed).graph }),
    notes: [...model.notes, note],
    onlyTrained: names,
    adapters,
    write: (values, metadata) =>
      model.write(mergedValues({ graph: filled, adapters, onlyTrained: names }, values), metadata),
  };
}

/** Trained values as the model without its adapters has them: merged into the weights that they are beside. */
export function mergedValues(
  { graph, adapters = [], onlyTrained = new Set() }: Pick<LoadedModel, 'graph' | 'adapters' | 'onlyTrained'>,
  values: ReadonlyMap<string, Tensor>,
): ReadonlyMap<string, Tensor> {
  const tensorOf = (name: string): Tensor =>
    defined(values.get(name) ?? graph.initializers.get(name), `the value of ${name}`);
  const ofAdapters = new Set(adapters.flatMap(({ a, b }) => [a, b]));
  const merged = new Map([...values].filter(([name]) => !ofAdapters.has(name)));
  for (const adapter of adapters)
    merged.set(
      adapter.weight,
      mergedWeight(tensorOf(adapter.weight), adapter, tensorOf(adapter.a), tensorOf(adapter.b)),
    );
  for (const name of onlyTrained) if (!ofAdapters.has(name)) merged.set(name, tensorOf(name));
  return merged;
}

/** The weights that the patterns match, each as the last of them says. */
function chosenWeights(
  { graph, moduleName = (name) => name }: LoadedModel,
  lora: readonly string[],
): ReadonlyMap<string, AdapterOptions> {
  const weights = adaptable(graph);
  const wanted = new Map<string, AdapterOptions>();
  for (const text of lora) {
    const { pattern, options } = parseLora(text);
    const matches = weights.filter((name) => isTarget(pattern, name) || isTarget(pattern, moduleName(name)));
    if (matches.length === 0)
      throw new InputError(
        `--lora ${text} matches no weight of a linear layer or convolution: ` +
          (weights.length === 0
            ? 'the model has none.'
            : `the closest are ${closest(`*${pattern}*`, weights).join(', ')}.`),
      );
    for (const name of matches) {
      const { shape } = defined(graph.initializers.get(name), name);
      if (options.rank > Math.min(...shape.slice(0, 2)) && shape.slice(0, 2).every((side) => side > 1))
        throw new InputError(
          `--lora ${text}: the rank ${options.rank} is more than a side of ${name} [${shape.join(', ')}]; take a ` +
            'smaller one.',
        );
      wanted.set(name, options);
    }
  }
  return wanted;
}

/** A pattern of the weight's name or its module's, whole or, as in PEFT, from one of its points on. */
function isTarget(pattern: string, weight: string): boolean {
  const expression = patternExpression(pattern);
  const module = weight.replace(/\.weight$/, '');
  const parts = module.split('.');
  const ends = parts.map((_, index) => parts.slice(index).join('.'));
  return [weight, ...ends].some((name) => expression.test(name));
}

/** The graph with the values of an adapter that was trained before. */
function withValues(graph: Graph, { source, values }: GivenAdapter, whole: Set<string>): Graph {
  const initializers = new Map(graph.initializers);
  const parameters = new Set(graph.parameters);
  for (const [name, value] of values) {
    const own = initializers.get(name);
    if (own === undefined || !parameters.has(name) || !sameShape(own.shape, value.shape))
      throw new InputError(
        `${source} has ${name} as [${value.shape.join(', ')}], which the model ` +
          (own === undefined ? 'does not have' : `has as [${own.shape.join(', ')}]`) +
          ': take the adapter of this model.',
      );
    initializers.set(name, value);
    if (!name.includes('.lora_')) whole.add(name);
  }
  return { ...graph, initializers };
}
