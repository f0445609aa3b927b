// A model as a sequence of layers: the unit of measurement, planning and transfer. The model can be cut between any two
// layers; stage.ts extracts a run of them. Layers are views on the graph; nothing is copied.

import { defined } from '../assert.ts';
import { InputError } from '../errors.ts';
import { batchAxis, hasOpenBatch, mixesBatch, type Probe, probe } from './batch-axis.ts';
import { type Cuts, findCuts } from './cuts.ts';
import { nodeFlops } from './flops.ts';
import { gradientValues } from './gradient-paths.ts';
import { batchSymbol, type CarriedState, type Graph, type Node, type ValueInfo } from './graph.ts';
import { LayerNamer } from './layer-names.ts';
import { adapterValues } from './lora.ts';
import { rebatch } from './rebatch.ts';
import { layerSignature, type SignatureContext } from './signature.ts';
import { byteLength, type ElementType, elementBytes } from './tensor.ts';

/** A tensor alive across a cut between two layers. */
export interface CutTensor {
  readonly name: string;
  readonly type: ElementType;
  /** The shape with 'N' for the batch dimension. */
  readonly shape: readonly (number | 'N')[];
  /** The axis of 'N'. */
  readonly batchAxis: number;
  /**
   * True if a gradient travels back: a float tensor on a gradient path from a trained parameter to the first output.
   */
  readonly differentiable: boolean;
}

/** One layer: a run of nodes between two legal cuts. */
export interface Layer {
  /** Unique in its sequence; derived from the parameters' names if those are readable. */
  readonly name: string;
  /** Names of its nodes, in order. */
  readonly nodes: readonly string[];
  /** The parameters that its nodes read; no other layer reads them. */
  readonly parameters: readonly string[];
  /** The buffers that its nodes read; no other layer reads them. */
  readonly buffers: readonly string[];
  /** The states that it carries from one step to the next. Absent: none. */
  readonly states?: readonly CarriedState[];
  /** Every tensor alive across the cut after this layer (the graph's first output for the last one). */
  readonly outputs: readonly CutTensor[];
  /**
   * True when the layer's result for one sample depends on the other samples of its batch (batch normalization in
   * training mode).
   */
  readonly batchDependent: boolean;
  /** Equal for layers that compute the same on the same shapes, so that they are profiled once. */
  readonly signature: string;
  /** Floating point operations of a forward pass for one sample; a multiply-add counts as two. */
  readonly flops: number;
}

/** A model as the planner sees it: layers in order, cut anywhere between them. */
export interface LayerSequence {
  /**
   * The whole model with only its first output (and those of its states), and the parameters and buffers that these
   * depend on.
   */
  readonly graph: Graph;
  /** The graph's inputs but for its states, in their order. */
  readonly inputs: readonly CutTensor[];
  readonly layers: readonly Layer[];
  /** Set if the model runs only with this batch size (see Graph). */
  readonly fixedBatch?: number;
  /**
   * Of a model of texts: the same layers for samples of fewer tokens, by their number. Names and parameters are the
   * same; weights are not in these graphs. Absent: all samples have as many tokens.
   */
  readonly shorter?: ReadonlyMap<number, LayerSequence>;
}

/**
 * Operators that begin a layer because they do most of the work. Others, and adapters, stay with another layer: cuts
 * at these would be many, and gain nothing.
 */
const heavyOperators: ReadonlySet<string> = new Set([
  'Conv',
  'ConvTranspose',
  'Gemm',
  'MatMul',
  'AveragePool',
  'MaxPool',
  'GlobalAveragePool',
  'GlobalMaxPool',
]);

/** Options of {@link layers}. */
export interface LayersOptions {
  /**
   * Parameters that are not trained; unknown names are ignored. Cuts before which nothing is trained have no
   * differentiable tensor.
   */
  readonly frozen?: readonly string[];
  /** 'all': a model that answers gives all of its outputs. Default 'first'. */
  readonly outputs?: 'first' | 'all';
  /** All from the first trained layer on is one layer, which is batch-dependent: it stays whole, on one device. */
  readonly isTrainedTogether?: boolean;
}

/**
 * Splits a model into layers. A layer begins at each heavy node (convolution, matrix product, pool, embedding), at the
 * legal cut since the previous heavy node that the fewest bytes cross (the last one among equals); without a legal cut,
 * both nodes are in one layer. A graph without an open batch ('N') is first freed from its batch size, or keeps it
 * (`fixedBatch`). Throws InputError for graphs that cannot be instantiated, and for an input or first output without a
 * batch dimension.
 */
export function layers(graph: Graph, options: LayersOptions = {}): LayerSequence {
  const { frozen = [], outputs = 'first', isTrainedTogether = false } = options;
  const opened = graph.fixedBatch !== undefined || hasOpenBatch(graph) ? graph : rebatch(graph);
  const kept = outputs === 'all' ? opened.outputs : [...opened.outputs.slice(0, 1), ...stateOutputs(opened)];
  const first: Graph = { ...opened, outputs: kept };
  const look = probe(first);
  const { parameters, buffers } = look.static.graph;
  const model: Graph = { ...first, parameters, buffers };
  const cuts = findCuts(look);
  const trained = without(parameters, frozen);
  const gradients = gradientValues(look.static.graph, trained, (name) => typeOf(look, name));
  const carried = new Set(model.states?.map(({ input }) => input));
  const data = model.inputs.filter(({ name }) => !carried.has(name));
  const inputs = data.map(({ name }) => cutTensor(name, look, gradients, `Input "${name}"`));
  const wanted = model.outputs.slice(0, outputs === 'all' ? undefined : 1).map(({ name }) => name);
  for (const [index, output] of wanted.entries()) {
    if (look.static.graph.initializers.has(output))
      throw new InputError(
        `The ${index === 0 ? 'first' : 'other'} output of model "${model.name}", "${output}", is the same for all ` +
          `inputs; ${index === 0 ? 'export the model with its result as the first output' : 'leave it out'}.`,
      );
    cutTensor(output, look, gradients, `Output "${output}"`);
  }
  const ofAdapters = adapterValues(look.static.graph);
  const all = chooseStarts(cuts, look.static.graph, ofAdapters);
  const starts = isTrainedTogether ? upToTrained(all, cuts.nodes, trained) : all;
  const namer = new LayerNamer();
  const result = starts.map((start, index) =>
    makeLayer({ cuts, look, gradients, namer, ofAdapters }, start, starts[index + 1] ?? cuts.nodes.length),
  );
  return {
    graph: model,
    inputs,
    layers: result.map((layer, index) =>
      index < result.length - 1 ? layer : { ...inOrder(layer, wanted), ...(isTrainedTogether ? together : {}) },
    ),
    ...(model.fixedBatch === undefined ? {} : { fixedBatch: model.fixedBatch }),
  };
}

/** Whether both have the same layers, with the same parameters and the same cuts, whatever the sizes of tensors. */
export function haveSameLayers(a: LayerSequence, b: LayerSequence): boolean {
  const shape = ({ inputs, layers }: LayerSequence): unknown => [
    inputs.map(({ name }) => name),
    layers.map(({ name, parameters, buffers, outputs }) => [name, parameters, buffers, outputs.map(cutKey)]),
  ];
  return JSON.stringify(shape(a)) === JSON.stringify(shape(b));
}

function cutKey({ name, type, batchAxis, differentiable }: CutTensor): unknown {
  return [name, type, batchAxis, differentiable];
}

/** The last layer with the model's outputs in their order. */
function inOrder(layer: Layer, names: readonly string[]): Layer {
  const place = ({ name }: CutTensor): number => names.indexOf(name);
  return { ...layer, outputs: [...layer.outputs].sort((a, b) => place(a) - place(b)) };
}

/** Bytes of all tensors of a cut for `batchSize` samples. */
export function cutBytes(tensors: readonly CutTensor[], batchSize = 1): number {
  let bytes = 0;
  for (const { type, shape } of tensors) {
    bytes += shape.reduce(
      (product: number, dimension) => product * (dimension === 'N' ? batchSize : dimension),
      elementBytes(type),
    );
  }
  return bytes;
}

/** Bytes of a layer's parameters (without its buffers). */
export function parameterBytes(sequence: LayerSequence, layer: Layer): number {
  return initializerBytes(sequence.graph, layer.parameters);
}

/** Bytes of a layer's parameters that are in `frozen`. */
export function frozenBytes(sequence: LayerSequence, layer: Layer, frozen: ReadonlySet<string>): number {
  return initializerBytes(
    sequence.graph,
    layer.parameters.filter((name) => frozen.has(name)),
  );
}

/** Bytes of a layer's buffers. */
export function bufferBytes(sequence: LayerSequence, layer: Layer): number {
  return initializerBytes(sequence.graph, layer.buffers);
}

/** The tensors alive across the cut before layer `index` (the inputs for 0, the output for the number of layers). */
export function cutBefore(sequence: LayerSequence, index: number): readonly CutTensor[] {
  return index === 0 ? sequence.inputs : defined(sequence.layers[index - 1], `layer ${index - 1}`).outputs;
}

function initializerBytes(graph: Graph, names: readonly string[]): number {
  return names.reduce(
    (bytes, name) => bytes + byteLength(defined(graph.initializers.get(name), `initializer "${name}"`)),
    0,
  );
}

/**
 * The number of leading layers through which no gradient passes: nothing in them is trained, so they run forward only.
 * Less than the number of layers.
 */
export function forwardOnlyCount({ layers: all }: LayerSequence): number {
  const count = all.findIndex(({ outputs }) => outputs.some(({ differentiable }) => differentiable));
  return count === -1 ? all.length - 1 : count;
}

function without(names: readonly string[], some: readonly string[]): readonly string[] {
  const left = new Set(some);
  return names.filter((name) => !left.has(name));
}

/** The outputs of a graph's states that are not its first output. Throws InputError for a state that it has not. */
function stateOutputs({ name, states = [], inputs, outputs }: Graph): readonly ValueInfo[] {
  for (const { input, output } of states) {
    const [read, made] = [inputs.find((one) => one.name === input), outputs.find((one) => one.name === output)];
    if (read === undefined || made === undefined)
      throw new InputError(
        `Model "${name}" has no ${made === undefined ? `output "${output}"` : `input "${input}"`} for its state ` +
          `${output}=${input}: it has the inputs ${inputs.map((one) => one.name).join(', ')} and the outputs ` +
          `${outputs.map((one) => one.name).join(', ')}.`,
      );
    if (read.type !== 'float32' || made.type !== 'float32' || read.shape[0] !== batchSymbol)
      throw new InputError(
        `The state ${output}=${input} of model "${name}" is ${read.type}[${read.shape.join(', ')}]; it must be ` +
          'float32 with the batch first.',
      );
  }
  const made = new Set(states.map(({ output }) => output));
  return outputs.slice(1).filter((output) => made.has(output.name));
}

interface LayerContext {
  readonly cuts: Cuts;
  readonly look: Probe;
  readonly gradients: ReadonlySet<string>;
  readonly namer: LayerNamer;
  readonly ofAdapters: ReadonlySet<string>;
}

function typeOf(look: Probe, name: string): ElementType {
  return defined(look.static.types.get(name), `the type of "${name}"`).type;
}

function isHeavy(node: Node, graph: Graph, ofAdapters: ReadonlySet<string>): boolean {
  if (ofAdapters.has(node.inputs[1] ?? '')) return false;
  if (heavyOperators.has(node.operator)) return true;
  const table = node.operator === 'Gather' ? graph.initializers.get(node.inputs[0] ?? '') : undefined;
  return table !== undefined && table.shape.length >= 2 && graph.parameters.includes(node.inputs[0] as string);
}

/** The cuts at which layers begin: 0, and for each further heavy node the cheapest legal cut since the previous one. */
function chooseStarts(cuts: Cuts, graph: Graph, ofAdapters: ReadonlySet<string>): readonly number[] {
  const heavy = cuts.nodes.flatMap((node, index) => (isHeavy(node, graph, ofAdapters) ? [index] : []));
  const starts = [0];
  for (let index = 1; index < heavy.length; index++) {
    const end = heavy[index] as number;
    let best: number | undefined;
    for (let cut = (heavy[index - 1] as number) + 1; cut <= end; cut++) {
      if (cuts.legal[cut] && (best === undefined || (cuts.bytes[cut] as number) <= (cuts.bytes[best] as number)))
        best = cut;
    }
    if (best !== undefined) starts.push(best);
  }
  return starts;
}

/** The starts up to that of the layer with the first trained parameter. */
function upToTrained(starts: readonly number[], nodes: readonly Node[], trained: readonly string[]): readonly number[] {
  const names = new Set(trained);
  const first = nodes.findIndex(({ inputs }) => inputs.some((input) => names.has(input)));
  return starts.filter((start) => start <= Math.max(0, first));
}

const together = { batchDependent: true } as const;

function cutTensor(name: string, look: Probe, gradients: ReadonlySet<string>, what: string): CutTensor {
  const { type, shape } = defined(look.static.types.get(name), `the type of "${name}"`);
  const axis = batchAxis(name, look);
  if (axis === undefined) {
    throw new InputError(
      `${what} of model "${look.static.graph.name}" has shape [${shape.join(', ')}] without a batch dimension; ` +
        'every input and the first output need one.',
    );
  }
  return {
    name,
    type,
    shape: shape.map((dimension, index) => (index === axis ? 'N' : dimension)),
    batchAxis: axis,
    differentiable: gradients.has(name),
  };
}

function makeLayer({ cuts, look, gradients, namer, ofAdapters }: LayerContext, start: number, end: number): Layer {
  const { graph } = look.static;
  const nodes = cuts.nodes.slice(start, end);
  const read = new Set(nodes.flatMap((node) => node.inputs));
  const parameters = graph.parameters.filter((name) => read.has(name));
  const own = new Set(parameters);
  const heavy = nodes.find((node) => isHeavy(node, graph, ofAdapters)) ?? nodes[0];
  const outputs = cuts.alive(end).map((name) => cutTensor(name, look, gradients, `Value "${name}"`));
  const made = new Set(nodes.flatMap((node) => node.outputs));
  const states = graph.states?.filter(({ output }) => made.has(output)) ?? [];
  return {
    name: heavy === undefined ? 'empty' : namer.name(heavy, nodes, (name) => own.has(name)),
    nodes: nodes.map((node) => node.name),
    parameters,
    buffers: graph.buffers.filter((name) => read.has(name)),
    ...(states.length === 0 ? {} : { states }),
    outputs,
    batchDependent: nodes.some((node) => mixesBatch(node, look)),
    signature: layerSignature(signatureContext(nodes, outputs, look, gradients)),
    flops: flopsPerSample(nodes, look),
  };
}

function signatureContext(
  nodes: readonly Node[],
  outputs: readonly CutTensor[],
  look: Probe,
  gradients: ReadonlySet<string>,
): SignatureContext {
  const { graph, types } = look.static;
  const kinds = new Map<string, 'parameter' | 'buffer' | 'constant'>();
  for (const name of graph.initializers.keys()) kinds.set(name, 'constant');
  for (const name of graph.parameters) kinds.set(name, 'parameter');
  for (const name of graph.buffers) kinds.set(name, 'buffer');
  return {
    nodes,
    outputs: new Set(outputs.map(({ name }) => name)),
    type: (name) => defined(types.get(name), `the type of "${name}"`),
    initializerKind: (name) => kinds.get(name),
    constant: (name) => graph.initializers.get(name),
    hasGradient: (name) => gradients.has(name),
  };
}

/**
 * Floating point operations of one more sample; work on parameters alone counts nothing. For a fixed batch, the mean.
 */
function flopsPerSample(nodes: readonly Node[], { batchSize, static: { types }, other }: Probe): number {
  const total = (at: Probe['static']['types']): number =>
    nodes.reduce((sum, node) => {
      const outputs = node.outputs.map((name) => at.get(name) ?? { type: 'float32' as const, shape: [0] });
      return (
        sum +
        nodeFlops(
          node,
          node.inputs.map((name) => at.get(name)),
          outputs,
        )
      );
    }, 0);
  return other === undefined
    ? total(types) / batchSize
    : (total(other.types) - total(types)) / (other.batchSize - batchSize);
}
