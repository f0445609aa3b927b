// How a model reaches a worker: its graph as ONNX without weights. Weights follow later, to those who compute with
// them.

import { ProtocolError, RunError } from '../../errors.ts';
import type { Graph, ValueInfo } from '../../graph/graph.ts';
import type { LayerSequence } from '../../graph/layers.ts';
import { exportGraph } from '../../graph/onnx/export.ts';
import { importModel } from '../../graph/onnx/import.ts';
import { allocate, elementCount, type Tensor, wrap } from '../../graph/tensor.ts';
import type { Frame } from '../../transport/link.ts';
import type { ModelMessage, TensorSpec } from './model-message.ts';

/** The graph as ONNX bytes, with parameters and buffers turned into graph inputs. */
export function encodeModel(graph: Graph): {
  bytes: Tensor;
  parameters: readonly TensorSpec[];
  buffers: readonly TensorSpec[];
} {
  const specs = (names: readonly string[]): TensorSpec[] =>
    names.map((name) => ({ name, shape: graph.initializers.get(name)?.shape ?? [] }));
  const parameters = specs(graph.parameters);
  const buffers = specs(graph.buffers);
  const weights = new Set([...graph.parameters, ...graph.buffers]);
  const inputs: ValueInfo[] = [
    ...graph.inputs,
    ...[...parameters, ...buffers].map(({ name, shape }): ValueInfo => ({ name, type: 'float32', shape })),
  ];
  const initializers = new Map([...graph.initializers].filter(([name]) => !weights.has(name)));
  const bytes = exportGraph({ ...graph, inputs, initializers, parameters: [], buffers: [] });
  return { bytes: wrap('uint8', [bytes.length], bytes), parameters, buffers };
}

/** A model with its forms for shorter samples, whose graphs follow its own. */
export function encodeSequence({ graph, shorter = new Map() }: LayerSequence): Omit<
  ReturnType<typeof encodeModel>,
  'bytes'
> & {
  readonly tensors: readonly Tensor[];
  readonly lengths: readonly number[];
} {
  const { bytes, parameters, buffers } = encodeModel(graph);
  const others = Array.from(shorter.values(), (sequence) => encodeModel(sequence.graph).bytes);
  return { parameters, buffers, tensors: [bytes, ...others], lengths: [...shorter.keys()] };
}

/**
 * The graph again, or the one at a place behind it. Its weights are zeros: for their shapes only, and all in the same
 * memory. Throws ProtocolError or InputError.
 */
export function decodeModel(message: ModelMessage, frame: Frame, index = 0): Graph {
  const bytes = frame.tensors?.[index]?.data;
  if (!(bytes instanceof Uint8Array)) throw new ProtocolError('The coordinator sent a model without its graph.');
  const { graph } = importModel(bytes);
  const weights = [...message.parameters, ...message.buffers];
  const names = new Set(weights.map((weight) => weight.name));
  const initializers = new Map(graph.initializers);
  const mostElements = weights.reduce((most, { shape }) => Math.max(most, elementCount(shape)), 0);
  const placeholder = zeros(mostElements);
  const inputs = new Map(graph.inputs.map((input) => [input.name, input]));
  for (const { name, shape } of weights) {
    const input = inputs.get(name);
    if (initializers.has(name)) throw new ProtocolError(`The coordinator sent the weight ${name} of a model twice.`);
    if (
      input?.type !== 'float32' ||
      input.shape.length !== shape.length ||
      input.shape.some((dimension, axis) => dimension !== shape[axis])
    ) {
      throw new ProtocolError(`The coordinator sent a model whose graph does not read ${name} as float32[${shape}].`);
    }
    initializers.set(name, wrap('float32', shape, placeholder.subarray(0, elementCount(shape))));
  }
  return {
    ...graph,
    inputs: graph.inputs.filter((input) => !names.has(input.name)),
    initializers,
    parameters: message.parameters.map(({ name }) => name),
    buffers: message.buffers.map(({ name }) => name),
  };
}

function zeros(count: number): Float32Array {
  try {
    return allocate('float32', count);
  } catch {
    throw new RunError(`This device has no room for a weight of ${count} elements.`);
  }
}
