// TensorProto to Tensor and back. Every size is checked against the bytes present before anything is allocated. Half
// precision becomes float32 (the type that Asteroid computes in) and half precision again in the user's own file; so
// does float64 where weights have it (precision.ts).

import { create } from '@bufbuild/protobuf';

import { InputError } from '../../errors.ts';
import {
  allocate,
  byteLength,
  type ElementType,
  elementBytes,
  type FilePlace,
  rereadTensor,
  type Tensor,
  tensorBytes,
  viewBytes,
  wrap,
} from '../tensor.ts';
import { type ExternalLoader, isExternal, loadedTensor } from './external.ts';
import {
  StringStringEntryProtoSchema,
  type TensorProto,
  TensorProto_DataLocation,
  TensorProto_DataType,
  TensorProtoSchema,
} from './generated/onnx_pb.ts';

const DataType = TensorProto_DataType;

const elementTypes: ReadonlyMap<number, ElementType> = new Map<number, ElementType>([
  [DataType.FLOAT, 'float32'],
  [DataType.DOUBLE, 'float64'],
  [DataType.FLOAT16, 'float32'],
  [DataType.BFLOAT16, 'float32'],
  [DataType.INT8, 'int8'],
  [DataType.UINT8, 'uint8'],
  [DataType.INT16, 'int16'],
  [DataType.UINT16, 'uint16'],
  [DataType.INT32, 'int32'],
  [DataType.UINT32, 'uint32'],
  [DataType.INT64, 'int64'],
  [DataType.UINT64, 'uint64'],
  [DataType.BOOL, 'bool'],
]);

const dataTypes: Readonly<Record<ElementType, number>> = {
  float32: DataType.FLOAT,
  float64: DataType.DOUBLE,
  float16: DataType.FLOAT16,
  int8: DataType.INT8,
  uint8: DataType.UINT8,
  int16: DataType.INT16,
  uint16: DataType.UINT16,
  int32: DataType.INT32,
  uint32: DataType.UINT32,
  int64: DataType.INT64,
  uint64: DataType.UINT64,
  bool: DataType.BOOL,
};

/**
 * The element type for ONNX's data type (float32 for half precision), or undefined for unsupported ones such as
 * strings.
 */
export function elementTypeOf(dataType: number): ElementType | undefined {
  return elementTypes.get(dataType);
}

/** ONNX's number for an element type. */
export function dataTypeOf(type: ElementType): number {
  return dataTypes[type];
}

/** True for the data types that are converted to float32. */
export function isHalf(dataType: number): boolean {
  return dataType === DataType.FLOAT16 || dataType === DataType.BFLOAT16;
}

/** The name of a data type, for messages. */
export function dataTypeName(dataType: number): string {
  return (
    Object.entries(DataType)
      .find(([, number]) => number === dataType)?.[0]
      .toLowerCase() ?? `type ${dataType}`
  );
}

/**
 * Reads a tensor into an array of its own. `what` begins error messages, such as 'Initializer "w"'. Throws InputError
 * for unsupported types and for bytes that do not fit the shape. What external.ts left outside is read through `load`
 * whenever it is looked at.
 */
export function decodeTensor(proto: TensorProto, what: string, load?: ExternalLoader): Tensor {
  const type = elementTypeOf(proto.dataType);
  if (type === undefined)
    throw new InputError(`${what} has elements of ${dataTypeName(proto.dataType)}, which Asteroid does not support.`);
  if (proto.segment !== undefined)
    throw new InputError(`${what} is stored in segments, which Asteroid does not read; save the model whole.`);
  const shape = proto.dims.map((dimension) => {
    if (dimension < 0n || dimension > BigInt(Number.MAX_SAFE_INTEGER))
      throw new InputError(`${what} has an impossible dimension, ${dimension}.`);
    return Number(dimension);
  });
  if (isExternal(proto)) return rereadTensor(type, shape, () => decodeTensor(loadedTensor(proto, load), what).data);
  const count = shape.includes(0) ? 0 : shape.reduce((product, dimension) => product * dimension, 1);
  const bytes = proto.rawData;
  const typed = typedValues(proto);
  if (bytes.length === 0 && typed.length > 0) return fromTyped(type, shape, count, typed, proto.dataType, what);
  const stored = isHalf(proto.dataType) ? 2 : elementBytes(type);
  if (bytes.length !== count * stored) {
    throw new InputError(
      `${what} of shape [${shape.join(', ')}] needs ${count * stored} bytes but has ${bytes.length}; the file ` +
        'may be cut off.',
    );
  }
  if (isHalf(proto.dataType)) return wrap('float32', shape, widen(viewBytes('uint16', bytes.slice()), proto.dataType));
  const data = viewBytes(type, bytes.slice());
  if (type === 'bool') for (let index = 0; index < count; index++) data[index] = data[index] === 0 ? 0 : 1;
  return wrap(type, shape, data);
}

/** The field with the elements if they are not raw bytes; of several, the one that ONNX prescribes for the type. */
function typedValues({
  dataType,
  floatData,
  doubleData,
  int32Data,
  int64Data,
  uint64Data,
}: TensorProto): readonly (number | bigint)[] {
  switch (dataType) {
    case DataType.FLOAT:
      return floatData;
    case DataType.DOUBLE:
      return doubleData;
    case DataType.INT64:
      return int64Data;
    case DataType.UINT32:
    case DataType.UINT64:
      return uint64Data;
    default:
      return int32Data;
  }
}

function fromTyped(
  type: ElementType,
  shape: readonly number[],
  count: number,
  values: readonly (number | bigint)[],
  dataType: number,
  what: string,
): Tensor {
  if (values.length !== count)
    throw new InputError(`${what} of shape [${shape.join(', ')}] needs ${count} elements but has ${values.length}.`);
  if (isHalf(dataType)) return wrap('float32', shape, widen(Uint16Array.from(values as readonly number[]), dataType));
  const data = allocate(type, count);
  for (let index = 0; index < count; index++) {
    const value = values[index] as number | bigint;
    if (data instanceof BigInt64Array || data instanceof BigUint64Array) data[index] = BigInt(value);
    else data[index] = type === 'bool' ? Number(value !== 0) : Number(value);
  }
  return wrap(type, shape, data);
}

/** A TensorProto that holds `value`'s bytes without copying them. */
export function encodeTensor(value: Tensor, name?: string): TensorProto {
  return create(TensorProtoSchema, {
    ...(name === undefined ? {} : { name }),
    dataType: dataTypeOf(value.type),
    dims: value.shape.map(BigInt),
    rawData: tensorBytes(value),
  });
}

/** A TensorProto that refers to the file where the elements lie. */
export function encodePlacedTensor({ type, shape }: Tensor, name: string, { file, offset }: FilePlace): TensorProto {
  const entries = { location: file, offset: String(offset), length: String(byteLength({ type, shape })) };
  return create(TensorProtoSchema, {
    name,
    dataType: dataTypeOf(type),
    dims: shape.map(BigInt),
    dataLocation: TensorProto_DataLocation.EXTERNAL,
    externalData: Object.entries(entries).map(([key, value]) => create(StringStringEntryProtoSchema, { key, value })),
  });
}

/**
 * `value` (a float tensor) in place of `proto`'s; name, documentation and data type are kept. Shares `value`'s bytes
 * unless they are converted.
 */
export function replaceTensor(proto: TensorProto, value: Tensor): TensorProto {
  const rawData = isHalf(proto.dataType)
    ? narrow(value.data as Float32Array, proto.dataType)
    : proto.dataType === DataType.DOUBLE && value.type === 'float32'
      ? new Uint8Array(Float64Array.from(value.data as Float32Array).buffer)
      : tensorBytes(value);
  return Object.assign(create(TensorProtoSchema), proto, { rawData, floatData: [], doubleData: [], int32Data: [] });
}

/** Half-precision bits to float32, exactly. */
function widen(bits: Uint16Array, dataType: number): Float32Array {
  const words = new Uint32Array(bits.length);
  if (dataType === DataType.BFLOAT16) {
    for (let index = 0; index < bits.length; index++) words[index] = (bits[index] as number) << 16;
    return new Float32Array(words.buffer);
  }
  const result = new Float32Array(bits.length);
  for (let index = 0; index < bits.length; index++) {
    const half = bits[index] as number;
    const [exponent, fraction] = [(half >> 10) & 31, half & 1023];
    const magnitude =
      exponent === 31
        ? fraction === 0
          ? Infinity
          : NaN
        : exponent === 0
          ? fraction * 2 ** -24
          : (1024 + fraction) * 2 ** (exponent - 25);
    result[index] = half >> 15 === 1 ? -magnitude : magnitude;
  }
  return result;
}

/** float32 to half-precision bytes, to the nearest, ties to even. */
function narrow(values: Float32Array, dataType: number): Uint8Array {
  const bits = new Uint16Array(values.length);
  for (let index = 0; index < values.length; index++) {
    bits[index] =
      dataType === DataType.BFLOAT16 ? toBfloat16(values[index] as number) : toFloat16(values[index] as number);
  }
  return new Uint8Array(bits.buffer);
}

function toBfloat16(value: number): number {
  if (Number.isNaN(value)) return 0x7fc0;
  const word = new Uint32Array(Float32Array.of(value).buffer)[0] as number;
  return (word + 0x7fff + ((word >>> 16) & 1)) >>> 16;
}

function toFloat16(value: number): number {
  if (Number.isNaN(value)) return 0x7e00;
  const sign = Object.is(value, -0) || value < 0 ? 0x8000 : 0;
  const magnitude = Math.abs(value);
  if (magnitude >= 65520) return sign | 0x7c00;
  if (magnitude < 2 ** -14) return sign | roundToEven(magnitude * 2 ** 24);
  const exponent = Math.min(Math.floor(Math.log2(magnitude)), 15);
  const exact = magnitude >= 2 ** (exponent + 1) ? exponent + 1 : magnitude < 2 ** exponent ? exponent - 1 : exponent;
  // A fraction that rounds up to 1024 correctly carries into the exponent.
  return sign | (((exact + 15) << 10) + roundToEven((magnitude / 2 ** exact - 1) * 1024));
}

function roundToEven(value: number): number {
  const floor = Math.floor(value);
  const rest = value - floor;
  return rest > 0.5 || (rest === 0.5 && floor % 2 === 1) ? floor + 1 : floor;
}
