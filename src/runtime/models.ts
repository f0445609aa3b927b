// A model as a run needs it: from a file or the zoo, ready to train, and on its way out as ONNX again. Node only (reads files).

import { InputError } from '../errors.ts';
import type { Graph } from '../graph/graph.ts';
import { exportGraph, exportModel } from '../graph/onnx/export.ts';
import { importModel } from '../graph/onnx/import.ts';
import { inferenceMode, trainingMode } from '../graph/onnx/modes.ts';
import type { Tensor } from '../graph/tensor.ts';
import { zoo, zooModel } from '../models/zoo.ts';
import { readFile } from 'node:fs/promises';

/** A loaded model. */
export interface LoadedModel {
  readonly name: string;
  /** In training mode. */
  readonly graph: Graph;
  /** What the user should know of how the file was read, one sentence each. */
  readonly notes: readonly string[];
  /** The ONNX model with these parameters and buffers, for inference: the user's own file but for the weights. */
  write(trained: ReadonlyMap<string, Tensor>): Uint8Array;
}

/** Loads `spec`: an .onnx file, or the name of a built-in model, whose weights the seed draws. Throws InputError. */
export async function loadModel(spec: string, seed: number): Promise<LoadedModel> {
  if (Object.hasOwn(zoo, spec)) {
    const graph = zooModel(spec, seed);
    return { name: spec, graph: trainingMode(graph), notes: [], write: (trained) => exportGraph(inferenceMode(graph), trained) };
  }
  if (!spec.includes('.') && !spec.includes('/')) zooModel(spec, seed); // names the built-in ones
  const bytes = await readModelFile(spec);
  const imported = named(spec, () => importModel(bytes));
  const graph = trainingMode(imported.graph);
  if (graph.parameters.length === 0) throw new InputError(`${spec} holds no weights that could be trained: export the model with its weights as float32 initializers.`);
  return { name: spec.replace(/^.*[\\/]/, '').replace(/\.onnx$/, ''), graph, notes: imported.notes, write: (trained) => exportModel(imported, trained, { mode: 'inference' }) };
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
    const code = error instanceof Error && 'code' in error ? String(error.code) : String(error);
    throw new InputError(`The model ${path} cannot be read (${code === 'ENOENT' ? 'there is no such file' : code}): check the path given to --model.`);
  }
}
