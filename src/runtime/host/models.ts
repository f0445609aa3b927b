// A model as a run needs it: from a file or the zoo, ready to train, and on its way out as ONNX again.

import { closeSync, fstatSync, openSync, readSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { ModelTable } from '../../cluster/device-kinds.ts';
import { InputError } from '../../errors.ts';
import { exportGraph, exportModel } from '../../graph/onnx/export.ts';
import type { ExternalLoader } from '../../graph/onnx/external.ts';
import { type ImportedModel, type ImportOptions, importModel } from '../../graph/onnx/import.ts';
import type { InputShape } from '../../graph/onnx/input-shapes.ts';
import { inferenceMode, trainingMode, unmergedNormalizations } from '../../graph/onnx/modes.ts';
import { noWeightsReason } from '../../graph/onnx/no-weights.ts';
import { replaceHead } from '../../graph/onnx/replace-head.ts';
import { buildModel, isZooSpec } from '../../models/zoo.ts';
import { withAdapters } from '../run/adapters.ts';
import { describeModel, type ModelDescription } from '../run/describe-model.ts';
import { trainedLayers } from '../run/fine-tuning.ts';
import type { InferenceModel } from '../run/infer.ts';
import { layerTable } from '../run/layer-table.ts';
import type { LoadedModel } from '../run/loaded-model.ts';
import { withOutputs } from '../run/trained-output.ts';
import { type CheckoutSpec, checkoutSpec, loadCheckout, openCheckoutModel } from './checkouts.ts';
import { readAdapter } from './peft.ts';

/** How a model is changed when it is loaded. */
export interface LoadModelOptions {
  /** Replaces the classifier by a new one with this many classes, its weights drawn by the seed. */
  readonly headClasses?: number;
  /** The statistics that batch normalization uses; default: the batch's, with a note where that is a surprise. */
  readonly batchNorm?: 'inference' | 'training';
  /** Sizes of inputs that the file leaves open. */
  readonly inputShapes?: readonly InputShape[];
  /** Adapters, and what is trained whole beside them. */
  readonly lora?: readonly string[];
  readonly modulesToSave?: readonly string[];
  /** The folder of an adapter of PEFT's. */
  readonly adapter?: string;
}

/**
 * Loads `spec`: an .onnx file, or the name of a built-in model (with options after a colon), whose weights the seed
 * draws. Throws InputError.
 */
export async function loadModel(
  spec: string,
  seed: number,
  { lora = [], adapter, modulesToSave = [], ...options }: LoadModelOptions = {},
): Promise<LoadedModel> {
  const model = await loadPlainModel(spec, seed, options);
  const given = adapter === undefined ? undefined : readAdapter(adapter, model);
  return withAdapters(model, { lora, modulesToSave, seed }, given);
}

async function loadPlainModel(
  spec: string,
  seed: number,
  { headClasses, batchNorm, inputShapes = [] }: LoadModelOptions,
): Promise<LoadedModel> {
  if (isZooSpec(spec)) {
    const { graph } = buildModel(spec, { seed });
    if (headClasses !== undefined)
      return fromFile(spec, withNewHead(importModel(exportGraph(graph)), headClasses, seed), batchNorm);
    return {
      name: spec,
      graph: trainingMode(graph, { batchNorm }),
      notes: [],
      write: (trained, metadata) => exportGraph(inferenceMode(graph), trained, { metadata }),
    };
  }
  const checkout = checkoutSpec(spec);
  if (checkout !== undefined) return loadCheckout(withHead(checkout, headClasses), seed);
  if (!/[\\/]|\.[a-z]\w*$/i.test(spec)) buildModel(spec); // names the built-in ones
  const imported = await readModel(spec, { inputShapes });
  if (imported.graph.parameters.length === 0) {
    throw new InputError(`${spec} ${noWeightsReason(imported)}`);
  }
  const name = spec.replace(/^.*[\\/]/, '').replace(/\.onnx$/, '');
  return fromFile(
    name,
    headClasses === undefined ? imported : named(spec, () => withNewHead(imported, headClasses, seed)),
    batchNorm,
  );
}

/** A checkout's own head is made with as many outputs. */
function withHead(checkout: CheckoutSpec, classes: number | undefined): CheckoutSpec {
  return classes === undefined ? checkout : { ...checkout, options: { ...checkout.options, classes } };
}

function fromFile(name: string, imported: ImportedModel, batchNorm: LoadModelOptions['batchNorm']): LoadedModel {
  const unmerged = batchNorm === undefined ? unmergedNormalizations(imported.graph) : 0;
  const note =
    `${unmerged} batch ${unmerged === 1 ? 'normalization uses' : 'normalizations use'} the statistics of each batch, ` +
    'beside others that the exporter merged into convolutions: --batch-norm inference keeps those that are stored.';
  return {
    name,
    graph: trainingMode(imported.graph, { batchNorm }),
    notes: unmerged === 0 ? imported.notes : [...imported.notes, note],
    choices: imported.choices,
    write: (trained, metadata) => exportModel(imported, trained, { mode: 'inference', metadata }),
  };
}

function withNewHead(imported: ImportedModel, classCount: number, seed: number): ImportedModel {
  const { model, head } = replaceHead(imported, classCount, seed);
  const names = head.bias === undefined ? `${head.weight.name} has` : `${head.weight.name} and ${head.bias.name} have`;
  const note = `The classifier is new: ${names} fresh weights for ${classCount} classes instead of ${head.classCount}.`;
  return { ...model, notes: [...model.notes, note] };
}

/** Loads a model that is to answer, not to learn. `outputs`: default: its first. Throws InputError. */
export async function loadInferenceModel(
  spec: string,
  {
    seed = 0,
    inputShapes = [],
    outputs = [],
  }: { seed?: number; inputShapes?: readonly InputShape[]; outputs?: readonly string[] } = {},
): Promise<InferenceModel> {
  const isBuiltIn = isZooSpec(spec);
  const checkout = isBuiltIn ? undefined : checkoutSpec(spec);
  const isFile = !isBuiltIn && checkout === undefined;
  if (isFile && !/[\\/]|\.[a-z]\w*$/i.test(spec)) buildModel(spec); // names the built-in ones
  const graph = isBuiltIn
    ? buildModel(spec, { seed }).graph
    : checkout !== undefined
      ? openCheckoutModel(checkout, seed).graph
      : (await readModel(spec, { inputShapes, leavesLarge: true })).graph;
  const name = isBuiltIn ? spec : spec.replace(/^.*[\\/]/, '').replace(/\.onnx$/, '');
  return { name, graph: named(spec, () => inferenceMode(withOutputs(graph, outputs))) };
}

/**
 * The table of `spec`: an .onnx file, or the name of a built-in model, whose weights are not drawn. All of it is
 * trained. `load` reads the file, if it is one. Throws InputError.
 */
export async function modelTable(
  spec: string,
  load: () => Promise<LoadedModel> = () => loadModel(spec, 0),
): Promise<ModelTable> {
  const graph = isZooSpec(spec) ? buildModel(spec, { initialize: false }).graph : (await load()).graph;
  return layerTable(spec, trainedLayers(graph, { loss: 'cross-entropy', freeze: [], freezeAllBut: [] }).sequence);
}

/** Reads an .onnx file, with weights that lie in files beside it. Throws InputError that names it. */
export async function readModel(
  path: string,
  options: Pick<ImportOptions, 'inputShapes' | 'leavesLarge'> = {},
): Promise<ImportedModel> {
  const bytes = await readModelFile(path);
  return named(path, () => importModel(bytes, { ...options, loadExternal: externalLoader(path) }));
}

/** Describes an .onnx file, also one that no run could use, or a built-in model. Throws InputError. */
export async function describeFile(
  spec: string,
  inputShapes: readonly InputShape[] = [],
  output?: string,
): Promise<ModelDescription> {
  if (isZooSpec(spec)) return describeModel(exportGraph(buildModel(spec).graph), {}, output);
  const checkout = checkoutSpec(spec);
  if (checkout !== undefined) return describeModel(exportGraph(openCheckoutModel(checkout, 0).graph), {}, output);
  const bytes = await readModelFile(spec);
  return named(spec, () => describeModel(bytes, { loadExternal: externalLoader(spec), inputShapes }, output));
}

/** Reads parts of files beside the model. */
function externalLoader(modelPath: string): ExternalLoader {
  return (name, offset, length) => {
    const path = join(dirname(modelPath), name);
    let handle: number;
    try {
      handle = openSync(path, 'r');
    } catch (error) {
      throw new InputError(
        `its weights in ${path} cannot be read (${reason(error)}): copy that file along with the model.`,
      );
    }
    try {
      const size = fstatSync(handle).size;
      const end = length === undefined ? size : offset + length;
      if (offset > size || end > size)
        throw new InputError(
          `its weights in ${path} are cut off: the file has ${size} bytes, ${end} are needed; copy it again.`,
        );
      const bytes = new Uint8Array(end - offset);
      for (let filled = 0; filled < bytes.length; ) {
        const count = readSync(handle, bytes, filled, bytes.length - filled, offset + filled);
        if (count === 0)
          throw new InputError(`its weights in ${path} were cut off while being read: copy the file again.`);
        filled += count;
      }
      return bytes;
    } finally {
      closeSync(handle);
    }
  };
}

/** Names the file in an error about its contents. */
function named<T>(path: string, work: () => T): T {
  try {
    return work();
  } catch (error) {
    if (error instanceof InputError) throw new InputError(`${path}: ${error.message}`);
    throw error;
  }
}

async function readModelFile(path: string): Promise<Uint8Array> {
  try {
    return await readFile(path);
  } catch (error) {
    throw new InputError(`The model ${path} cannot be read (${reason(error)}): check the path given to --model.`);
  }
}

function reason(error: unknown): string {
  const code = error instanceof Error && 'code' in error ? String(error.code) : String(error);
  return code === 'ENOENT' ? 'there is no such file' : code === 'EISDIR' ? 'it is a folder' : code;
}
