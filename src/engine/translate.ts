// From a graph to the ONNX file that ONNX Runtime is given: a pure function of the graph and of what the engine has, so
// that any thread can do it ahead.

import { defined } from '../assert.ts';
import type { Graph } from '../graph/graph.ts';
import { filePlace } from '../graph/tensor.ts';
import { peelReshapes } from './border-reshapes.ts';
import type { Translation, TranslationTarget } from './engine.ts';
import { exportPrepared, prepareGraph } from './onnxruntime-memory.ts';
import { canWriteInPlace, signalName } from './outputs-in-place.ts';

/** Throws InputError for a graph that cannot be written. */
export function translateGraph(graph: Graph, { blockSize, writesInPlace, readsFiles }: TranslationTarget): Translation {
  const { name, inputs, outputs } = graph;
  const { graph: peeled, inside } = peelReshapes(graph, blockSize);
  const prepared = prepareGraph(peeled, blockSize);
  const isInPlace = writesInPlace && canWriteInPlace(prepared.graph);
  const types = new Map(peeled.outputs.map((output) => [output.name, output]));
  return {
    ...{ name, inputs, outputs },
    modelInputs: peeled.inputs,
    modelOutputs: outputs.map((output) =>
      defined(types.get(defined(inside.get(output.name), output.name)), output.name),
    ),
    model: exportPrepared(prepared, { signal: isInPlace ? signalName : undefined, leavesPlaced: readsFiles }),
    weightFolder: readsFiles ? weightFolderOf(prepared.graph) : undefined,
    isOptimizable: prepared.isOptimizable,
    keepsMemory: graph.keepsMemory ?? false,
    writesInPlace: isInPlace,
  };
}

function weightFolderOf({ initializers }: Graph): string | undefined {
  for (const value of initializers.values()) {
    const place = filePlace(value);
    if (place !== undefined) return place.folder;
  }
  return undefined;
}
