// Small tensors of a stage side by side in one vector: a net has hundreds of them (normalizations, biases), and each
// that enters or leaves a graph costs more than what is done with it. Inside the graphs they are taken apart and put
// together again; outside they keep their names (stage-state.ts).

import { assert } from '../../assert.ts';
import { gradientName } from '../../graph/gradient-name.ts';
import { type Graph, int, type Node, type ValueInfo } from '../../graph/graph.ts';
import { elementCount, int64s, type Tensor } from '../../graph/tensor.ts';
import type { TensorSpec } from '../protocol/model-message.ts';

/** A tensor's place in a pack. */
export interface PackMember extends TensorSpec {
  readonly offset: number;
  readonly count: number;
}

/** Tensors in one float32 vector [count]. */
export interface Pack {
  readonly name: string;
  readonly count: number;
  readonly members: readonly PackMember[];
}

/** Larger tensors (256 KiB) stay by themselves: copying them would cost more than it saves. */
export const packMemberLimit: number = 2 ** 16;

/**
 * The pack of the small ones among some tensors, if there are at least two. Depends on nothing but the specs: devices
 * of a group must agree.
 */
export function packOf(name: string, specs: readonly TensorSpec[]): Pack | undefined {
  const members: PackMember[] = [];
  let offset = 0;
  for (const spec of specs) {
    const count = elementCount(spec.shape);
    if (count === 0 || count > packMemberLimit) continue;
    members.push({ ...spec, offset, count });
    offset += count;
  }
  return members.length < 2 ? undefined : { name, count: offset, members };
}

/** The tensors as the graphs take them: those outside the pack, then the pack. */
export function packedSpecs(specs: readonly TensorSpec[], pack: Pack | undefined): readonly TensorSpec[] {
  if (pack === undefined) return specs;
  const inside = new Set(pack.members.map(({ name }) => name));
  return [...specs.filter(({ name }) => !inside.has(name)), { name: pack.name, shape: [pack.count] }];
}

/** The names with packs in place of their members. */
export function packedNames(names: readonly string[], packs: readonly Pack[]): readonly string[] {
  const packed = packs.filter(({ members }) => members.some(({ name }) => names.includes(name)));
  const inside = new Set(packed.flatMap(({ members }) => members.map(({ name }) => name)));
  return [...names.filter((name) => !inside.has(name)), ...packed.map(({ name }) => name)];
}

/** The name under which the graphs give the new values of packed buffers. */
export function replacementName(pack: Pack): string {
  return `${pack.name}/new`;
}

/** What of a graph is packed. */
export interface Packing {
  readonly parameters: readonly Pack[];
  /** Buffers that a forward pass replaces. */
  readonly buffers: Pack | undefined;
  /** The outputs that replace buffers, by buffer. */
  readonly replacements: ReadonlyMap<string, string>;
}

/**
 * The graph that takes packs in place of their members, and gives them in place of their members' gradients and
 * replacements.
 */
export function packGraph(graph: Graph, { parameters, buffers, replacements }: Packing): Graph {
  let packed = graph;
  for (const pack of parameters) {
    packed = packInputs(packed, pack);
    packed = packOutputs(packed, gradientName(pack.name), pack, (name) => gradientName(name));
  }
  if (buffers !== undefined) {
    packed = packInputs(packed, buffers);
    packed = packOutputs(packed, replacementName(buffers), buffers, (name) => replacements.get(name) ?? '');
  }
  return packed;
}

const node = (
  operator: string,
  name: string,
  inputs: readonly string[],
  outputs: readonly string[],
  attributes: Node['attributes'],
): Node => ({
  operator,
  domain: '',
  name,
  inputs,
  outputs,
  attributes,
});

function packInputs(graph: Graph, pack: Pack): Graph {
  const inside = new Map(pack.members.map((member) => [member.name, member]));
  if (!graph.inputs.some(({ name }) => inside.has(name))) return graph;
  const inputs: ValueInfo[] = [
    ...graph.inputs.filter(({ name }) => !inside.has(name)),
    { name: pack.name, type: 'float32', shape: [pack.count] },
  ];
  const initializers = new Map<string, Tensor>(graph.initializers);
  const { nodes, constants } = unpack(pack);
  for (const [name, value] of constants) initializers.set(name, value);
  return { ...graph, inputs, initializers, nodes: [...nodes, ...graph.nodes] };
}

/** Nodes that give each member under its name. */
function unpack(pack: Pack): { readonly nodes: readonly Node[]; readonly constants: ReadonlyMap<string, Tensor> } {
  const { name, members } = pack;
  const flat = (member: PackMember): string => (member.shape.length === 1 ? member.name : `${name}/${member.name}`);
  const constants = new Map<string, Tensor>([[`${name}/counts`, int64s(members.map(({ count }) => count))]]);
  const nodes: Node[] = [node('Split', `${name}/split`, [name, `${name}/counts`], members.map(flat), { axis: int(0) })];
  for (const member of members) {
    if (member.shape.length === 1) continue;
    const shape = `${name}/shape(${member.shape})`;
    constants.set(shape, int64s(member.shape));
    nodes.push(node('Reshape', `${name}/reshape(${member.name})`, [flat(member), shape], [member.name], {}));
  }
  return { nodes, constants };
}

/** The members' outputs (zeros where there is none) as one, if the graph gives any. */
function packOutputs(graph: Graph, as: string, pack: Pack, outputOf: (member: string) => string): Graph {
  const given = new Map(graph.outputs.map((output) => [output.name, output]));
  const outputs = pack.members.map((member) => ({ member, output: given.get(outputOf(member.name)) }));
  if (outputs.every(({ output }) => output === undefined)) return graph;
  const initializers = new Map<string, Tensor>(graph.initializers);
  const nodes = [...graph.nodes];
  const vector = `${as}/vector`;
  initializers.set(vector, int64s([-1]));
  const parts = outputs.map(({ member, output }) => {
    const flat = `${as}/${member.name}`;
    if (output === undefined)
      initializers.set(flat, { type: 'float32', shape: [member.count], data: new Float32Array(member.count) });
    else if (output.shape.length === 1) return output.name;
    else nodes.push(node('Reshape', flat, [output.name, vector], [flat], {}));
    return flat;
  });
  nodes.push(node('Concat', as, parts, [as], { axis: int(0) }));
  const replaced = new Set(outputs.map(({ output }) => output?.name));
  const kept = graph.outputs.filter(({ name }) => !replaced.has(name));
  return { ...graph, initializers, nodes, outputs: [...kept, { name: as, type: 'float32', shape: [pack.count] }] };
}

/** The member's part of a pack's value, in a buffer of its own. */
export function memberValue(pack: Pack, member: PackMember, value: Tensor): Tensor {
  assert(value.data.length === pack.count, `${pack.name} of ${value.data.length} elements`);
  const { offset, count, shape } = member;
  return { type: 'float32', shape, data: (value.data as Float32Array).slice(offset, offset + count) };
}
