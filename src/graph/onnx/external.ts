// Weights that a model keeps in other files (always the case above 2 GiB): loaded into the message, or left where they
// are and read when they are looked at.

import { create } from '@bufbuild/protobuf';

import { InputError } from '../../errors.ts';
import { patchGraph, patchNode } from './encode.ts';
import {
  AttributeProtoSchema,
  type GraphProto,
  type TensorProto,
  TensorProto_DataLocation,
  TensorProto_DataType,
  TensorProtoSchema,
} from './generated/onnx_pb.ts';

/**
 * Reads `length` bytes (or all remaining ones) at `offset` of a file in the model's folder; `file` is a path relative
 * to that folder.
 */
export type ExternalLoader = (file: string, offset: number, length: number | undefined) => Uint8Array;

/** Smaller tensors are loaded: among them are sizes, axes and tables that decide what the graph is. */
const leastLeftBytes = 2 ** 16;

/**
 * The graph with external tensors loaded; with `leavesLarge` those of float32 or float16 from 64 KiB on stay outside,
 * and it is only checked that their file holds them. Throws InputError if there is one and no loader, or a file is
 * missing or too short.
 */
export function loadExternalTensors(
  graph: GraphProto,
  load: ExternalLoader | undefined,
  { leavesLarge = false }: { readonly leavesLarge?: boolean } = {},
): GraphProto {
  const node = graph.node.map((old) => {
    if (!old.attribute.some(({ t }) => t !== undefined && isExternal(t))) return old;
    const attribute = old.attribute.map((entry) =>
      entry.t !== undefined && isExternal(entry.t)
        ? Object.assign(create(AttributeProtoSchema), entry, { t: loadedTensor(entry.t, load) })
        : entry,
    );
    return patchNode(old, { attribute });
  });
  return patchGraph(graph, {
    initializer: graph.initializer.map((tensor) => {
      if (!isExternal(tensor)) return tensor;
      if (!leavesLarge || !isLarge(tensor)) return loadedTensor(tensor, load);
      checkPlace(tensor, load);
      return tensor;
    }),
    node,
  });
}

function isLarge({ dims, dataType }: TensorProto): boolean {
  const bytes = dataType === TensorProto_DataType.FLOAT ? 4 : dataType === TensorProto_DataType.FLOAT16 ? 2 : 0;
  return dims.reduce((count, size) => count * Number(size), bytes) >= leastLeftBytes;
}

/** True for a tensor that is not in the message. */
export function isExternal({ dataLocation }: TensorProto): boolean {
  return dataLocation === TensorProto_DataLocation.EXTERNAL;
}

/** The tensor with its elements in it. Throws InputError as `load` does. */
export function loadedTensor(tensor: TensorProto, load: ExternalLoader | undefined): TensorProto {
  const { file, offset, length, read } = placeOf(tensor, load);
  return Object.assign(create(TensorProtoSchema), tensor, {
    rawData: read(file, offset, length),
    dataLocation: TensorProto_DataLocation.DEFAULT,
    externalData: [],
  });
}

/** Throws InputError where the file does not reach to the tensor's end. */
function checkPlace(tensor: TensorProto, load: ExternalLoader | undefined): void {
  const { file, offset, length, read } = placeOf(tensor, load);
  read(file, offset + (length ?? 0), 0);
}

interface Place {
  readonly file: string;
  readonly offset: number;
  readonly length: number | undefined;
  readonly read: ExternalLoader;
}

function placeOf(tensor: TensorProto, read: ExternalLoader | undefined): Place {
  const what = `Initializer "${tensor.name}"`;
  const entries = new Map(tensor.externalData.map(({ key, value }) => [key, value]));
  const file = entries.get('location') ?? '';
  if (file === '' || file.startsWith('/') || file.split(/[/\\]/).includes('..')) {
    throw new InputError(
      `${what} is kept in "${file}", which is not a file in the model's folder; export the model again.`,
    );
  }
  if (read === undefined) {
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
  return { file, offset: number('offset') ?? 0, length: number('length'), read };
}
