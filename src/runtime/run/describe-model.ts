// What an ONNX file holds, and what of it would be trained, before anything runs: also for files that a run refuses.

import { InputError } from '../../errors.ts';
import { batchSymbol } from '../../graph/graph.ts';
import type { LayerSequence } from '../../graph/layers.ts';
import { normalDomain, opsetOf, parseModel } from '../../graph/onnx/decode.ts';
import type { GraphProto, ModelProto, ValueInfoProto } from '../../graph/onnx/generated/onnx_pb.ts';
import { type ImportedModel, type ImportOptions, importModel } from '../../graph/onnx/import.ts';
import { trainingMode, unmergedNormalizations } from '../../graph/onnx/modes.ts';
import { noWeightsReason } from '../../graph/onnx/no-weights.ts';
import type { WeightChoice } from '../../graph/onnx/parameters.ts';
import { dataTypeName } from '../../graph/onnx/tensors.ts';
import { elementCount } from '../../graph/tensor.ts';
import { trainedLayers } from './fine-tuning.ts';
import { checkBatchesFirst } from './subject.ts';
import { withOutput } from './trained-output.ts';

/** An input or output as the file declares it. */
export interface DescribedValue {
  readonly name: string;
  readonly type: string;
  /** Names for open sizes; '?' for those without a name. Null where the file declares no shape. */
  readonly shape: readonly (number | string)[] | null;
}

/** A float tensor of the file. */
export interface DescribedTensor {
  readonly name: string;
  readonly shape: readonly number[];
  readonly count: number;
  readonly trained: boolean;
  readonly why: string;
  /** False where it is a guess. */
  readonly sure: boolean;
}

/** What `asteroid inspect` shows; its document with --json. */
export interface ModelDescription {
  readonly producer: string;
  /** Version of ONNX's own operators, or null where the file does not say it. */
  readonly opset: number | null;
  readonly inputs: readonly DescribedValue[];
  readonly outputs: readonly DescribedValue[];
  /** By operator, with its domain if it is not ONNX's own: how many nodes, those of branches and functions included. */
  readonly operators: Readonly<Record<string, number>>;
  /** The batch size: any, the only one, or null where that is not known. */
  readonly batch: 'any' | number | null;
  /** By input: the axis of the batch, or null for an input without it. */
  readonly batchAxes: Readonly<Record<string, number | null>>;
  /** Sizes that the data, or --input-shape, must give. */
  readonly openSizes: readonly string[];
  readonly tensors: readonly DescribedTensor[];
  /** Running statistics. */
  readonly buffers: readonly string[];
  /** Layers between which the model can be cut, or null where they are not known. */
  readonly layerCount: number | null;
  readonly notes: readonly string[];
  /** Why a run would refuse the model, or null. */
  readonly refused: string | null;
}

/**
 * Describes the bytes of an ONNX file, of which a run would train `output` (default: the first). Throws InputError only
 * for bytes that are no ONNX model, and for an output that the model does not have.
 */
export function describeModel(bytes: Uint8Array, options: ImportOptions = {}, output?: string): ModelDescription {
  const proto = parseModel(bytes);
  const declared = declaredParts(proto);
  const imported = attempt(() => importModel(bytes, options));
  if (typeof imported === 'string')
    return {
      ...declared,
      batch: null,
      batchAxes: {},
      openSizes: [],
      tensors: [],
      buffers: [],
      layerCount: null,
      notes: [],
      refused: imported,
    };
  return { ...declared, ...importedParts({ ...imported, graph: withOutput(imported.graph, output) }) };
}

type Declared = Pick<ModelDescription, 'producer' | 'opset' | 'inputs' | 'outputs' | 'operators'>;

function declaredParts(proto: ModelProto): Declared {
  const { graph, functions, producerName, producerVersion } = proto;
  const opset = attempt(() => opsetOf(proto));
  const weights = new Set(graph?.initializer.map(({ name }) => name));
  const counts = new Map<string, number>();
  if (graph !== undefined) countOperators(graph, counts);
  for (const { node } of functions) countOperators({ node }, counts);
  return {
    producer: [producerName, producerVersion].filter((part) => part !== '').join(' ') || 'unknown',
    opset: typeof opset === 'string' ? null : opset,
    inputs: (graph?.input ?? []).filter(({ name }) => !weights.has(name)).map(describedValue),
    outputs: (graph?.output ?? []).map(describedValue),
    operators: Object.fromEntries([...counts].sort(([a, one], [b, other]) => other - one || (a < b ? -1 : 1))),
  };
}

function countOperators({ node }: Pick<GraphProto, 'node'>, counts: Map<string, number>): void {
  for (const { opType, domain, attribute } of node) {
    const own = normalDomain(domain);
    const name = own === '' ? opType : `${own}:${opType}`;
    counts.set(name, (counts.get(name) ?? 0) + 1);
    for (const { g, graphs } of attribute)
      for (const inner of g === undefined ? graphs : [g, ...graphs]) countOperators(inner, counts);
  }
}

function describedValue({ name, type }: ValueInfoProto): DescribedValue {
  if (type?.value.case !== 'tensorType') return { name, type: type?.value.case ?? 'unknown', shape: null };
  const { elemType, shape } = type.value.value;
  const dimensions = shape?.dim.map(({ value }): number | string => {
    if (value.case === 'dimValue') return value.value > 0n ? Number(value.value) : '?';
    return value.value === undefined || value.value === '' ? '?' : value.value;
  });
  return { name, type: dataTypeName(elemType), shape: dimensions ?? null };
}

function importedParts(imported: ImportedModel): Omit<ModelDescription, keyof Declared> {
  const { graph, choices } = imported;
  const symbols = new Set(graph.inputs.flatMap(({ shape }) => shape.filter((size) => typeof size === 'string')));
  symbols.delete(batchSymbol);
  const layered = attempt(() => {
    if (graph.parameters.length === 0) throw new InputError(`The file ${noWeightsReason(imported)}`);
    if (symbols.size > 0) return undefined;
    const found = trainedLayers(trainingMode(graph), { loss: 'cross-entropy', freeze: [], freezeAllBut: [] });
    checkBatchesFirst(found.sequence);
    return found;
  });
  const unmerged = unmergedNormalizations(graph);
  const note =
    `${unmerged} batch normalizations use the statistics of each batch in training, beside others that the exporter ` +
    'merged into convolutions; --batch-norm inference keeps the stored ones.';
  return {
    batch: graph.fixedBatch ?? (graph.inputs.some(({ shape }) => shape.includes(batchSymbol)) ? 'any' : null),
    batchAxes: Object.fromEntries(
      graph.inputs.map(({ name, shape }) => {
        const axis = graph.fixedBatch === undefined ? shape.indexOf(batchSymbol) : shape.indexOf(graph.fixedBatch);
        return [name, axis < 0 ? null : axis];
      }),
    ),
    openSizes: [...symbols] as string[],
    tensors: choices.map((choice) => described(choice, typeof layered === 'object' ? layered.sequence : undefined)),
    buffers: graph.buffers,
    layerCount: typeof layered === 'object' ? layered.sequence.layers.length : null,
    notes: [
      ...imported.notes,
      ...(unmerged === 0 ? [] : [note]),
      ...(typeof layered === 'object' ? layered.notes : []),
    ],
    refused: typeof layered === 'string' ? layered : null,
  };
}

/** `sequence`: the layers that a run would train, if it would; what none of them reads stays as it is. */
function described(
  { name, shape, isTrained, why, isSure }: WeightChoice,
  sequence: LayerSequence | undefined,
): DescribedTensor {
  const count = elementCount(shape);
  const isRead = sequence === undefined || sequence.graph.parameters.includes(name);
  return isTrained && !isRead
    ? { name, shape, count, trained: false, why: 'only outputs that are not trained read it', sure: true }
    : { name, shape, count, trained: isTrained, why, sure: isSure };
}

/** What `work` returns, or the message of the InputError that it throws. */
function attempt<T extends object | number | undefined>(work: () => T): T | string {
  try {
    return work();
  } catch (error) {
    if (error instanceof InputError) return error.message;
    throw error;
  }
}
