// Models whose weights lie outside, as exporters write those over 2 GiB: NAME.onnx and NAME.onnx.data beside it.

import { closeSync, openSync, writeFileSync, writeSync } from 'node:fs';
import { basename, dirname } from 'node:path';
import { defined } from '../assert.ts';
import type { Graph } from '../graph/graph.ts';
import { parseModel } from '../graph/onnx/decode.ts';
import { encodeModel, patchGraph, patchModel } from '../graph/onnx/encode.ts';
import type { TensorProto } from '../graph/onnx/generated/onnx_pb.ts';
import { encodePlacedTensor } from '../graph/onnx/tensors.ts';
import { elementCount } from '../graph/tensor.ts';
import { encodeModel as encodeWithoutWeights } from '../runtime/protocol/model-transfer.ts';

/** Elements of a weight, so many. */
export type Elements = (name: string, count: number) => Float32Array;

/**
 * Writes the graph with its parameters and buffers outside, one after the other; only one tensor is in memory at a time
 * if `elements` makes them. Default: those of the graph.
 */
export function writeExternalModel(path: string, graph: Graph, elements: Elements = ownElements(graph)): void {
  const { bytes, parameters, buffers } = encodeWithoutWeights(graph);
  const weights = [...parameters, ...buffers];
  const names = new Set(weights.map(({ name }) => name));
  const model = parseModel(bytes.data as Uint8Array);
  const proto = defined(model.graph, 'the graph of a parsed model');
  const file = openSync(`${path}.data`, 'w');
  let offset = 0;
  const outside = weights.map(({ name, shape }): TensorProto => {
    const data = elements(name, elementCount(shape));
    writeSync(file, new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
    const place = { folder: dirname(path), file: `${basename(path)}.data`, offset };
    offset += data.byteLength;
    return encodePlacedTensor({ type: 'float32', shape, data }, name, place);
  });
  closeSync(file);
  const whole = patchGraph(proto, {
    input: proto.input.filter(({ name }) => !names.has(name)),
    initializer: [...proto.initializer, ...outside],
  });
  writeFileSync(path, encodeModel(patchModel(model, { graph: whole, producerName: 'another' })));
}

function ownElements(graph: Graph): Elements {
  return (name) => defined(graph.initializers.get(name), name).data as Float32Array;
}
