// Reads an ONNX file (opset 7 to the newest, from any exporter) to a Graph at the canonical opset.

import { assert, defined } from '../../assert.ts';
import { InputError } from '../../errors.ts';
import { hasOpenBatch } from '../batch-axis.ts';
import { checkGraph, sortTopologically } from '../check.ts';
import { batchSymbol, type Dimension, type Graph, type Node, type ValueInfo } from '../graph.ts';
import { freshName, neededNodes, usedValues } from '../liveness.ts';
import { rebatch } from '../rebatch.ts';
import { bindDimensions } from '../static.ts';
import { isUnread, type Tensor } from '../tensor.ts';
import { foldBranches } from './branches.ts';
import { type DecodedModel, decodeModel, opsetOf, parseModel, type TensorPlace } from './decode.ts';
import { patchModel } from './encode.ts';
import { type ExternalLoader, isExternal, loadExternalTensors } from './external.ts';
import { inlineFunctions } from './functions.ts';
import type { GraphProto, ModelProto } from './generated/onnx_pb.ts';
import { type InputShape, withInputShapes } from './input-shapes.ts';
import { type Metadata, producerName, readMetadata } from './metadata.ts';
import { findWeights, type WeightChoice } from './parameters.ts';
import { inFloat32, withoutBfloat16 } from './precision.ts';
import { repaired } from './repairs.ts';
import { plainSequences } from './sequences.ts';
import { sharedWeightsNote } from './shared-weights.ts';
import { newestOpset, oldestOpset, upgradeNode } from './upgrade.ts';

/** Options of {@link importModel}. */
export interface ImportOptions {
  /** Sizes of symbolic dimensions other than the batch, by their name in the file. */
  readonly dimensions?: Readonly<Record<string, number>>;
  /** Sizes of inputs that the file leaves open. */
  readonly inputShapes?: readonly InputShape[];
  /** Reads weights that are kept outside the model file. Without it, such files are refused. */
  readonly loadExternal?: ExternalLoader;
  /**
   * Large weights outside the file stay there and are read at each look: for models that only answer. Such a model is
   * not repaired for training (repairs.ts), and exportModel cannot write it. Default false.
   */
  readonly leavesLarge?: boolean;
}

/** A model from a file. Passes may change the graph; the other fields let `exportModel` write the user's own file. */
export interface ImportedModel {
  readonly graph: Graph;
  /**
   * The file's own message: its weights' bytes are shared with the graph's tensors, external ones loaded, functions
   * inlined (functions.ts), and vectors that exporters had merged separated again (untie.ts).
   */
  readonly proto: ModelProto;
  /** The places of parameters and buffers in the file. */
  readonly places: ReadonlyMap<string, TensorPlace>;
  /** Notes for the user, one sentence each: changed precision, batch size freed or not. */
  readonly notes: readonly string[];
  /** Every float tensor that a gradient reaches, with the reason why it is a parameter of the graph or not. */
  readonly choices: readonly WeightChoice[];
}

/**
 * Reads an ONNX model. The batch becomes 'N': the symbol of the first input's first dimension, or, if all dimensions
 * are numbers, that dimension (rebatch.ts). Float tensors become parameters and buffers by their position
 * (parameters.ts). Throws InputError with one sentence for anything that is no such model; operators are checked later,
 * by `instantiate`.
 */
export function importModel(bytes: Uint8Array, options: ImportOptions = {}): ImportedModel {
  const parsed = sized(parseModel(bytes), options.inputShapes ?? []);
  const opset = opsetOf(parsed);
  if (!(opset >= oldestOpset && opset <= newestOpset)) {
    throw new InputError(
      `The model uses version ${opset} of the ONNX operators, and Asteroid reads ${oldestOpset} to ` +
        `${newestOpset}; export it with another opset_version.`,
    );
  }
  const prepared = prepare(parsed, options);
  const proto = patchModel(parsed, { graph: prepared.graph, functions: [] });
  const read = decodeModel(proto, options.loadExternal);
  const decoded = inFloat32(read);
  const metadata = readMetadata(proto);
  const notes: string[] = decoded.hadHalf ? ['The model is in half precision; it is trained in float32.'] : [];
  if (decoded !== read) notes.push('The model is in float64; it is trained in float32.');
  notes.push(...prepared.notes);
  const upgraded = upgrade(decoded);
  const outputs = decoded.outputs.map(({ name }) => name);
  const given = [...decoded.inputs.map(({ name }) => name), ...upgraded.initializers.keys()];
  const nodes = neededNodes(sortTopologically(upgraded.nodes, given), outputs);
  const weights = findWeights({
    nodes,
    outputs,
    initializers: upgraded.initializers,
    places: decoded.places,
    origins: decoded.origins,
    inputs: decoded.inputs.map(({ name }) => name),
  });
  const isOurs = parsed.producerName === producerName;
  const choices = isOurs ? weights.choices.map((choice) => ownChoice(choice, metadata)) : weights.choices;
  const parameters = choices.filter(({ isTrained }) => isTrained).map(({ name }) => name);
  const shared = isOurs ? undefined : sharedWeightsNote(decoded.nodes, parameters, decoded.initializers);
  if (shared !== undefined) notes.push(shared);
  const used = usedValues(nodes, outputs);
  const runningVariance = metadata.runningVariance ?? (parsed.producerName === 'pytorch' ? 'unbiased' : undefined);
  const graph: Graph = {
    name: decoded.name === '' ? 'model' : decoded.name,
    inputs: decoded.inputs,
    outputs: decoded.outputs,
    initializers: new Map([...upgraded.initializers].filter(([name]) => used.has(name))),
    parameters,
    buffers: weights.buffers,
    nodes,
    ...(metadata.fixedBatch === undefined ? {} : { fixedBatch: metadata.fixedBatch }),
    ...(runningVariance === undefined ? {} : { runningVariance }),
    ...(metadata.states === undefined ? {} : { states: metadata.states }),
  };
  checkGraph(graph);
  const opened = openBatch(bind(nameBatch(graph), options.dimensions ?? {}), notes);
  shareWeights(proto, decoded);
  return { graph: opened, proto, places: decoded.places, notes, choices };
}

/** In files of ours, all is trained that their metadata do not say is not. */
function ownChoice(choice: WeightChoice, { constants, numbers }: Metadata): WeightChoice {
  const isTrained = choice.shape.length === 0 ? numbers.has(choice.name) : !constants.has(choice.name);
  return { ...choice, isTrained, why: 'the file says so', isSure: true };
}

function sized(model: ModelProto, shapes: readonly InputShape[]): ModelProto {
  const graph = defined(model.graph, 'the graph of a parsed model');
  return shapes.length === 0 ? model : patchModel(model, { graph: withInputShapes(graph, shapes) });
}

/** The file's graph with external data loaded, functions and branches expanded, and each weight once. */
function prepare(
  model: ModelProto,
  { loadExternal, leavesLarge = false, dimensions = {} }: ImportOptions,
): { graph: GraphProto; notes: readonly string[] } {
  const plain = inlineFunctions(model, defined(model.graph, 'the graph of a parsed model'));
  const loaded = loadExternalTensors(plain, loadExternal, { leavesLarge });
  const widened = withoutBfloat16(loaded);
  const decode = (proto: ModelProto): DecodedModel => decodeModel(proto, loadExternal);
  const whole = foldBranches(model, widened, { decode, upgrade, dimensions });
  // in files of ours, weights are tied on purpose
  if (model.producerName === producerName || whole.initializer.some(isExternal)) return { graph: whole, notes: [] };
  const notes: string[] = [];
  if (widened !== loaded)
    notes.push("The model is in bfloat16, which ONNX Runtime's CPU cannot run; it is trained and written in float32.");
  const { graph, notes: repairs } = repaired(whole);
  return { graph, notes: [...notes, ...repairs] };
}

function upgrade({ opset, nodes, initializers, names }: DecodedModel): {
  nodes: readonly Node[];
  initializers: ReadonlyMap<string, Tensor>;
} {
  const all = new Map(initializers);
  const fresh = (stem: string): string => freshName(stem, names);
  const constant = (value: Tensor, stem: string): string => {
    const name = fresh(stem);
    all.set(name, value);
    return name;
  };
  const upgraded = nodes.flatMap((node) => upgradeNode(node, { opset, constant, fresh }));
  return { nodes: plainSequences(upgraded, { initializers: all, names }), initializers: all };
}

/**
 * Renames the batch's symbol to 'N'. It is the first symbol at the first dimension of an input, in the inputs' order,
 * or else the first symbol at all; for inputs that do not have it but begin with another symbol (each input may have
 * its own), that one is the batch as well.
 */
function nameBatch(graph: Graph): Graph {
  const isSymbol = (dimension: Dimension | undefined): dimension is string => typeof dimension === 'string';
  const symbol =
    graph.inputs.map(({ shape }) => shape[0]).find(isSymbol) ??
    graph.inputs.flatMap(({ shape }) => shape).find(isSymbol);
  if (symbol === undefined) return graph;
  const batches = new Set([symbol]);
  for (const { shape } of graph.inputs) if (!shape.includes(symbol) && isSymbol(shape[0])) batches.add(shape[0]);
  const symbols = new Set([...graph.inputs, ...graph.outputs].flatMap(({ shape }) => shape.filter(isSymbol)));
  const otherN = batches.has(batchSymbol) ? batchSymbol : freshName(batchSymbol, symbols);
  const rename = (value: ValueInfo): ValueInfo => ({
    ...value,
    shape: value.shape.map((dimension) =>
      isSymbol(dimension) && batches.has(dimension) ? batchSymbol : dimension === batchSymbol ? otherN : dimension,
    ),
  });
  return { ...graph, inputs: graph.inputs.map(rename), outputs: graph.outputs.map(rename) };
}

/** Binds symbols to sizes. Throws InputError for a name that the model does not have. */
function bind(graph: Graph, dimensions: Readonly<Record<string, number>>): Graph {
  const symbols = new Set(
    graph.inputs.flatMap(({ shape }) =>
      shape.filter((dimension) => typeof dimension === 'string' && dimension !== batchSymbol),
    ),
  );
  for (const [name, size] of Object.entries(dimensions)) {
    if (!symbols.has(name)) {
      const known =
        symbols.size === 0
          ? 'there is none besides the batch'
          : `there are ${[...symbols].map((symbol) => `"${symbol}"`).join(', ')}`;
      throw new InputError(`The model has no symbolic dimension "${name}"; ${known}.`);
    }
    if (!Number.isSafeInteger(size) || size < 1)
      throw new InputError(`Dimension "${name}" must be a positive integer, not ${size}.`);
  }
  return bindDimensions(graph, dimensions);
}

function openBatch(graph: Graph, notes: string[]): Graph {
  if (graph.fixedBatch !== undefined || graph.inputs.length === 0 || hasOpenBatch(graph)) return graph;
  const size = graph.inputs[0]?.shape[0];
  if (
    graph.inputs.some(({ shape }) => shape.some((dimension) => typeof dimension === 'string')) ||
    typeof size !== 'number'
  )
    return graph;
  const opened = rebatch(graph);
  notes.push(
    opened.fixedBatch === undefined
      ? `The model was exported for batches of ${size}; it is used with any batch size.`
      : `The model was exported for batches of ${size} and works with no other size; ` +
          'export it with a dynamic batch dimension for more freedom.',
  );
  return opened;
}

/** Releases the file's bytes: the message refers to the decoded tensors' bytes instead of its own. */
function shareWeights(proto: ModelProto, { initializers, places }: DecodedModel): void {
  const { graph } = proto;
  assert(graph !== undefined, 'a parsed model has a graph');
  for (const [name, place] of places) {
    const holder =
      place.kind === 'initializer'
        ? graph.initializer[place.index]
        : graph.node[place.nodeIndex]?.attribute.find(({ t }) => t !== undefined)?.t;
    const value = initializers.get(name);
    if (
      holder === undefined ||
      value === undefined ||
      isUnread(value) ||
      holder.rawData.length !== value.data.byteLength
    )
      continue;
    holder.rawData = new Uint8Array(value.data.buffer as ArrayBuffer, value.data.byteOffset, value.data.byteLength);
  }
}
