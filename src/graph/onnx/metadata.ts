// The parts of a Graph that ONNX cannot express, kept in the file's metadata by exportGraph and read back by
// importModel.

import { create } from '@bufbuild/protobuf';

import { type CarriedState, type Graph, runningVariances } from '../graph.ts';
import { isFloat } from '../tensor.ts';
import { type ModelProto, type StringStringEntryProto, StringStringEntryProtoSchema } from './generated/onnx_pb.ts';

/** Float tensors that are not trained, numbers that are, and what else Graph has beside nodes and tensors. */
export interface Metadata extends Pick<Graph, 'fixedBatch' | 'runningVariance' | 'states'> {
  readonly constants: ReadonlySet<string>;
  /** Parameters without dimensions. */
  readonly numbers: ReadonlySet<string>;
}

/** The producer name in files of ours. */
export const producerName = 'asteroid';

const constantsKey = 'asteroid.constants';
const numbersKey = 'asteroid.numbers';
const fixedBatchKey = 'asteroid.fixedBatch';
const runningVarianceKey = 'asteroid.runningVariance';
const statesKey = 'asteroid.states';

/** The entries for a graph; none if importing would find the same without them. */
export function writeMetadata(graph: Graph): StringStringEntryProto[] {
  const changing = new Set([...graph.parameters, ...graph.buffers]);
  const constants = [...graph.initializers]
    .filter(([name, { type, shape }]) => isFloat(type) && shape.length > 0 && !changing.has(name))
    .map(([name]) => name);
  const numbers = graph.parameters.filter((name) => graph.initializers.get(name)?.shape.length === 0);
  const entry = (key: string, value: unknown): StringStringEntryProto =>
    create(StringStringEntryProtoSchema, { key, value: JSON.stringify(value) });
  return [
    ...(constants.length > 0 ? [entry(constantsKey, constants)] : []),
    ...(numbers.length > 0 ? [entry(numbersKey, numbers)] : []),
    ...(graph.fixedBatch === undefined ? [] : [entry(fixedBatchKey, graph.fixedBatch)]),
    ...(graph.runningVariance === undefined ? [] : [entry(runningVarianceKey, graph.runningVariance)]),
    ...(graph.states === undefined ? [] : [entry(statesKey, graph.states)]),
  ];
}

/** The entry that says which outputs of a file are states. */
export function statesEntry(states: readonly CarriedState[]): readonly [key: string, value: string] {
  return [statesKey, JSON.stringify(states)];
}

/** All entries of a file. */
export function metadataOf({ metadataProps }: Pick<ModelProto, 'metadataProps'>): ReadonlyMap<string, string> {
  return new Map(metadataProps.map(({ key, value }) => [key, value]));
}

/** Entries with others in place of those with their keys. */
export function withEntries(
  entries: readonly StringStringEntryProto[],
  others: ReadonlyMap<string, string> = new Map(),
): StringStringEntryProto[] {
  const added = [...others].map(([key, value]) => create(StringStringEntryProtoSchema, { key, value }));
  return [...entries.filter(({ key }) => !others.has(key)), ...added];
}

/** The entries of a file; an entry not in the form of {@link writeMetadata} counts as absent. */
export function readMetadata(model: ModelProto): Metadata {
  const read = (key: string): unknown => {
    const entry = model.metadataProps.find((candidate) => candidate.key === key);
    if (entry === undefined) return undefined;
    try {
      return JSON.parse(entry.value) as unknown;
    } catch {
      return undefined; // another program's entry of the same name
    }
  };
  const names = (value: unknown): ReadonlySet<string> =>
    new Set(Array.isArray(value) ? value.filter((name) => typeof name === 'string') : []);
  const fixedBatch = read(fixedBatchKey);
  const states = statesIn(read(statesKey));
  const runningVariance = runningVariances.find((known) => known === read(runningVarianceKey));
  return {
    constants: names(read(constantsKey)),
    numbers: names(read(numbersKey)),
    ...(Number.isSafeInteger(fixedBatch) && (fixedBatch as number) > 0 ? { fixedBatch: fixedBatch as number } : {}),
    ...(runningVariance === undefined ? {} : { runningVariance }),
    ...(states.length === 0 ? {} : { states }),
  };
}

function statesIn(value: unknown): readonly CarriedState[] {
  const isState = (each: Partial<Record<string, unknown>> | null): each is CarriedState & Record<string, unknown> =>
    typeof each?.['input'] === 'string' && typeof each['output'] === 'string';
  return Array.isArray(value) ? value.filter(isState).map(({ input, output }) => ({ input, output })) : [];
}
