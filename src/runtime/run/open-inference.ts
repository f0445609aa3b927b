// The Open Inference Protocol (KServe V2) as pure functions: bodies of requests to tensors, and tensors to bodies of
// answers, with JSON and with its extension for binary tensors. Knows nothing of HTTP but two header values.
//
//   JSON     {"id": …, "inputs": [{"name", "shape", "datatype", "data"}], "outputs": [{"name", "parameters"}]}
//   binary   the same without "data", followed by the bytes of each tensor whose parameters have binary_data_size;
//            the header Inference-Header-Content-Length says where the JSON ends

import { z } from 'zod';
import { InputError } from '../../errors.ts';
import type { CutTensor } from '../../graph/layers.ts';
import {
  allocate,
  type ElementType,
  elementBytes,
  elementCount,
  type Tensor,
  tensorBytes,
  viewBytes,
  wrap,
} from '../../graph/tensor.ts';

/** A model as its clients see it. */
export interface ServedModel {
  readonly name: string;
  /** Batch first. */
  readonly inputs: readonly CutTensor[];
  readonly outputs: readonly CutTensor[];
}

/** The only version of a model that there is. */
export const modelVersion = '1';

const datatypes: { readonly [Type in ElementType]: string } = {
  float32: 'FP32',
  float64: 'FP64',
  float16: 'FP16',
  int8: 'INT8',
  uint8: 'UINT8',
  int16: 'INT16',
  uint16: 'UINT16',
  int32: 'INT32',
  uint32: 'UINT32',
  int64: 'INT64',
  uint64: 'UINT64',
  bool: 'BOOL',
};

/** A request for the model's outputs. */
export interface InferRequest {
  readonly id: string | undefined;
  /** In the model's order. */
  readonly inputs: readonly Tensor[];
  readonly sampleCount: number;
  /** Of each of the model's outputs, whether it travels as bytes; undefined for one that is not wanted. */
  readonly isBinary: readonly (boolean | undefined)[];
}

/** A body and what its headers say of it. */
export interface Encoded {
  readonly body: Uint8Array;
  /** Bytes of JSON before bytes of tensors; undefined where all is JSON. */
  readonly headerLength: number | undefined;
}

const parameters = z.record(z.string(), z.unknown()).optional();
const tensorSchema = z.object({
  name: z.string().max(1000),
  shape: z.array(z.number().int().min(0).max(1e9)).max(16),
  datatype: z.string().max(20),
  parameters,
  data: z.array(z.unknown()).optional(),
});
const requestSchema = z.object({
  id: z.string().max(1000).optional(),
  parameters,
  inputs: z.array(tensorSchema).min(1).max(1000),
  outputs: z
    .array(z.object({ name: z.string().max(1000), parameters }))
    .max(1000)
    .optional(),
});

/**
 * Reads a request for `model`. `headerLength`: the value of Inference-Header-Content-Length. `mostSamples`: the most
 * that a request may have. Throws InputError that says what is wrong.
 */
export function parseInferRequest(
  { body, headerLength }: { readonly body: Uint8Array; readonly headerLength?: string | undefined },
  model: ServedModel,
  mostSamples: number,
): InferRequest {
  const length = headerLength === undefined ? body.length : lengthOf(headerLength, body.length);
  const request = parsed(body.subarray(0, length));
  const bytes = new TensorBytes(body.subarray(length));
  const given = new Map(request.inputs.map((input) => [input.name, input]));
  if (given.size !== request.inputs.length) throw new InputError('The request has an input twice.');
  const values = new Map(request.inputs.map((input) => [input.name, tensorOf(input, model, bytes)]));
  bytes.expectEnd();
  const inputs = model.inputs.map(({ name }) => {
    const value = values.get(name);
    if (value === undefined)
      throw new InputError(`The request lacks the input ${name}: send all of the model's inputs.`);
    return value;
  });
  const sampleCount = inputs[0]?.shape[0] ?? 0;
  if (inputs.some(({ shape }) => shape[0] !== sampleCount))
    throw new InputError('The inputs have different numbers of samples: their first dimensions must agree.');
  if (sampleCount < 1 || sampleCount > mostSamples)
    throw new InputError(`The request has ${sampleCount} samples: send 1 to ${mostSamples}.`);
  return { id: request.id, inputs, sampleCount, isBinary: wantedOutputs(request, model) };
}

function lengthOf(text: string, most: number): number {
  const length = /^\d{1,12}$/.test(text) ? Number(text) : Number.NaN;
  if (!(length <= most))
    throw new InputError(
      `Inference-Header-Content-Length is ${JSON.stringify(text.slice(0, 40))}: give the JSON's length in bytes, ` +
        `at most the body's ${most}.`,
    );
  return length;
}

function parsed(bytes: Uint8Array): z.infer<typeof requestSchema> {
  let value: unknown;
  try {
    value = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes));
  } catch {
    throw new InputError('The request is not JSON in UTF-8.');
  }
  const result = requestSchema.safeParse(value);
  if (result.success) return result.data;
  const issue = result.error.issues[0];
  throw new InputError(`The request is wrong at "${issue?.path.join('.') ?? ''}": ${issue?.message ?? 'not known'}.`);
}

function tensorOf(input: z.infer<typeof tensorSchema>, model: ServedModel, bytes: TensorBytes): Tensor {
  const { name, shape, datatype, data } = input;
  const expected = model.inputs.find((candidate) => candidate.name === name);
  if (expected === undefined) throw new InputError(`The model has no input ${name}.`);
  const { type } = expected;
  if (datatypes[type] !== datatype)
    throw new InputError(`The input ${name} is ${datatypes[type]}, not ${datatype.slice(0, 20)}.`);
  const isFitting =
    shape.length === expected.shape.length &&
    expected.shape.every((dimension, axis) => axis === 0 || dimension === shape[axis]);
  if (!isFitting)
    throw new InputError(`The input ${name} has the shape [${expected.shape.join(', ')}], not [${shape.join(', ')}].`);
  const count = elementCount(shape);
  const size = input.parameters?.['binary_data_size'];
  if (size !== undefined) {
    if (data !== undefined) throw new InputError(`The input ${name} has its data twice, as JSON and as bytes.`);
    const wanted = count * elementBytes(type);
    if (size !== wanted) throw new InputError(`The input ${name} has ${String(size)} bytes, and needs ${wanted}.`);
    return wrap(type, shape, withBooleans(type, viewBytes(type, bytes.take(name, wanted))));
  }
  if (data === undefined) throw new InputError(`The input ${name} has no data.`);
  return wrap(type, shape, numbersOf(name, type, count, data));
}

/** The elements, which may be nested as the shape is. */
function numbersOf(name: string, type: ElementType, count: number, data: readonly unknown[]): Tensor['data'] {
  if (type === 'float16')
    throw new InputError(`The input ${name} is FP16, which JSON does not carry: send it as bytes.`);
  const array = allocate(type, count);
  const isBig = array instanceof BigInt64Array || array instanceof BigUint64Array;
  const isFloat = type === 'float32' || type === 'float64';
  let filled = 0;
  const put = (value: unknown): void => {
    const number = typeof value === 'boolean' && type === 'bool' ? Number(value) : value;
    if (typeof number !== 'number' || !(isFloat || Number.isSafeInteger(number)))
      throw new InputError(
        `The input ${name} holds ${JSON.stringify(value)?.slice(0, 40)}, which is no ${datatypes[type]}.`,
      );
    if (filled >= count) throw new InputError(`The input ${name} has more than the ${count} elements of its shape.`);
    if (isBig) array[filled++] = BigInt(number);
    else array[filled++] = number;
  };
  const walk = (values: readonly unknown[], depth: number): void => {
    if (depth > 16) throw new InputError(`The input ${name} is nested deeper than any shape.`);
    for (const value of values) Array.isArray(value) ? walk(value, depth + 1) : put(value);
  };
  walk(data, 0);
  if (filled !== count) throw new InputError(`The input ${name} has ${filled} elements, and its shape ${count}.`);
  return withBooleans(type, array);
}

function withBooleans(type: ElementType, array: Tensor['data']): Tensor['data'] {
  return type === 'bool' ? Uint8Array.from(array as Uint8Array, (value) => (value === 0 ? 0 : 1)) : array;
}

/** The bytes behind the JSON, in the order of the inputs. */
class TensorBytes {
  readonly #bytes: Uint8Array;
  #at = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
  }

  /** In memory of their own: an engine may take it. */
  take(name: string, count: number): Uint8Array {
    if (this.#at + count > this.#bytes.length)
      throw new InputError(`The body ends inside the input ${name}: ${count} bytes are announced.`);
    const taken = new Uint8Array(count);
    taken.set(this.#bytes.subarray(this.#at, this.#at + count));
    this.#at += count;
    return taken;
  }

  expectEnd(): void {
    const left = this.#bytes.length - this.#at;
    if (left > 0) throw new InputError(`The body has ${left} bytes that no input announces.`);
  }
}

function wantedOutputs(request: z.infer<typeof requestSchema>, { outputs }: ServedModel): (boolean | undefined)[] {
  const isBinary = request.parameters?.['binary_data_output'] === true;
  const wanted = new Map(request.outputs?.map((output) => [output.name, output]));
  for (const name of wanted.keys())
    if (!outputs.some((output) => output.name === name)) throw new InputError(`The model has no output ${name}.`);
  return outputs.map(({ name }) => {
    if (wanted.size === 0) return isBinary;
    const output = wanted.get(name);
    if (output === undefined) return undefined;
    if (output.parameters?.['classification'] !== undefined)
      throw new InputError('The extension "classification" is not there: ask for the output itself.');
    const own = output.parameters?.['binary_data'];
    return typeof own === 'boolean' ? own : isBinary;
  });
}

/** The answer to a request, with the outputs that it wants. */
export function encodeInferResponse(
  model: ServedModel,
  { id, isBinary }: Pick<InferRequest, 'id' | 'isBinary'>,
  values: readonly Tensor[],
): Encoded {
  const pieces: Uint8Array[] = [];
  const outputs = model.outputs.flatMap(({ name }, index): readonly object[] => {
    const [value, binary] = [values[index], isBinary[index]];
    if (value === undefined || binary === undefined) return [];
    const about = { name, datatype: datatypes[value.type], shape: value.shape };
    if (!binary) return [{ ...about, data: jsonOf(value) }];
    const bytes = tensorBytes(value);
    pieces.push(bytes);
    return [{ ...about, parameters: { binary_data_size: bytes.length } }];
  });
  const answer = { model_name: model.name, model_version: modelVersion, ...(id === undefined ? {} : { id }), outputs };
  const json = new TextEncoder().encode(JSON.stringify(answer));
  if (pieces.length === 0) return { body: json, headerLength: undefined };
  const body = new Uint8Array(json.length + pieces.reduce((sum, { length }) => sum + length, 0));
  body.set(json);
  let at = json.length;
  for (const piece of pieces) {
    body.set(piece, at);
    at += piece.length;
  }
  return { body, headerLength: json.length };
}

/** JSON has no infinities: as PyTorch's and Triton's servers do, they become null. */
function jsonOf({ type, data }: Tensor): unknown[] {
  if (type === 'bool') return Array.from(data as Uint8Array, (value) => value !== 0);
  return Array.from(data as Float32Array, (value) => (typeof value === 'bigint' ? Number(value) : value));
}

/** What GET /v2 answers. `version`: the package's. */
export function serverMetadata(version: string): unknown {
  return { name: 'asteroid', version, extensions: ['binary_tensor_data'] };
}

/** What GET /v2/models/NAME answers. */
export function modelMetadata({ name, inputs, outputs }: ServedModel): unknown {
  const described = (tensors: readonly CutTensor[]): unknown[] =>
    tensors.map((tensor) => ({
      name: tensor.name,
      datatype: datatypes[tensor.type],
      shape: tensor.shape.map((dimension) => (dimension === 'N' ? -1 : dimension)),
    }));
  return {
    name,
    versions: [modelVersion],
    platform: 'onnx',
    inputs: described(inputs),
    outputs: described(outputs),
  };
}
