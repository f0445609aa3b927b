// A model's layers as planning sees them, without running anything and without its weights: sizes from shapes, and what
// is kept for the backward pass from differentiating each layer. Times come from a profile (measured) or from device
// kinds (cluster/device-kinds.ts).

import { defined } from '../../assert.ts';
import { type DifferentiateOptions, differentiate } from '../../autodiff/differentiate.ts';
import type { ModelTable, TableLayer } from '../../cluster/device-kinds.ts';
import { cutBytes, type Layer, type LayerSequence, parameterBytes } from '../../graph/layers.ts';
import { type StageGraph, stageExtractor } from '../../graph/stage.ts';
import { elementBytes, elementCount } from '../../graph/tensor.ts';
import { leastKept, recomputedSizes } from '../device/recomputation.ts';
import { differentiableNames } from '../device/stage-graphs.ts';

/** Saved bytes are counted for this many samples, so that what does not grow with the batch hardly counts. */
const probeBatch = 8;

/** A label is taken for one int64. */
const labelBytes = 8;

/**
 * The table of a model. `savedBytes` holds for layers that are cut apart; fused into one stage they keep less at most.
 */
export function layerTable(model: string, sequence: LayerSequence): ModelTable {
  const batchSize = sequence.fixedBatch ?? probeBatch;
  const extract = stageExtractor(sequence, batchSize);
  type Sizes = Pick<TableLayer, 'savedBytes' | 'trafficBytes' | 'recomputed'>;
  const known = new Map<string, Sizes>();
  const sizesOf = (layer: Layer, index: number): Sizes => {
    const found = known.get(layer.signature);
    if (found !== undefined) return found;
    const stage = extract(index, index + 1);
    const savedBytes = Math.ceil(savedBatchBytes(stage) / batchSize);
    const sizes = {
      savedBytes,
      trafficBytes: Math.ceil(producedBatchBytes(stage) / batchSize),
      ...recomputedSizes(leastKept(stage, passOptions(stage)), { savedBytes, flops: layer.flops, batchSize }),
    };
    known.set(layer.signature, sizes);
    return sizes;
  };
  return {
    model,
    inputBytes: cutBytes(sequence.inputs),
    labelBytes,
    ...(sequence.fixedBatch === undefined ? {} : { fixedBatch: sequence.fixedBatch }),
    layers: sequence.layers.map((layer, index) => ({
      name: layer.name,
      outputBytes: cutBytes(layer.outputs),
      weightBytes: parameterBytes(sequence, layer),
      ...sizesOf(layer, index),
      flops: layer.flops,
      batchDependent: layer.batchDependent || sequence.fixedBatch !== undefined,
    })),
  };
}

/** All parameters are trained. */
function passOptions(stage: StageGraph): Required<Pick<DifferentiateOptions, 'inputs' | 'parameters' | 'outputs'>> {
  const outputs = differentiableNames(stage.outputs);
  return {
    inputs: differentiableNames(stage.inputs),
    parameters: stage.graph.parameters,
    outputs: outputs.length > 0 ? outputs : [defined(stage.outputs[0], 'an output').name],
  };
}

function savedBatchBytes(stage: StageGraph): number {
  const { saved, savedInputs } = differentiate(stage, passOptions(stage));
  return [...saved, ...savedInputs].reduce((sum, { bytes }) => sum + bytes, 0);
}

/** Of every value that the stage's nodes write. */
function producedBatchBytes({ graph, types }: StageGraph): number {
  const written = graph.nodes.flatMap((node) => node.outputs.filter((name) => name !== ''));
  return written.reduce((sum, name) => {
    const type = types.get(name);
    return type === undefined ? sum : sum + elementCount(type.shape) * elementBytes(type.type);
  }, 0);
}
