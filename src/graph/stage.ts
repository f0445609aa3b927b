// Extracts a run of layers from a model as a graph with static shapes: the part that one device computes.

import { assert, defined } from '../assert.ts';
import type { CarriedState, Graph } from './graph.ts';
import { type CutTensor, cutBefore, type LayerSequence } from './layers.ts';
import { neededNodes, usedValues } from './liveness.ts';
import { instantiate, type StaticGraph } from './static.ts';
import type { ElementType } from './tensor.ts';

/** Layers first … end−1 of a model for one batch size. */
export interface StageGraph extends StaticGraph {
  readonly first: number;
  readonly end: number;
  readonly batchSize: number;
  /** The tensors of the cut before the stage: the graph's inputs, in this order. */
  readonly inputs: readonly CutTensor[];
  /**
   * The tensors of the cut after it: the graph's outputs, in this order. A tensor that only passes through is an input
   * of the same name.
   */
  readonly outputs: readonly CutTensor[];
  /** States that it carries from step to step: further inputs and outputs of the graph, behind those of the cuts. */
  readonly states: readonly CarriedState[];
}

/**
 * The static graph of layers first … end−1 for `batchSize` samples. Its parameters and buffers are among its
 * initializers (the same tensors, not copies), as are the constants that it needs.
 */
export function extractStage(sequence: LayerSequence, first: number, end: number, batchSize: number): StageGraph {
  return stageExtractor(sequence, batchSize)(first, end);
}

/** {@link extractStage} for several stages of one batch size; instantiates the model only once. */
export function stageExtractor(sequence: LayerSequence, batchSize: number): (first: number, end: number) => StageGraph {
  const cutNames = new Set(sequence.layers.flatMap((layer) => layer.outputs.map(({ name }) => name)));
  const whole = instantiate(sequence.graph, batchSize, { keep: cutNames });
  return (first, end) => {
    assert(0 <= first && first < end && end <= sequence.layers.length, `a stage of layers ${first} to ${end}`);
    const inputs = cutBefore(sequence, first);
    const outputs = cutBefore(sequence, end);
    const states = sequence.layers.slice(first, end).flatMap((layer) => layer.states ?? []);
    const cut = cutOut(whole, sequence, { range: [first, end], inputs, outputs, states });
    return { ...cut, first, end, batchSize, inputs, outputs, states };
  };
}

interface StageBorders extends Pick<StageGraph, 'inputs' | 'outputs' | 'states'> {
  readonly range: readonly [first: number, end: number];
}

function cutOut(
  whole: StaticGraph,
  sequence: LayerSequence,
  { range: [first, end], inputs, outputs, states }: StageBorders,
): StaticGraph {
  const valueInfo = (name: string): { name: string; type: ElementType; shape: readonly number[] } => ({
    name,
    ...defined(whole.types.get(name), `the type of "${name}"`),
  });
  const inputNames = [...inputs.map(({ name }) => name), ...states.map(({ input }) => input)];
  const outputNames = [...new Set([...outputs.map(({ name }) => name), ...states.map(({ output }) => output)])];
  const nodes = neededNodes(whole.graph.nodes, outputNames, new Set(inputNames));
  const used = usedValues(nodes, outputNames);
  const initializers = new Map([...whole.graph.initializers].filter(([name]) => used.has(name)));
  const graph: Graph = {
    ...whole.graph,
    name: `${whole.graph.name}[${first}:${end}]`,
    inputs: inputNames.map(valueInfo),
    outputs: outputNames.map(valueInfo),
    ...(states.length === 0 ? {} : { states }),
    initializers,
    parameters: whole.graph.parameters.filter((name) => used.has(name)),
    buffers: whole.graph.buffers.filter((name) => used.has(name)),
    nodes,
  };
  checkBorders(graph, sequence, first, end);
  const names = new Set([
    ...graph.inputs.map(({ name }) => name),
    ...initializers.keys(),
    ...nodes.flatMap((node) => node.outputs),
  ]);
  return { graph, types: new Map([...whole.types].filter(([name]) => names.has(name))) };
}

/**
 * Asserts that a stage holds exactly the parameters of its layers: otherwise a weight would be trained twice or never.
 */
function checkBorders(graph: Graph, sequence: LayerSequence, first: number, end: number): void {
  const own = new Set(sequence.layers.slice(first, end).flatMap((layer) => [...layer.parameters, ...layer.buffers]));
  const foreign = [...graph.parameters, ...graph.buffers].filter((name) => !own.has(name));
  assert(foreign.length === 0, `stage ${graph.name} reads "${foreign[0]}" of another layer`);
  const known = new Set([
    ...graph.inputs.map(({ name }) => name),
    ...graph.initializers.keys(),
    ...graph.nodes.flatMap((node) => node.outputs),
  ]);
  const missing = [
    ...usedValues(
      graph.nodes,
      graph.outputs.map(({ name }) => name),
    ),
  ].filter((name) => !known.has(name));
  assert(missing.length === 0, `stage ${graph.name} misses "${missing[0]}"`);
}
