// The forward pass in the form that differentiation needs: parameters and buffers become graph inputs, and a few nodes
// are rewritten to output also what their gradient rules need (a batch's mean), on inputs that lie around zero.

import { assert, defined } from '../assert.ts';
import { Emitter } from '../graph/emitter.ts';
import { gradientOutputs } from '../graph/gradient-paths.ts';
import { float, floatAttribute, type Graph, intAttribute, type Node, type ValueInfo } from '../graph/graph.ts';
import { isOperator } from '../graph/operators/index.ts';
import type { StaticGraph } from '../graph/static.ts';
import { isFloat, type ValueType } from '../graph/tensor.ts';
import { type Centered, centerChannels, centerImages } from './centering.ts';
import { add, product, scale } from './expressions.ts';
import { gradientRules } from './rules.ts';

/** A buffer's new value, computed by the forward pass. */
export interface BufferUpdate {
  readonly buffer: string;
  /** The output of the forward graph that is the new value. */
  readonly output: string;
}

/** The forward pass in an emitter, ready for a backward pass to be appended. */
export interface Forward {
  readonly emitter: Emitter;
  readonly bufferUpdates: readonly BufferUpdate[];
  /**
   * The varied values (activity analysis): floats that depend differentiably on a source, including the sources; never
   * running statistics, masks or indices.
   */
  readonly varied: ReadonlySet<string>;
}

/**
 * Loads a stage with dropouts already replaced. `sources`: the inputs and parameters that need gradients. `deferred`:
 * the pass will be lowered, and may contain deferred nodes (deferred.ts).
 */
export function loadForward(
  { graph, types }: StaticGraph,
  sources: readonly string[],
  { deferred }: { readonly deferred: boolean },
): Forward {
  const emitter = new Emitter('grad.');
  const declare = (name: string): string => {
    const { type, shape } = typeOf(types, name);
    return emitter.input(name, type, shape);
  };
  const changing = [...graph.parameters, ...graph.buffers];
  graph.inputs.forEach(({ name }) => declare(name));
  changing.forEach(declare);
  for (const [name, value] of graph.initializers) if (!changing.includes(name)) emitter.initializer(name, value);
  const varied = new Set(sources);
  const bufferUpdates: BufferUpdate[] = [];
  for (const node of graph.nodes) {
    const passes = isDifferentiable(node) && node.inputs.some((input) => varied.has(input));
    const [x = ''] = node.inputs;
    if (isTrainingBatchNormalization(node)) {
      const { centered, sample } = centerChannels(emitter, x, { deferred });
      if (varied.has(x)) varied.add(centered);
      bufferUpdates.push(...writeBatchNormalization(emitter, node, { centered, sample, ...graph }));
    } else if (passes && normalizesImages(node)) {
      const centered = centerImages(emitter, x, intAttribute(node, 'num_groups', emitter.shape(x)[1] as number));
      if (varied.has(x)) varied.add(centered);
      emitter.append({ ...node, inputs: [centered, ...node.inputs.slice(1)] });
    } else if (passes && node.operator === 'LayerNormalization') emitter.append(withOutputs(emitter, node, 3));
    else
      emitter.appendTyped(
        node,
        node.outputs.map((output) => (output === '' ? { type: 'float32', shape: [] } : typeOf(types, output))),
      );
    if (passes) for (const output of gradientOutputs(node)) if (isFloat(typeOf(types, output).type)) varied.add(output);
  }
  return { emitter, bufferUpdates, varied };
}

/** Asserts that the names belong to inputs, parameters and outputs of a graph. */
export function checkNames(
  graph: Graph,
  { inputs, parameters, outputs }: Readonly<Record<'inputs' | 'parameters' | 'outputs', readonly string[]>>,
): void {
  const names = (values: readonly ValueInfo[]): readonly string[] => values.map(({ name }) => name);
  const within = (some: readonly string[], all: readonly string[]): boolean => some.every((name) => all.includes(name));
  assert(within(inputs, names(graph.inputs)), `[${inputs}] are not all inputs of ${graph.name}`);
  assert(within(parameters, graph.parameters), `[${parameters}] are not all parameters of ${graph.name}`);
  assert(within(outputs, names(graph.outputs)), `[${outputs}] are not all outputs of ${graph.name}`);
}

function typeOf(types: ReadonlyMap<string, ValueType>, name: string): ValueType {
  return defined(types.get(name), `the type of "${name}"`);
}

/** Whether gradients pass the operator; an unknown operator counts as differentiable. */
function isDifferentiable(node: Node): boolean {
  return node.domain !== '' || !isOperator(node.operator) || gradientRules[node.operator] !== 'not-differentiable';
}

/** True for batch normalization with the batch's own statistics. */
export function isTrainingBatchNormalization(node: Node): boolean {
  return node.domain === '' && node.operator === 'BatchNormalization' && intAttribute(node, 'training_mode', 0) !== 0;
}

function normalizesImages({ operator, domain }: Node): boolean {
  return domain === '' && (operator === 'InstanceNormalization' || operator === 'GroupNormalization');
}

/**
 * With momentum 0 the second and third output are the batch's mean (of the centered values) and variance, which the
 * gradient needs; the running ones are then computed as running′ = running·momentum + batch·(1 − momentum).
 */
function writeBatchNormalization(
  emitter: Emitter,
  node: Node,
  { centered, sample, buffers, runningVariance }: Centered & Pick<Graph, 'buffers' | 'runningVariance'>,
): readonly BufferUpdate[] {
  const momentum = floatAttribute(node, 'momentum', 0.9);
  const [mean, variance] = [emitter.fresh(`${node.name}.mean`), emitter.fresh(`${node.name}.variance`)];
  emitter.append({
    ...node,
    inputs: [centered, ...node.inputs.slice(1)],
    outputs: [defined(node.outputs[0], 'the output'), mean, variance],
    attributes: { ...node.attributes, momentum: float(0) },
  });
  const shape = emitter.shape(centered);
  const count = product(shape) / (shape[1] as number);
  const statistics = [
    { value: (): string => add(emitter, mean, sample), factor: 1 },
    { value: (): string => variance, factor: runningVariance === 'unbiased' && count > 1 ? count / (count - 1) : 1 },
  ];
  return statistics.flatMap(({ value, factor }, index) => {
    const old = defined(node.inputs[index + 3], 'the running statistic');
    const wanted = node.outputs[index + 1] ?? '';
    if (wanted === '' && !buffers.includes(old)) return [];
    const output = wanted === '' ? emitter.fresh(`${old}.new`) : wanted;
    const [kept, gained] = [scale(emitter, old, momentum), scale(emitter, value(), factor * (1 - momentum))];
    emitter.append({
      operator: 'Add',
      domain: '',
      name: emitter.fresh(`${node.name}.running`),
      inputs: [kept, gained],
      outputs: [output],
      attributes: {},
    });
    return buffers.includes(old) ? [{ buffer: old, output }] : [];
  });
}

/** The node with its first `count` outputs all present. */
function withOutputs(emitter: Emitter, node: Node, count: number): Node {
  const outputs = Array.from(
    { length: count },
    (_, index) => node.outputs[index] || emitter.fresh(`${node.name}.output${index}`),
  );
  return { ...node, outputs };
}
