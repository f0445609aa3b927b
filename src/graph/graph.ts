// The model as plain data: nodes in topological order over named values, in the form of ONNX at one opset
// (`canonicalOpset`). Importing (onnx/) converts every model to this form; no other code handles other opsets.

import type { ElementType, Tensor } from './tensor.ts';

/**
 * The opset of the default domain of all graphs. The importer upgrades older models; the exporter patches the user's
 * own file.
 */
export const canonicalOpset = 21;

/** The symbol of the batch dimension in a graph's inputs and outputs. */
export const batchSymbol = 'N';

/** An ONNX attribute, tagged with its type (the file distinguishes int and float). */
export type Attribute =
  | { readonly type: 'int'; readonly value: number }
  | { readonly type: 'float'; readonly value: number }
  | { readonly type: 'string'; readonly value: string }
  | { readonly type: 'tensor'; readonly value: Tensor }
  | { readonly type: 'ints'; readonly value: readonly number[] }
  | { readonly type: 'floats'; readonly value: readonly number[] }
  | { readonly type: 'strings'; readonly value: readonly string[] };

export type Attributes = Readonly<Record<string, Attribute>>;

/** One operator application. Absent optional inputs and outputs are empty strings. */
export interface Node {
  readonly operator: string;
  /** '' is ONNX's default domain. */
  readonly domain: string;
  /** Unique in its graph. */
  readonly name: string;
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  readonly attributes: Attributes;
}

/** A dimension: a number, or the name of a symbol such as the batch ('N'). */
export type Dimension = number | string;

/** A graph's input or output. */
export interface ValueInfo {
  readonly name: string;
  readonly type: ElementType;
  readonly shape: readonly Dimension[];
}

/**
 * A graph: every value is a graph input, an initializer or the output of exactly one node; nodes are topologically
 * sorted.
 */
export interface Graph {
  readonly name: string;
  readonly inputs: readonly ValueInfo[];
  readonly outputs: readonly ValueInfo[];
  /** Constants and parameters by name. */
  readonly initializers: ReadonlyMap<string, Tensor>;
  /** The initializers that are trained (a subset of their names, in file order). Never constant-folded. */
  readonly parameters: readonly string[];
  /**
   * Initializers that a forward pass replaces: running mean and variance of batch normalization. Never constant-folded.
   * The new values are outputs 1 and 2 of the BatchNormalization in training mode that reads the old ones as its inputs
   * 3 and 4.
   */
  readonly buffers: readonly string[];
  readonly nodes: readonly Node[];
  /**
   * Set if the model was exported for one batch size and could not be freed from it (rebatch.ts): all dimensions are
   * numbers, and only this batch size can be instantiated.
   */
  readonly fixedBatch?: number;
  /** To an engine: memory that runs need may stay between them, because it runs again and again. Default false. */
  readonly keepsMemory?: boolean;
  /** How batch normalizations average a batch's variance in. Default: 'population', as ONNX says. */
  readonly runningVariance?: RunningVariance;
  /** States that one step of a sequence hands to the next. Absent: none; its outputs depend on its inputs alone. */
  readonly states?: readonly CarriedState[];
}

/** A state of a recurrent cell: the graph's output that is its input in the next step, zeros in the first. */
export interface CarriedState {
  readonly input: string;
  readonly output: string;
}

/**
 * Which variance of a batch's m elements a running variance takes in: the mean of the squared deviations
 * ('population'), or m / (m − 1) times that ('unbiased', as in PyTorch). Normalization itself always uses the former.
 */
export type RunningVariance = (typeof runningVariances)[number];

export const runningVariances = ['unbiased', 'population'] as const;

export const int = (value: number): Attribute => ({ type: 'int', value });
/** Rounded to float32, the precision in files and engines. */
export const float = (value: number): Attribute => ({ type: 'float', value: Math.fround(value) });
export const string = (value: string): Attribute => ({ type: 'string', value });
export const ints = (value: readonly number[]): Attribute => ({ type: 'ints', value });
/** Rounded to float32. */
export const floats = (value: readonly number[]): Attribute => ({ type: 'floats', value: value.map(Math.fround) });
export const tensorAttribute = (value: Tensor): Attribute => ({ type: 'tensor', value });

/** The attribute's integer, or `fallback` if it is absent. */
export function intAttribute(node: Node, name: string, fallback: number): number {
  const attribute = node.attributes[name];
  return attribute?.type === 'int' ? attribute.value : fallback;
}

/** The attribute's float, or `fallback` if it is absent. */
export function floatAttribute(node: Node, name: string, fallback: number): number {
  const attribute = node.attributes[name];
  return attribute?.type === 'float' ? attribute.value : fallback;
}

/** The attribute's string, or `fallback` if it is absent. */
export function stringAttribute(node: Node, name: string, fallback: string): string {
  const attribute = node.attributes[name];
  return attribute?.type === 'string' ? attribute.value : fallback;
}

/** The attribute's integers, or undefined if it is absent. */
export function intsAttribute(node: Node, name: string): readonly number[] | undefined {
  const attribute = node.attributes[name];
  return attribute?.type === 'ints' ? attribute.value : undefined;
}
