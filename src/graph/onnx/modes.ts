// Switches a graph between training and inference: batch normalization and dropout are the operators that differ.

import { type Attribute, type Attributes, floatAttribute, type Graph, int, intAttribute, type Node } from '../graph.ts';
import { freshName, neededNodes, producers, usedValues } from '../liveness.ts';
import { scalar, type Tensor } from '../tensor.ts';
import { randomDecisions } from './expected-draws.ts';

/** How a graph is trained. */
export interface TrainingModeOptions {
  /** Batch normalization uses the stored statistics, or ('training', the default) those of each batch. */
  readonly batchNorm?: 'inference' | 'training' | undefined;
}

/**
 * The graph in training mode, even if it was exported for inference: batch normalization uses the batch's statistics
 * and outputs new running ones (outputs 1 and 2), unless `batchNorm` is 'inference'; dropout is active (if its ratio is
 * not 0).
 */
export function trainingMode(graph: Graph, { batchNorm = 'training' }: TrainingModeOptions = {}): Graph {
  const names = namesOf(graph);
  const initializers = new Map(graph.initializers);
  let isTraining: string | undefined;
  const trueConstant = (): string => {
    if (isTraining === undefined) {
      isTraining = freshName('training_mode', names);
      initializers.set(isTraining, scalar('bool', 1));
    }
    return isTraining;
  };
  const nodes = graph.nodes.map((node) => {
    if (isDefault(node, 'BatchNormalization')) {
      if (batchNorm === 'inference') return inferenceNormalization(node);
      const [y = '', mean = '', variance = ''] = node.outputs;
      const output = (name: string, stem: string): string =>
        name === '' ? freshName(`${node.name}.${stem}`, names) : name;
      return {
        ...withAttribute(node, 'training_mode', int(1)),
        outputs: [y, output(mean, 'running_mean'), output(variance, 'running_var')],
      };
    }
    if (!isDefault(node, 'Dropout') || isOn(graph.initializers.get(node.inputs[2] ?? ''))) return node;
    return { ...node, inputs: [node.inputs[0] ?? '', node.inputs[1] ?? '', trueConstant()] };
  });
  return { ...graph, nodes, initializers };
}

/**
 * The graph in inference mode: batch normalization uses the running statistics, dropout is the identity, and random
 * decisions become their mean (expected-draws.ts). Values that only training reads are removed.
 */
export function inferenceMode(graph: Graph): Graph {
  const decided = expectedDraws(graph);
  const nodes = decided.map((node) => {
    if (isDefault(node, 'BatchNormalization')) return inferenceNormalization(node);
    if (!isDefault(node, 'Dropout')) return node;
    const inputs = node.inputs.slice(0, 2);
    return { ...node, inputs: inputs[1] === '' ? inputs.slice(0, 1) : inputs };
  });
  const used = usedValues(
    nodes,
    graph.outputs.map(({ name }) => name),
  );
  return { ...graph, nodes, initializers: new Map([...graph.initializers].filter(([name]) => used.has(name))) };
}

function inferenceNormalization(node: Node): Node {
  return { ...withAttribute(node, 'training_mode', int(0)), outputs: node.outputs.slice(0, 1) };
}

/** Operators into which exporters merge a batch normalization that follows them. */
const mergers: ReadonlySet<string> = new Set(['Conv', 'ConvTranspose', 'Gemm']);

/**
 * How many batch normalizations of a model exported for inference are left beside others that the exporter merged into
 * the convolutions before them: the former can use the statistics of a batch, the latter are fixed. 0 if nothing speaks
 * for merged ones.
 */
export function unmergedNormalizations({ nodes }: Pick<Graph, 'nodes'>): number {
  const made = producers(nodes);
  const left = nodes.filter((node) => isDefault(node, 'BatchNormalization'));
  const isMergeable = ({ inputs }: Node): boolean => mergers.has(made.get(inputs[0] ?? '')?.operator ?? '');
  const isTraining = (node: Node): boolean => intAttribute(node, 'training_mode', 0) !== 0;
  if (left.some((node) => isTraining(node) || isMergeable(node))) return 0;
  return nodes.some(({ operator }) => mergers.has(operator)) ? left.length : 0;
}

/** The nodes with each random decision replaced by its mean. */
function expectedDraws(graph: Graph): readonly Node[] {
  const decisions = randomDecisions(
    graph.nodes.map((node) => (node.domain === '' ? node : undefined)),
    (index) => isUnit(graph.nodes[index] as Node),
  );
  if (decisions.size === 0) return graph.nodes;
  const names = namesOf(graph);
  const nodes = graph.nodes.flatMap((node, index): readonly Node[] => {
    const decision = decisions.get(index);
    if (decision === undefined) return [node];
    const { chance, like } = decision;
    const type = node.attributes['to'] ?? node.attributes['dtype'];
    if (like === undefined)
      return [
        {
          ...node,
          operator: type === undefined ? 'Identity' : 'Cast',
          inputs: [chance],
          attributes: type === undefined ? {} : { to: type },
        },
      ];
    const [shape, mean] = ['shape', 'mean'].map((stem) => freshName(`${node.name}.${stem}`, names)) as [string, string];
    const part = (operator: string, name: string, input: string, attributes: Attributes): Node => ({
      operator,
      domain: '',
      name,
      inputs: [input],
      outputs: [name],
      attributes,
    });
    return [
      part('Shape', shape, like, {}),
      part('Cast', mean, chance, type === undefined ? {} : { to: type }),
      { ...node, operator: 'Expand', inputs: [mean, shape], attributes: {} },
    ];
  });
  return neededNodes(
    nodes,
    graph.outputs.map(({ name }) => name),
  );
}

/** True for draws that are uniform in [0, 1). */
function isUnit(node: Node): boolean {
  return floatAttribute(node, 'low', 0) === 0 && floatAttribute(node, 'high', 1) === 1;
}

function isDefault(node: Node, operator: string): boolean {
  return node.domain === '' && node.operator === operator;
}

function withAttribute(node: Node, name: string, value: Attribute): Node {
  return { ...node, attributes: { ...node.attributes, [name]: value } };
}

function isOn(flag: Tensor | undefined): boolean {
  return flag !== undefined && Number(flag.data[0]) !== 0;
}

function namesOf(graph: Graph): Set<string> {
  return new Set([
    ...graph.inputs.map(({ name }) => name),
    ...graph.initializers.keys(),
    ...graph.nodes.flatMap(({ name, outputs }) => [name, ...outputs]),
  ]);
}
