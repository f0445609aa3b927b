// Rewrites operators of other opsets (7 to the newest) as those of the canonical opset, with the same meaning. One rule
// for each operator that changed; operators without a rule mean the same in all opsets.

import {
  type Attribute,
  type Attributes,
  floatAttribute,
  int,
  intAttribute,
  intsAttribute,
  type Node,
  string,
  stringAttribute,
} from '../graph.ts';
import { int64s, scalar, type Tensor, tensor } from '../tensor.ts';

/** The model's opset, and functions that rules use to add constants and names. */
export interface UpgradeContext {
  readonly opset: number;
  /** Adds a constant; returns its name. */
  constant(value: Tensor, stem: string): string;
  /** A name for a new value or node. */
  fresh(stem: string): string;
}

type Rule = (node: Node, context: UpgradeContext) => readonly Node[];

/** The first supported opset: older ones have other broadcasting rules. */
export const oldestOpset = 7;
/** The newest opset whose changes these rules cover. */
export const newestOpset = 28;

/**
 * The nodes of the canonical opset that mean what `node` means at the context's opset. The last one's first output is
 * the node's.
 */
export function upgradeNode(node: Node, context: UpgradeContext): readonly Node[] {
  const rule = node.domain === '' && Object.hasOwn(rules, node.operator) ? rules[node.operator] : undefined;
  return rule === undefined ? [node] : rule(node, context);
}

/** Axes that were an attribute before opset `since` become the input at position 1. */
const axesToInput =
  (since: number): Rule =>
  (node, { opset, constant }) => {
    const axes = intsAttribute(node, 'axes');
    if (opset >= since || axes === undefined || axes.length === 0)
      return [opset >= since ? node : without(node, 'axes')];
    return [{ ...without(node, 'axes'), inputs: [node.inputs[0] ?? '', constant(int64s(axes), `${node.name}.axes`)] }];
  };

/** Before opset 13, Softmax worked on the input flattened to two dimensions at `axis` (default 1). */
const flattenedSoftmax: Rule = (node, context) => {
  if (context.opset >= 13) return [node];
  const axis = intAttribute(node, 'axis', 1);
  if (axis === -1) return [{ ...node, attributes: { axis: int(-1) } }];
  const input = node.inputs[0] ?? '';
  const names = ['flat', 'normalized', 'shape'].map((stem) => context.fresh(`${node.name}.${stem}`));
  const [flat, normalized, shape] = names as [string, string, string];
  return [
    helper('Flatten', flat, [input], { axis: int(axis) }),
    helper(node.operator, normalized, [flat], { axis: int(-1) }),
    helper('Shape', shape, [input]),
    { ...node, operator: 'Reshape', inputs: [normalized, shape], attributes: {} },
  ];
};

const rules: Readonly<Record<string, Rule>> = {
  BatchNormalization(node, { opset }) {
    // Statistics for every element instead of every channel (spatial = 0, obsolete) are kept, and refused later.
    if (opset >= 14 || intAttribute(node, 'spatial', 1) === 0) return [node];
    // Running statistics as outputs mean training; the two saved ones after them have no counterpart.
    const training = node.outputs.slice(1).some((output) => output !== '');
    const { epsilon, momentum } = node.attributes;
    const attributes = {
      ...(epsilon === undefined ? {} : { epsilon }),
      ...(momentum === undefined ? {} : { momentum }),
      training_mode: int(training ? 1 : 0),
    };
    return [{ ...node, outputs: node.outputs.slice(0, training ? 3 : 1), attributes }];
  },
  // A later attribute for 8-bit floats, which are refused anyway.
  Cast: (node) => [without(node, 'round_mode')],
  CastLike: (node) => [without(node, 'round_mode')],
  Clip(node, { opset, constant }) {
    if (opset >= 11) return [node];
    const bound = (name: string): string =>
      node.attributes[name] === undefined
        ? ''
        : constant(scalar('float32', floatAttribute(node, name, 0)), `${node.name}.${name}`);
    return [{ ...node, inputs: [node.inputs[0] ?? '', bound('min'), bound('max')], attributes: {} }];
  },
  DFT(node, { opset, constant }) {
    if (opset >= 20) return [node];
    const axis = constant(scalar('int64', intAttribute(node, 'axis', 1)), `${node.name}.axis`);
    return [{ ...without(node, 'axis'), inputs: [node.inputs[0] ?? '', node.inputs[1] ?? '', axis] }];
  },
  Dropout(node, { opset, constant }) {
    if (opset >= 12) return [node];
    return [
      {
        ...node,
        inputs: [
          node.inputs[0] ?? '',
          constant(scalar('float32', floatAttribute(node, 'ratio', 0.5)), `${node.name}.ratio`),
        ],
        attributes: {},
      },
    ];
  },
  GroupNormalization(node, context) {
    // Before opset 21, scale and bias have one element a group: repeat it for each channel of the group.
    if (context.opset >= 21) return [node];
    const [x = '', scale = '', bias = ''] = node.inputs;
    const stem = (name: string): string => context.fresh(`${node.name}.${name}`);
    const groups = context.constant(int64s([intAttribute(node, 'num_groups', 1)]), `${node.name}.groups`);
    const one = context.constant(int64s([1]), `${node.name}.one`);
    const all = context.constant(int64s([-1]), `${node.name}.all`);
    const [channels, each, repeated] = ['channels', 'each', 'repeated'].map(stem) as [string, string, string];
    const spread = (value: string, name: string): { nodes: readonly Node[]; result: string } => {
      const [column, table, result] = ['column', 'table', 'channels'].map((part) => stem(`${name}.${part}`)) as [
        string,
        string,
        string,
      ];
      const nodes = [
        helper('Unsqueeze', column, [value, one]),
        helper('Expand', table, [column, repeated]),
        helper('Reshape', result, [table, all]),
      ];
      return { nodes, result };
    };
    const [newScale, newBias] = [spread(scale, 'scale'), spread(bias, 'bias')];
    return [
      helper('Shape', channels, [x], { start: int(1), end: int(2) }),
      helper('Div', each, [channels, groups]),
      helper('Concat', repeated, [one, each], { axis: int(0) }),
      ...newScale.nodes,
      ...newBias.nodes,
      { ...node, inputs: [x, newScale.result, newBias.result] },
    ];
  },
  LogSoftmax: flattenedSoftmax,
  Pad(node, { opset, constant }) {
    if (opset >= 11) return [node];
    const pads = constant(int64s(intsAttribute(node, 'pads') ?? []), `${node.name}.pads`);
    const value = constant(scalar('float32', floatAttribute(node, 'value', 0)), `${node.name}.value`);
    return [{ ...without(node, 'pads', 'value'), inputs: [node.inputs[0] ?? '', pads, value] }];
  },
  Range: (node) => [without(node, 'stash_type')],
  ReduceL1: axesToInput(18),
  ReduceL2: axesToInput(18),
  ReduceLogSum: axesToInput(18),
  ReduceLogSumExp: axesToInput(18),
  ReduceMax: axesToInput(18),
  ReduceMean: axesToInput(18),
  ReduceMin: axesToInput(18),
  ReduceProd: axesToInput(18),
  ReduceSum: axesToInput(13),
  ReduceSumSquare: axesToInput(18),
  Resize(node, { opset }) {
    // Until opset 10 it is the former Upsample.
    return opset >= 11 ? [node] : [upsampled(node, node.inputs[1] ?? '')];
  },
  Scatter: (node) => [{ ...node, operator: 'ScatterElements' }],
  Slice(node, { opset, constant }) {
    if (opset >= 10) return [node];
    const [starts, ends] = [intsAttribute(node, 'starts') ?? [], intsAttribute(node, 'ends') ?? []];
    const axes = intsAttribute(node, 'axes') ?? starts.map((_, index) => index);
    const inputs = Object.entries({ starts, ends, axes }).map(([name, values]) =>
      constant(int64s(values), `${node.name}.${name}`),
    );
    return [{ ...node, inputs: [node.inputs[0] ?? '', ...inputs], attributes: {} }];
  },
  Softmax: flattenedSoftmax,
  SpaceToDepth(node) {
    const { mode } = node.attributes;
    return [mode?.type === 'string' && mode.value === 'DCR' ? without(node, 'mode') : node];
  },
  Split(node, { opset, constant }) {
    if (opset >= 18) return [node];
    const sizes = intsAttribute(node, 'split');
    const [x = '', given = ''] = node.inputs;
    const plain = without(node, 'split');
    if (opset < 13 && sizes !== undefined)
      return [{ ...plain, inputs: [x, constant(int64s(sizes), `${node.name}.split`)] }];
    if (opset >= 13 && given !== '') return [node];
    return [{ ...plain, inputs: [x], attributes: { ...plain.attributes, num_outputs: int(node.outputs.length) } }];
  },
  Squeeze: axesToInput(13),
  Swish(node, context) {
    // x · sigmoid(α x).
    const x = node.inputs[0] ?? '';
    const alpha = floatAttribute(node, 'alpha', 1);
    const [scaled, gate] = ['scaled', 'gate'].map((stem) => context.fresh(`${node.name}.${stem}`)) as [string, string];
    const scaling =
      alpha === 1 ? [] : [helper('Mul', scaled, [x, context.constant(scalar('float32', alpha), `${node.name}.alpha`)])];
    return [
      ...scaling,
      helper('Sigmoid', gate, [alpha === 1 ? x : scaled]),
      { ...node, operator: 'Mul', inputs: [x, gate], attributes: {} },
    ];
  },
  Unsqueeze: axesToInput(13),
  Upsample(node, { opset, constant }) {
    if (opset >= 9) return [upsampled(node, node.inputs[1] ?? '')];
    const scales = node.attributes['scales'];
    const values = scales?.type === 'floats' ? scales.value : [];
    return [upsampled(node, constant(tensor('float32', [values.length], values), `${node.name}.scales`))];
  },
};

/** Nearest-neighbour resize with the old index new · 1/scale, rounded down. */
function upsampled(node: Node, scales: string): Node {
  const mode = stringAttribute(node, 'mode', 'nearest');
  return {
    ...node,
    operator: 'Resize',
    inputs: [node.inputs[0] ?? '', '', scales],
    attributes: {
      coordinate_transformation_mode: string('asymmetric'),
      mode: string(mode === 'bilinear' ? 'linear' : mode),
      nearest_mode: string('floor'),
    },
  };
}

function helper(operator: string, name: string, inputs: readonly string[], attributes: Attributes = {}): Node {
  return { operator, domain: '', name, inputs, outputs: [name], attributes };
}

function without(node: Node, ...names: readonly string[]): Node {
  if (!names.some((name) => Object.hasOwn(node.attributes, name))) return node;
  const attributes: Record<string, Attribute> = {};
  for (const [name, value] of Object.entries(node.attributes)) if (!names.includes(name)) attributes[name] = value;
  return { ...node, attributes };
}
