// ONNX files made by hand, for tests of the importer: at any opset, with anything in them.

import { fromBinary, toBinary } from '@bufbuild/protobuf';

import type { Graph, Node, ValueInfo } from '../graph/graph.ts';
import { exportGraph } from '../graph/onnx/export.ts';
import { type ModelProto, ModelProtoSchema } from '../graph/onnx/generated/onnx_pb.ts';
import type { Tensor } from '../graph/tensor.ts';

/** A model as a test writes it down. */
export interface ModelText {
  readonly opset: number;
  readonly inputs: readonly ValueInfo[];
  /** Nodes with what is not default; `constants` below become Constant nodes. */
  readonly nodes: readonly (Partial<Node> & { readonly operator: string })[];
  readonly outputs: readonly string[];
  readonly initializers?: Readonly<Record<string, Tensor>>;
  /** Tensors held by Constant nodes. */
  readonly constants?: Readonly<Record<string, Tensor>>;
}

/** The bytes of a model. */
export function onnxModel({ opset, inputs, nodes, outputs, initializers = {}, constants = {} }: ModelText): Uint8Array {
  const all: Node[] = [
    ...Object.entries(constants).map(
      ([name, value]): Node => ({
        operator: 'Constant',
        domain: '',
        name: '',
        inputs: [],
        outputs: [name],
        attributes: { value: { type: 'tensor', value } },
      }),
    ),
    ...nodes.map((node, index) => ({
      domain: '',
      name: `node${index}`,
      inputs: [],
      outputs: [],
      attributes: {},
      ...node,
    })),
  ];
  const graph: Graph = {
    name: 'model',
    inputs,
    outputs: outputs.map((name) => ({ name, type: 'float32', shape: [] })),
    initializers: new Map(Object.entries(initializers)),
    // Everything is a weight, so that no metadata is written.
    parameters: Object.keys(initializers),
    buffers: [],
    nodes: all,
  };
  return changed(exportGraph(graph), (model) => {
    model.producerName = 'somebody';
    for (const entry of model.opsetImport) if (entry.domain === '') entry.version = BigInt(opset);
  });
}

/** The bytes of a model after `change` was done to its message. */
export function changed(bytes: Uint8Array, change: (model: ModelProto) => void): Uint8Array {
  const model = fromBinary(ModelProtoSchema, bytes);
  change(model);
  return toBinary(ModelProtoSchema, model);
}

/** The message in the bytes of a model. */
export function messageOf(bytes: Uint8Array): ModelProto {
  return fromBinary(ModelProtoSchema, bytes);
}
