// Which tensors of a file are weights to train, which ONNX does not say: by what the exporter declares, by position, by
// names and by values, as far as gradients reach. What is only guessed is said so.

import { usefulFor } from '../gradient-paths.ts';
import type { Node } from '../graph.ts';
import { elementCount, isUnread, type Tensor } from '../tensor.ts';
import type { TensorPlace } from './decode.ts';
import { madeUpName } from './made-up-name.ts';
import { formulaOf, isMask, isRepeatedFilter, isUniform } from './number-tables.ts';
import type { Origins } from './origins.ts';
import { type Meeting, meetingsOf, recurrentStates, runningStatistics, weightReaders } from './weight-positions.ts';

/** The parts of a model that the search for weights uses. */
export interface WeightSearch {
  /** At the canonical opset, in topological order. */
  readonly nodes: readonly Node[];
  readonly outputs: readonly string[];
  readonly initializers: ReadonlyMap<string, Tensor>;
  /** The places of tensors in the file; tensors added by upgrading have none. */
  readonly places: ReadonlyMap<string, TensorPlace>;
  /** What the exporter declares. */
  readonly origins: Origins;
  /** The graph's inputs. */
  readonly inputs: readonly string[];
}

/** Whether a float tensor that a gradient reaches is trained. */
export interface WeightChoice {
  readonly name: string;
  readonly shape: readonly number[];
  readonly isTrained: boolean;
  /** The reason, in words that follow "it is trained: ". */
  readonly why: string;
  /** True if the file, or the operator that reads it, says so; false for a guess, of which a person should know. */
  readonly isSure: boolean;
}

/** Names in the source: parts of letters, digits and underscores, between dots. */
const sourceName = /^[A-Za-z_]\w*(\.\w+)*$/;
/** Names that exporters and people give to numbers of a formula. */
const numberName = /(^|[._])(c|const|constant|scalar|eps|epsilon|one|zero|two|half|min|max)[._\d]*$/i;

/**
 * The float tensors of a file: `buffers` are the running statistics of batch normalization, `choices` says of every
 * other one with a gradient path to an output whether it is trained. The rule: trained is what the exporter declares a
 * parameter or computed ahead from one; without a declaration, what is in a weight's position, has a name of the
 * source (numbers without dimensions, too), or meets values that depend on weights. Fixed are tensors that the
 * exporter declares to be something else, masks, tables that follow a formula (number-tables.ts), vectors that
 * normalize the model's inputs, zeros that a recurrent layer begins with, single numbers with made-up names, scales of
 * ones and biases of zeros with made-up names that only normalizations read, and tensors of Constant nodes outside a
 * weight's position, unless the file has no others. In file order.
 */
export function findWeights(search: WeightSearch): {
  readonly buffers: readonly string[];
  readonly choices: readonly WeightChoice[];
} {
  const { nodes, outputs, initializers, places } = search;
  const buffers = runningStatistics(nodes);
  const reached = usefulFor(outputs, nodes);
  const isTensor = ({ type, shape }: Tensor): boolean =>
    (type === 'float32' || type === 'float64') && elementCount(shape) > 0;
  const inFile = [...initializers].filter(([name, value]) => places.has(name) && isTensor(value));
  const evidence = evidenceOf(search, inFile, reached);
  return {
    buffers: inFile.filter(([name]) => buffers.has(name)).map(([name]) => name),
    choices: inFile
      .filter(([name]) => !buffers.has(name) && reached.has(name))
      .map(([name, value]) => ({ name, shape: value.shape, ...judged(name, value, evidence) })),
  };
}

/** What is known of a file's tensors. */
interface Evidence {
  readonly origins: Origins;
  readonly places: ReadonlyMap<string, TensorPlace>;
  /** By tensor in a weight's position: the operators that read it there. */
  readonly weights: ReadonlyMap<string, ReadonlySet<string>>;
  readonly meetings: ReadonlyMap<string, Meeting>;
  /** Tensors that recurrent layers begin with. */
  readonly states: ReadonlySet<string>;
  /** Some float initializer is reached by a gradient. */
  readonly keepsInitializers: boolean;
  /** Some weight has a name from the source, or the exporter declares parameters. */
  readonly hasNames: boolean;
}

function evidenceOf(
  { nodes, inputs, places, origins }: WeightSearch,
  inFile: readonly (readonly [string, Tensor])[],
  reached: ReadonlySet<string>,
): Evidence {
  const weights = weightReaders(nodes);
  const isInitializer = (name: string): boolean => places.get(name)?.kind === 'initializer';
  const isNamedWeight = ([name, value]: readonly [string, Tensor]): boolean =>
    isInitializer(name) && !madeUpName.test(name) && isWeightPosition(value, weights.get(name));
  return {
    origins,
    places,
    weights,
    states: recurrentStates(nodes),
    meetings: meetingsOf(nodes, inputs, { tensors: inFile.map(([name]) => name), weights }),
    keepsInitializers: inFile.some(([name, { shape }]) => shape.length > 0 && isInitializer(name) && reached.has(name)),
    hasNames: hasDeclarations(origins) || inFile.some(isNamedWeight),
  };
}

type Judgement = Omit<WeightChoice, 'name' | 'shape'>;

const trained = (why: string, isSure = true): Judgement => ({ isTrained: true, why, isSure });
const fixed = (why: string, isSure = true): Judgement => ({ isTrained: false, why, isSure });

function judged(name: string, value: Tensor, evidence: Evidence): Judgement {
  // Before anything looks at its elements.
  if (isUnread(value)) return trained('large, and kept outside the file');
  const { origins, places, weights } = evidence;
  const declared = origins.declared.get(name);
  if (declared !== undefined)
    return declared ? trained('a parameter, the exporter says') : fixed('no parameter, the exporter says');
  const inPosition = isWeightPosition(value, weights.get(name));
  const origin = origins.computed.get(name);
  if (origin !== undefined && origin.parameters.length > 0) {
    const from = origin.parameters.slice(0, 3).join(', ');
    if (origin.isRearranged) return trained(`rearranged from ${from}`);
    const isMerged = origin.others.some((source) => source.endsWith('running_var'));
    return trained(`computed from ${from} ahead, and trained as it is`, isMerged);
  }
  if (origin !== undefined && origin.others.length > 0)
    return fixed(`computed from ${origin.others.slice(0, 3).join(', ')}, no parameter`);
  if (isMask(value)) return fixed('a mask');
  if (inPosition) return judgedInPosition(name, value, evidence);
  if (evidence.states.has(name) && isZero(value))
    return fixed('a recurrent layer begins with zeros', !isFromSource(name, evidence));
  if (value.data.length === 1) return judgedNumber(name, value, evidence);
  const formula = formulaOf(value);
  if (isFromSource(name, evidence)) {
    if (formula !== undefined) return fixed(formula, false);
    const normalizes = !isTable(value) && evidence.meetings.get(name)?.normalizesInputs === true;
    if (normalizes) return fixed('it is subtracted from the inputs or divides them', false);
    return trained("it has the source's name", !isTable(value));
  }
  if (places.get(name)?.kind === 'constant' && evidence.keepsInitializers)
    return fixed('a constant of the code', formula !== undefined || isUniform(value.data));
  return formula === undefined ? judgedMadeUp(name, value, evidence) : fixed(formula);
}

/**
 * True for an initializer with a name of its own in the source. Where the exporter declares such tensors, the others
 * are its own.
 */
function isFromSource(name: string, { places, origins }: Evidence): boolean {
  return places.get(name)?.kind === 'initializer' && !madeUpName.test(name) && !hasDeclarations(origins);
}

function hasDeclarations({ declared }: Origins): boolean {
  return [...declared.values()].includes(true);
}

function judgedInPosition(name: string, value: Tensor, evidence: Evidence): Judgement {
  const readers = evidence.weights.get(name) ?? new Set();
  const formula = formulaOf(value, { isWeight: true });
  if (formula !== undefined) return fixed(formula, false);
  if (isRepeatedFilter(value, readers)) return fixed('every channel has the same filter', false);
  if (!isFromSource(name, evidence) && isNeutral(value, readers)) return fixed('a normalization without a scale');
  return trained('a weight by its position');
}

/** A single element outside a weight's position: a number of a formula, unless it has a name in the source. */
function judgedNumber(name: string, { shape }: Tensor, evidence: Evidence): Judgement {
  if (!isFromSource(name, evidence)) return fixed('a number of a formula');
  if (shape.length > 0) return trained("it has the source's name");
  if (!evidence.hasNames || !sourceName.test(name) || numberName.test(name)) return fixed('a number of a formula');
  return trained('a number that has a name', false);
}

/** A tensor that the exporter made and named, with values that follow no formula. */
function judgedMadeUp(name: string, value: Tensor, { origins, meetings, hasNames }: Evidence): Judgement {
  if (origins.isComplete) return fixed('computed from no parameter');
  if (!hasNames) return trained('the file has no other names', !isTable(value));
  const meeting = meetings.get(name);
  if (meeting === undefined) return fixed('it meets neither inputs nor what weights compute', false);
  if (meeting.weights) return trained('it meets what weights compute', false);
  if (isTable(value) || meeting.inputs.has('Concat')) return trained('it meets the inputs', false);
  return fixed('it shifts or scales the inputs');
}

function isZero({ data }: Tensor): boolean {
  return Number(data[0]) === 0 && isUniform(data);
}

/** True for more than one axis of more than one element. */
function isTable({ shape }: Tensor): boolean {
  return shape.filter((size) => size !== 1).length > 1;
}

/** A one-dimensional table that is gathered from is a list of numbers, not an embedding. */
function isWeightPosition(value: Tensor, readers: ReadonlySet<string> | undefined): boolean {
  return readers !== undefined && [...readers].some((reader) => reader !== 'Gather' || value.shape.length >= 2);
}

/** Ones or zeros that only normalizations read. */
function isNeutral({ data }: Tensor, readers: ReadonlySet<string> | undefined): boolean {
  const first = Number(data[0]);
  return (
    (first === 0 || first === 1) &&
    isUniform(data) &&
    readers !== undefined &&
    [...readers].every((reader) => reader.endsWith('Normalization'))
  );
}
