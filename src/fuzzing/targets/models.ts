// ONNX models: from files, as far as a run takes them before any device starts; and from the coordinator, as far as a
// worker takes them before it compiles.

import assert from 'node:assert/strict';
import { defined } from '../../assert.ts';
import { differentiate } from '../../autodiff/differentiate.ts';
import { InputError } from '../../errors.ts';
import type { LayerSequence } from '../../graph/layers.ts';
import { layers } from '../../graph/layers.ts';
import { exportModel } from '../../graph/onnx/export.ts';
import type { ExternalLoader } from '../../graph/onnx/external.ts';
import { importModel } from '../../graph/onnx/import.ts';
import { trainingMode } from '../../graph/onnx/modes.ts';
import { extractStage } from '../../graph/stage.ts';
import { byteLength, type ValueType, wrap } from '../../graph/tensor.ts';
import { differentiableNames } from '../../runtime/device/stage-graphs.ts';
import type { ModelMessage, TensorSpec } from '../../runtime/protocol/model-message.ts';
import { decodeModel, encodeModel } from '../../runtime/protocol/model-transfer.ts';
import { trainedLayers } from '../../runtime/run/fine-tuning.ts';
import { lossGraph } from '../../training/losses.ts';
import { damagedModel } from '../damaged-model.ts';
import { damagedBytes, damagedValue, oneOf } from '../inputs.ts';
import { attentionGraph, convolutionGraph, filesBeside, modelFiles } from '../model-files.ts';
import type { Target } from '../target.ts';

/** Reads parts of files next to a model, as models.ts does. */
const loadExternal: ExternalLoader = (name, offset, length) => {
  const bytes = filesBeside.get(name);
  const end = length === undefined ? bytes?.length : offset + length;
  if (bytes === undefined || end === undefined || offset > bytes.length || end > bytes.length)
    throw new InputError(`its weights in ${name} are cut off or missing: copy the file again.`);
  return bytes.slice(offset, end);
};

/** Checks before any device starts: an operator without a gradient, say. */
function checkTrainable(sequence: LayerSequence, parameters: readonly string[]): void {
  const stage = extractStage(sequence, 0, sequence.layers.length, sequence.fixedBatch ?? 2);
  const output = defined(stage.graph.outputs[0], 'the output');
  differentiate(stage, { inputs: differentiableNames(stage.inputs), parameters, outputs: [output.name] });
  const { type, shape } = output as ValueType;
  lossGraph('mse', { type, shape }, { type: 'float32', shape });
}

/** A model from a file is refused, or can be cut, differentiated, and written again. */
export function onnxTarget(): Target<Uint8Array> {
  const originals = modelFiles();
  return {
    input: (random) =>
      random.integer(5) === 0 ? damagedBytes(originals, random) : damagedModel(oneOf(originals, random), random),
    take(bytes) {
      const imported = importModel(bytes, { loadExternal });
      const { graph } = imported;
      let held = 0;
      for (const value of graph.initializers.values()) held += byteLength(value);
      assert.ok(held <= 2 * bytes.length + 8192, `${held} bytes of tensors from ${bytes.length} bytes`);
      const { sequence } = trainedLayers(trainingMode(graph), { loss: 'cross-entropy', freeze: [], freezeAllBut: [] });
      checkTrainable(sequence, sequence.graph.parameters);
      const weights = new Map(graph.parameters.map((name) => [name, defined(graph.initializers.get(name), name)]));
      const again = importModel(exportModel(imported, weights, { mode: 'as-imported' }));
      assert.deepEqual(again.graph.parameters, graph.parameters, 'a model that was written again has other parameters');
    },
  };
}

/** A model from the coordinator: a graph without weights, and the weights' names and shapes. */
export function modelMessageTarget(): Target<{
  readonly bytes: Uint8Array;
  readonly parameters: readonly TensorSpec[];
}> {
  const originals = [convolutionGraph(), attentionGraph()].map((graph) => encodeModel(trainingMode(graph)));
  return {
    input(random) {
      const { bytes, parameters } = oneOf(originals, random);
      const data = bytes.data as Uint8Array;
      const kind = random.integer(5);
      if (kind === 0)
        return { bytes: data, parameters: damagedSpecs(parameters, (value) => damagedValue(value, random)) };
      return { bytes: kind === 1 ? damagedBytes([data], random) : damagedModel(data, random), parameters };
    },
    take({ bytes, parameters }) {
      const message = { parameters, buffers: [] } as unknown as ModelMessage;
      const tensors = [wrap('uint8', [bytes.length], bytes)];
      const sequence = layers(decodeModel(message, { kind: 'model', epoch: 0, round: -1, microBatch: -1, tensors }), {
        frozen: [],
      });
      checkTrainable(sequence, sequence.graph.parameters);
    },
  };
}

/** Damaged specs that the message's schema accepts. */
function damagedSpecs(specs: readonly TensorSpec[], damage: (value: unknown) => unknown): readonly TensorSpec[] {
  const damaged = damage(specs);
  const isSpec = (value: unknown): boolean => {
    const { name, shape } = (value ?? {}) as Partial<TensorSpec>;
    const isShape =
      Array.isArray(shape) &&
      shape.length <= 8 &&
      shape.every((size) => Number.isInteger(size) && size >= 0 && size <= 1e9);
    return typeof name === 'string' && name !== '' && name.length <= 300 && isShape;
  };
  return Array.isArray(damaged) && damaged.every(isSpec) ? (damaged as TensorSpec[]) : specs;
}
