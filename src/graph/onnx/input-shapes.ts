// Sizes that a file leaves open (an image's height, a sentence's length), as a person gives them: `x=N,3,224,224`.

import { create } from '@bufbuild/protobuf';

import { InputError } from '../../errors.ts';
import type { Dimension } from '../graph.ts';
import { unknownDimension } from './decode.ts';
import { patchGraph } from './encode.ts';
import {
  type GraphProto,
  type TensorShapeProto_Dimension,
  TensorShapeProto_DimensionSchema,
  TensorShapeProtoSchema,
  TypeProto_TensorSchema,
  TypeProtoSchema,
  type ValueInfoProto,
  ValueInfoProtoSchema,
} from './generated/onnx_pb.ts';

/** The shape of one input. */
export interface InputShape {
  /** Absent where the model has one input. */
  readonly name?: string;
  /** A name, such as N, leaves a dimension as it is in the file. */
  readonly shape: readonly Dimension[];
  /** As it was given, for messages. */
  readonly text: string;
}

/** Reads NAME=N,3,224,224, or only the sizes. Throws InputError. */
export function parseInputShape(text: string): InputShape {
  const at = text.lastIndexOf('=');
  const sizes = text
    .slice(at + 1)
    .split(/[,x×]/)
    .map((size) => size.trim());
  const shape = sizes.map((size): Dimension => (/^[1-9]\d{0,8}$/.test(size) ? Number(size) : size));
  if (at === 0 || !shape.every((size) => typeof size === 'number' || /^[A-Za-z_]\w*$/.test(size)))
    throw new InputError(`--input-shape ${text} is not of the form NAME=N,3,224,224: give a size for each dimension.`);
  return { ...(at < 0 ? {} : { name: text.slice(0, at) }), shape, text };
}

/**
 * The graph with these sizes in place of open ones, in all inputs and outputs where a size has the same name. The batch
 * (an open first dimension) stays open. Throws InputError for an input that there is not, and for a shape that the
 * file's does not allow.
 */
export function withInputShapes(graph: GraphProto, shapes: readonly InputShape[]): GraphProto {
  if (shapes.length === 0) return graph;
  const weights = new Set(graph.initializer.map(({ name }) => name));
  const inputs = graph.input.filter(({ name }) => !weights.has(name));
  const own = new Map<string, readonly (number | undefined)[]>();
  const named = new Map<string, number>();
  for (const given of shapes) {
    const input = inputNamed(inputs, given);
    const sizes = openSizes(input, given);
    own.set(input.name, sizes);
    for (const [axis, size] of sizes.entries()) {
      const symbol = symbolOf(dimensionsOf(input)[axis]);
      if (size !== undefined && symbol !== undefined) named.set(symbol, size);
    }
  }
  const resized = (info: ValueInfoProto): ValueInfoProto =>
    withDimensions(info, (dimension, axis) => own.get(info.name)?.[axis] ?? named.get(symbolOf(dimension) ?? ''));
  return patchGraph(graph, { input: graph.input.map(resized), output: graph.output.map(resized) });
}

function inputNamed(inputs: readonly ValueInfoProto[], { name, text }: InputShape): ValueInfoProto {
  const found =
    name === undefined ? (inputs.length === 1 ? inputs[0] : undefined) : inputs.find((one) => one.name === name);
  if (found !== undefined) return found;
  const names = inputs.map((one) => one.name).join(', ');
  const problem = name === undefined ? 'does not say which input it is for' : 'names no input of the model';
  throw new InputError(`--input-shape ${text} ${problem}: the model has ${names}.`);
}

/** By axis: the size to set, or undefined. */
function openSizes(input: ValueInfoProto, { shape, text }: InputShape): readonly (number | undefined)[] {
  const dimensions = dimensionsOf(input);
  const declared = dimensions.map(({ value }) =>
    value.case === 'dimValue' ? String(value.value) : (value.value ?? '?'),
  );
  const fits =
    shape.length === dimensions.length &&
    dimensions.every((dimension, axis) => {
      const size = shape[axis];
      return isOpen(dimension) || typeof size === 'string' || dimension.value.value === BigInt(size ?? 0);
    });
  if (!fits)
    throw new InputError(
      `--input-shape ${text} does not fit the model's input ${input.name} of the shape [${declared.join(', ')}]: ` +
        'give the sizes that are open.',
    );
  return dimensions.map((dimension, axis) => {
    const size = shape[axis];
    return axis > 0 && isOpen(dimension) && typeof size === 'number' ? size : undefined;
  });
}

function dimensionsOf({ type }: ValueInfoProto): readonly TensorShapeProto_Dimension[] {
  return (type?.value.case === 'tensorType' ? type.value.value.shape?.dim : undefined) ?? [];
}

function isOpen({ value }: TensorShapeProto_Dimension): boolean {
  return value.case !== 'dimValue' || value.value <= 0n;
}

function symbolOf(dimension: TensorShapeProto_Dimension | undefined): string | undefined {
  const { value } = dimension ?? {};
  return value?.case === 'dimParam' && !unknownDimension.test(value.value) ? value.value : undefined;
}

function withDimensions(
  info: ValueInfoProto,
  size: (dimension: TensorShapeProto_Dimension, axis: number) => number | undefined,
): ValueInfoProto {
  if (info.type?.value.case !== 'tensorType') return info;
  const tensor = info.type.value.value;
  const dim = dimensionsOf(info).map((dimension, axis) => {
    const found = size(dimension, axis);
    return found === undefined
      ? dimension
      : create(TensorShapeProto_DimensionSchema, { value: { case: 'dimValue', value: BigInt(found) } });
  });
  if (tensor.shape === undefined) return info;
  const value = Object.assign(create(TypeProto_TensorSchema), tensor, {
    shape: create(TensorShapeProtoSchema, { dim }),
  });
  const type = Object.assign(create(TypeProtoSchema), info.type, { value: { case: 'tensorType', value } });
  return Object.assign(create(ValueInfoProtoSchema), info, { type });
}
