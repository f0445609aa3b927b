// Loads weights that a model keeps in other files (always the case above 2 GiB) into the message.

import { create } from '@bufbuild/protobuf';

import { InputError } from '../../errors.ts';
import { patchGraph, patchNode } from './encode.ts';
import {
  AttributeProtoSchema,
  type GraphProto,
  type TensorProto,
  TensorProto_DataLocation,
  TensorProtoSchema,
} from './generated/onnx_pb.ts';

/**
 * Reads `length` bytes (or all remaining ones) at `offset` of a file in the model's folder; `file` is a path relative
 * to that folder.
 */
export type ExternalLoader = (file: string, offset: number, length: number | undefined) => Uint8Array;

/** The graph with every external tensor loaded. Throws InputError if there is one and no loader. */
export function loadExternalTensors(graph: GraphProto, load: ExternalLoader | undefined): GraphProto {
  const node = graph.node.map((old) => {
    if (!old.attribute.some(({ t }) => isExternal(t))) return old;
    const attribute = old.attribute.map((entry) =>
      isExternal(entry.t) ? Object.assign(create(AttributeProtoSchema), entry, { t: loaded(entry.t, load) }) : entry,
    );
    return patchNode(old, { attribute });
  });
  return patchGraph(graph, {
    initializer: graph.initializer.map((tensor) => (isExternal(tensor) ? loaded(tensor, load) : tensor)),
    node,
  });
}

function isExternal(tensor: TensorProto | undefined): tensor is TensorProto {
  return tensor?.dataLocation === TensorProto_DataLocation.EXTERNAL;
}

function loaded(tensor: TensorProto, load: ExternalLoader | undefined): TensorProto {
  const what = `Initializer "${tensor.name}"`;
  const entries = new Map(tensor.externalData.map(({ key, value }) => [key, value]));
  const file = entries.get('location') ?? '';
  if (file === '' || file.startsWith('/') || file.split(/[/\\]/).includes('..')) {
    throw new InputError(
      `${what} is kept in "${file}", which is not a file in the model's folder; export the model again.`,
    );
  }
  if (load === undefined) {
    throw new InputError(
      `${what} is kept outside the model, in "${file}"; save the model with its weights inside ` +
        '(save_as_external_data=False).',
    );
  }
  const number = (key: string): number | undefined => {
    const text = entries.get(key);
    if (text === undefined || text === '') return undefined;
    const value = Number(text);
    if (!Number.isSafeInteger(value) || value < 0)
      throw new InputError(`${what} has an impossible ${key} of external data, "${text}".`);
    return value;
  };
  const rawData = load(file, number('offset') ?? 0, number('length'));
  return Object.assign(create(TensorProtoSchema), tensor, {
    rawData,
    dataLocation: TensorProto_DataLocation.DEFAULT,
    externalData: [],
  });
}
