// Hugging Face checkouts as models of a run: `DIR`, or `DIR:classes=3,sequence=64,dropout=0`. The graph is built from
// config.json, its weights are read from the files when they are wanted; a head that the files lack is new.

import { existsSync, statSync } from 'node:fs';
import { basename, join, resolve } from 'node:path';
import { InputError } from '../../errors.ts';
import type { Graph } from '../../graph/graph.ts';
import { exportGraph } from '../../graph/onnx/export.ts';
import { inferenceMode, trainingMode } from '../../graph/onnx/modes.ts';
import { isFloat, sameShape, type Tensor } from '../../graph/tensor.ts';
import { type BuiltCheckout, buildCheckout } from '../../models/checkout/build.ts';
import type { CheckoutOptions } from '../../models/checkout/family.ts';
import { openCheckout } from '../../storage/node/checkouts/checkout-files.ts';
import type { LoadedModel } from '../run/loaded-model.ts';

/** A spec's folder and options. */
export interface CheckoutSpec {
  readonly folder: string;
  readonly options: Pick<CheckoutOptions, 'classes' | 'sequence' | 'dropout'>;
}

const optionPattern = /^(.*?):((?:[a-z]+=[^:\\/,]*)(?:,[a-z]+=[^:\\/,]*)*)$/;

/** A spec that names a folder; undefined for one that does not. Throws InputError for options that are wrong. */
export function checkoutSpec(spec: string): CheckoutSpec | undefined {
  if (isFolder(spec)) return { folder: spec, options: {} };
  const [, folder = '', text = ''] = optionPattern.exec(spec) ?? [];
  return isFolder(folder) ? { folder, options: parseOptions(spec, text) } : undefined;
}

function isFolder(path: string): boolean {
  return path !== '' && existsSync(path) && statSync(path).isDirectory();
}

function parseOptions(spec: string, text: string): CheckoutSpec['options'] {
  const options: { classes?: number; sequence?: number; dropout?: number } = {};
  for (const part of text.split(',')) {
    const [name, value = ''] = part.split('=');
    const number = value.trim() === '' ? Number.NaN : Number(value);
    const isCount = (name === 'classes' || name === 'sequence') && Number.isInteger(number) && number >= 1;
    const isRatio = name === 'dropout' && number >= 0 && number < 1;
    if (!(isCount && number <= 1_000_000) && !isRatio)
      throw new InputError(
        `--model ${spec}: "${part}" is none of a checkout's options, which are classes=N, sequence=N (tokens of a ` +
          'sample) and dropout=D from 0 to below 1.',
      );
    options[name as 'classes'] = number;
  }
  return options;
}

/** The spec with these options in place of its own. */
export function withCheckoutOptions({ folder, options }: CheckoutSpec, others: CheckoutSpec['options']): string {
  const all = Object.entries({ ...others, ...options }).filter(([, value]) => value !== undefined);
  return all.length === 0 ? folder : `${folder}:${all.map(([name, value]) => `${name}=${value}`).join(',')}`;
}

/** A checkout, opened and built. */
export interface OpenedCheckout extends BuiltCheckout {
  readonly folder: string;
  readonly config: unknown;
  /** By parameter or buffer: its name in the files; new ones are not in it. */
  readonly fileNames: ReadonlyMap<string, string>;
  /** PyTorch's counts of the batches that normalizations have seen: nobody here reads them. */
  readonly batchCounts: ReadonlyMap<string, Tensor>;
  /** Parameters that the files do not have in this shape: they are new. */
  readonly newNames: readonly string[];
  /** The graph for samples of so many tokens, without weights. */
  atLength(length: number): Graph;
}

/** Opens a checkout. Throws InputError for one that is incomplete or does not fit together. */
export function openCheckoutModel({ folder, options }: CheckoutSpec, seed: number): OpenedCheckout {
  const { config, configPath, tensors } = openCheckout(folder);
  const built = buildCheckout(config, configPath, { ...options, seed });
  const fileNames = new Map<string, string>();
  const newNames: string[] = [];
  const initializers = new Map(built.graph.initializers);
  for (const name of [...built.graph.parameters, ...built.graph.buffers]) {
    const drawn = initializers.get(name) as Tensor;
    const fileName = fileNameOf(name, tensors, built.prefix);
    const value = fileName === undefined ? undefined : tensors.get(fileName);
    const fits = value !== undefined && sameShape(value.shape, drawn.shape) && isFloat(value.type);
    if (fits && fileName !== undefined) {
      initializers.set(name, value);
      fileNames.set(name, fileName);
    } else if (built.head.test(name)) newNames.push(name);
    else throw unfit(folder, name, value, drawn.shape);
  }
  const graph: Graph = { ...built.graph, initializers };
  const batchCounts = new Map([...tensors].filter(([name]) => name.endsWith('.num_batches_tracked')));
  const atLength = (sequence: number): Graph =>
    buildCheckout(config, configPath, { ...options, sequence, initialize: false }).graph;
  return { ...built, graph, folder, config, fileNames, batchCounts, newNames, atLength };
}

/** With or without the prefix of the net without a head; norms of old files have "gamma" and "beta". */
function fileNameOf(name: string, tensors: ReadonlyMap<string, Tensor>, prefix: string): string | undefined {
  const old = name.replace(/LayerNorm\.weight$/, 'LayerNorm.gamma').replace(/LayerNorm\.bias$/, 'LayerNorm.beta');
  const bare = (full: string): string => (full.startsWith(prefix) ? full.slice(prefix.length) : full);
  return [name, bare(name), old, bare(old)].find((candidate) => tensors.has(candidate));
}

function unfit(folder: string, name: string, found: Tensor | undefined, shape: readonly number[]): InputError {
  const expected = `float [${shape.join(', ')}]`;
  const what =
    found === undefined
      ? `have no ${name}`
      : `have ${name} as ${found.type} [${found.shape.join(', ')}], and config.json makes it ${expected}`;
  return new InputError(
    `The weights in ${folder} ${what}: they do not belong to its config.json; download both again.`,
  );
}

/** The model of a checkout. Throws InputError. */
export function loadCheckout(spec: CheckoutSpec, seed: number): LoadedModel {
  const checkout = openCheckoutModel(spec, seed);
  const { graph, newNames, moduleName } = checkout;
  return {
    name: basename(resolve(spec.folder)),
    graph: trainingMode(graph, {}),
    notes: newNames.length === 0 ? [] : [headNote(checkout)],
    newNames,
    atLength: (length) => trainingMode(checkout.atLength(length), {}),
    ...(moduleName === undefined ? {} : { moduleName }),
    write: (trained, metadata) => exportGraph(inferenceMode(graph), trained, { metadata }),
  };
}

function headNote({ newNames, folder, task, graph }: OpenedCheckout): string {
  const shown = newNames.slice(0, 4).join(', ');
  const names = newNames.length > 4 ? `${shown} and ${newNames.length - 4} more` : shown;
  const outputs = task === 'language' ? '' : ` for ${graph.outputs[0]?.shape.at(-1)} outputs`;
  return `The head is new: ${folder} has no ${names}${outputs}; fresh weights are trained.`;
}

/** A file beside the weights of a model, which is a checkout's folder or an ONNX file. */
export function fileBeside(model: string, name: string): string | undefined {
  const folder = checkoutSpec(model)?.folder ?? (/\.onnx$/i.test(model) ? join(model, '..') : undefined);
  const path = folder === undefined ? undefined : join(folder, name);
  return path !== undefined && existsSync(path) ? path : undefined;
}
