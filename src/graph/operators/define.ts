// The common frame of all operators: checks a node's inputs, outputs, attributes and element types before the
// operator's own rule runs. Every violation is an InputError that names the node and what it has.

import { assert, defined } from '../../assert.ts';
import { InputError } from '../../errors.ts';
import type { Attribute, Node } from '../graph.ts';
import { type ElementType, elementCount, sameShape, type Tensor, type ValueType } from '../tensor.ts';
import type { OperatorDefinition } from './definition.ts';
import { plainNumbers } from './numbers.ts';

/** The inputs of a node in its rule; the required ones are present. */
export type Inputs<T> = readonly (T | undefined)[];

/** An operator as declared in its family's file. */
export interface Specification {
  /** The least and the most inputs; the first `least` are required, the others may be absent. */
  readonly inputs: readonly [least: number, most: number];
  /** The least and the most outputs. Default [1, 1]. */
  readonly outputs?: readonly [least: number, most: number];
  /** The attributes that the operator has, with their types. */
  readonly attributes?: Readonly<Record<string, Attribute['type']>>;
  /**
   * The element types that each input may have: for the inputs in order, the last list for all that follow. Default:
   * any type.
   */
  readonly types?: readonly (readonly ElementType[])[];
  /** Inputs that, if present, must have the element type of input 0. */
  readonly sameType?: readonly number[] | 'all';
  /** Inputs whose values must be known before running. */
  readonly constantInputs?: readonly number[];
  infer(node: Node, inputs: Inputs<ValueType>, constants: Inputs<Tensor>): readonly ValueType[];
  /** `types` is the result of `infer` for these inputs, with every constant known. */
  evaluate(node: Node, inputs: Inputs<Tensor>, types: readonly ValueType[]): readonly Tensor[];
}

export const floatTypes: readonly ElementType[] = ['float32', 'float64', 'float16'];
export const signedTypes: readonly ElementType[] = [...floatTypes, 'int8', 'int16', 'int32', 'int64'];
export const unsignedTypes: readonly ElementType[] = ['uint8', 'uint16', 'uint32', 'uint64'];
export const integerTypes: readonly ElementType[] = ['int8', 'int16', 'int32', 'int64', ...unsignedTypes];
export const numericTypes: readonly ElementType[] = [...floatTypes, ...integerTypes];
/** The types that ONNX allows in sums of products: floats and integers of at least 32 bits. */
export const arithmeticTypes: readonly ElementType[] = [...floatTypes, 'int32', 'int64', 'uint32', 'uint64'];
export const indexTypes: readonly ElementType[] = ['int32', 'int64'];
export const int64Only: readonly ElementType[] = ['int64'];
export const boolOnly: readonly ElementType[] = ['bool'];
export const anyType: readonly ElementType[] = [...numericTypes, 'bool'];

/** Converts a specification to the definition in the table. */
export function define(specification: Specification): OperatorDefinition {
  const infer: OperatorDefinition['infer'] = (node, inputs, constants) => {
    checkCounts(node, specification);
    checkAttributes(node, specification.attributes ?? {});
    checkTypes(node, inputs, specification);
    return specification.infer(node, inputs, constants).slice(0, node.outputs.length);
  };
  return {
    infer,
    evaluate(node, inputs) {
      const types = infer(node, inputs, inputs);
      const outputs = specification.evaluate(node, inputs, types).slice(0, node.outputs.length);
      outputs.forEach((output, index) => {
        const type = defined(types[index], `output type ${index} of ${node.operator}`);
        const fits =
          output.type === type.type &&
          sameShape(output.shape, type.shape) &&
          output.data.length === elementCount(type.shape);
        assert(
          fits,
          `${node.operator} promised ${typeText(type)} and returned ${typeText(output)} with ` +
            `${output.data.length} elements`,
        );
      });
      return outputs;
    },
    constantInputs: specification.constantInputs ?? [],
  };
}

/** Throws the InputError of a node: `problem` continues the sentence that begins with the node's name. */
export function fail(node: Node, problem: string): never {
  throw new InputError(`Node "${node.name}" (${node.operator}) ${problem}.`);
}

/** Throws `fail` with the problem unless `condition` holds. */
export function check(condition: unknown, node: Node, problem: () => string): asserts condition {
  if (!condition) fail(node, problem());
}

/** "[2, 3]" */
export function shapeText(shape: readonly number[]): string {
  return `[${shape.join(', ')}]`;
}

/** "float32[2, 3]" */
export function typeText(value: ValueType): string {
  return `${value.type}${shapeText(value.shape)}`;
}

/** An input that the frame has checked to be present. */
export function required<T>(inputs: Inputs<T>, index: number): T {
  return defined(inputs[index], `input ${index}`);
}

/** An axis in [0, rank), from one that may count from the end. */
export function normalizeAxis(node: Node, axis: number, rank: number): number {
  check(
    Number.isInteger(axis) && axis >= -rank && axis < rank,
    node,
    () => `has axis ${axis}, which a value of rank ${rank} does not have`,
  );
  return axis < 0 ? axis + rank : axis;
}

/** Distinct axes in [0, rank), in the order given. */
export function normalizeAxes(node: Node, axes: readonly number[], rank: number): readonly number[] {
  const normalized = axes.map((axis) => normalizeAxis(node, axis, rank));
  check(new Set(normalized).size === normalized.length, node, () => `names an axis twice in ${shapeText(axes)}`);
  return normalized;
}

/** The value of an input. Throws InputError if it is not known before running. */
export function knownInput(node: Node, constants: Inputs<Tensor>, index: number): Tensor {
  const constant = constants[index];
  check(
    constant,
    node,
    () =>
      `needs the value of its input "${node.inputs[index]}" before running; make it an initializer or compute ` +
      'it from constants and shapes',
  );
  return constant;
}

/**
 * The integers in a constant input, or undefined if the input is absent. Throws InputError if the value is not known
 * before running.
 */
export function constantIntegers(
  node: Node,
  inputs: Inputs<ValueType>,
  constants: Inputs<Tensor>,
  index: number,
): readonly number[] | undefined {
  if (inputs[index] === undefined) return undefined;
  const constant = knownInput(node, constants, index);
  check(
    constant.shape.length <= 1,
    node,
    () => `wants a list of integers in input "${node.inputs[index]}", not ${typeText(constant)}`,
  );
  return [...plainNumbers(constant)];
}

function checkCounts(
  node: Node,
  { inputs: [leastInputs, mostInputs], outputs: [leastOutputs, mostOutputs] = [1, 1] }: Specification,
): void {
  check(
    node.inputs.length <= mostInputs,
    node,
    () => `has ${node.inputs.length} inputs where the operator takes at most ${mostInputs}`,
  );
  for (let index = 0; index < leastInputs; index++) {
    check(node.inputs[index], node, () => `lacks input ${index}; the operator needs at least ${leastInputs} inputs`);
  }
  const outputs = node.outputs.length;
  check(outputs >= leastOutputs && outputs <= mostOutputs, node, () => {
    const known = leastOutputs === mostOutputs ? leastOutputs : `${leastOutputs} to ${mostOutputs}`;
    return `has ${outputs} outputs where the operator has ${known}`;
  });
}

function checkAttributes(node: Node, known: Readonly<Record<string, Attribute['type']>>): void {
  for (const [name, attribute] of Object.entries(node.attributes)) {
    const type = Object.hasOwn(known, name) ? known[name] : undefined;
    const names = Object.keys(known).join(', ');
    check(
      type,
      node,
      () =>
        `has the attribute "${name}", which the operator does not know at opset 21 (it knows ` +
        `${names === '' ? 'none' : names})`,
    );
    check(
      attribute.type === type,
      node,
      () => `has the attribute "${name}" of type ${attribute.type} where the operator wants ${type}`,
    );
  }
}

function checkTypes(node: Node, inputs: Inputs<ValueType>, { types, sameType, inputs: [least] }: Specification): void {
  node.inputs.forEach((name, index) => {
    const input = inputs[index];
    if (index < least || name !== '') check(input, node, () => `reads "${name}", whose type is not known`);
    if (input === undefined) return;
    const allowed = types?.[Math.min(index, types.length - 1)];
    check(
      !allowed || allowed.includes(input.type),
      node,
      () => `does not take ${typeText(input)} as input "${name}"; it takes ${allowed?.join(', ')}`,
    );
    if (sameType === undefined || (sameType !== 'all' && !sameType.includes(index))) return;
    const first = required(inputs, 0);
    check(
      input.type === first.type,
      node,
      () => `mixes element types: ${typeText(first)} and ${typeText(input)}; add a Cast`,
    );
  });
}
