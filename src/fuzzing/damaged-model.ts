// ONNX models with a few wrong fields. Damaged bytes rarely give these: one wrong length spoils everything after it.

import { fromBinary, toBinary } from '@bufbuild/protobuf';
import { ModelProtoSchema } from '../graph/onnx/generated/onnx_pb.ts';
import { operators } from '../graph/operators/index.ts';
import type { Random } from '../random.ts';
import { mutate } from '../testing/mutations.ts';
import { oneOf } from './inputs.ts';

const wholeNumbers: readonly bigint[] = [
  -(2n ** 63n),
  -(2n ** 31n),
  -2n,
  -1n,
  0n,
  1n,
  2n,
  3n,
  7n,
  16n,
  64n,
  255n,
  2n ** 31n - 1n,
  2n ** 40n,
  2n ** 63n - 1n,
];
const numbers: readonly number[] = [-1, 0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 13, 16, 100, 2 ** 31 - 1, -(2 ** 31)];
const operatorNames = [
  ...Object.keys(operators),
  'If',
  'Loop',
  'Constant',
  'LSTM',
  'GRU',
  'Attention',
  'LayerNormalization',
  'Einsum',
  'nonsense',
];

type Fields = Record<string, unknown>;

/**
 * The model's bytes after one to four changes of its fields: another value, or a part left out, doubled, moved or
 * copied from elsewhere.
 */
export function damagedModel(bytes: Uint8Array, random: Random): Uint8Array {
  const model = fromBinary(ModelProtoSchema, bytes);
  const names = textsOf(model);
  for (let change = random.integer(4); change >= 0; change--)
    changeMessage(random.integer(8) === 0 ? model : (model.graph ?? model), names, random);
  try {
    return toBinary(ModelProtoSchema, model);
  } catch {
    return mutate(bytes, random); // a number that its field cannot hold
  }
}

/** All names in the model, to be exchanged. */
function textsOf(value: unknown): string[] {
  if (typeof value === 'string') return [value];
  if (typeof value !== 'object' || value === null || value instanceof Uint8Array) return [];
  return Object.entries(value).flatMap(([key, inner]) => (key === '$typeName' ? [] : textsOf(inner)));
}

function changeMessage(message: unknown, names: readonly string[], random: Random): void {
  const fields = message as Fields;
  const keys = Object.keys(fields).filter((key) => !key.startsWith('$') && isFilled(fields[key]));
  // Empty fields are sometimes filled.
  const empty = Object.keys(fields).filter(
    (key) => Array.isArray(fields[key]) && (fields[key] as unknown[]).length === 0,
  );
  if (empty.length > 0 && random.integer(30) === 0) return fill(fields, oneOf(empty, random), names, random);
  if (keys.length === 0) return;
  const key = oneOf(keys, random);
  fields[key] = changed(fields[key], names, random);
}

function isFilled(value: unknown): boolean {
  return Array.isArray(value) ? value.length > 0 : value !== undefined;
}

/** A random value of the same type: the right ones are not known here. Other types are not encoded. */
function fill(fields: Fields, key: string, names: readonly string[], random: Random): void {
  fields[key] = [
    key === 'input' || key === 'output'
      ? oneOf(names, random)
      : oneOf<unknown>([wholeNumbers[random.integer(15)], 1, ''], random),
  ];
}

function changed(value: unknown, names: readonly string[], random: Random): unknown {
  if (typeof value === 'string')
    return oneOf([oneOf(names, random), oneOf(names, random), oneOf(operatorNames, random), '', `${value}x`], random);
  if (typeof value === 'bigint') return oneOf(wholeNumbers, random);
  if (typeof value === 'number') return oneOf(numbers, random);
  if (typeof value === 'boolean') return !value;
  if (value instanceof Uint8Array) return mutate(value, random);
  if (Array.isArray(value)) return changedList(value, names, random);
  if (typeof value === 'object' && value !== null) {
    const inner = value as Fields;
    // One field of several: protobuf's `oneof`.
    if ('case' in inner && 'value' in inner) inner['value'] = changed(inner['value'], names, random);
    else changeMessage(inner, names, random);
  }
  return value;
}

function changedList(list: readonly unknown[], names: readonly string[], random: Random): unknown[] {
  const copy = [...list];
  const index = random.integer(copy.length);
  switch (random.integer(8)) {
    case 0:
      copy.splice(index, 1);
      break;
    case 1:
      copy.splice(index, 0, oneOf(list, random));
      break;
    case 2:
      copy[index] = oneOf(list, random);
      break;
    default:
      copy[index] = changed(copy[index], names, random);
  }
  return copy;
}
