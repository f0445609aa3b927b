// What things cost in the slow simulator's world (slow-simulator.ts), straight from the profile: sums over layers, no
// prefix sums. Used by tests only.

import type { Cluster, DeviceTimes, PlanLayout, Profile } from '../cluster/cluster.ts';

/** What travels over a link. */
export interface Parcel {
  readonly id: string;
  readonly ready: number;
  readonly microBatch: number;
  readonly rank: number;
  readonly bytes: number;
  /** The time to encode it, by which it arrives later. */
  readonly codecMs?: number;
}

export type Layers = readonly [number, number];

/** F forward, B backward, I and W its halves; of streams, U the update and R what hands the gradients of a round on. */
export interface Operation {
  readonly kind: 'F' | 'B' | 'I' | 'W' | 'U' | 'R';
  readonly microBatch: number;
  /** Of the last micro-batch, if its gradients are reduced in buckets. */
  readonly layers?: Layers;
}

export interface Node {
  readonly name: string;
  readonly stage: number;
  readonly from: number;
  readonly end: number;
  readonly operations: readonly Operation[];
  next: number;
  free: number;
  /** The cost of what it has sent since then. */
  owed: number;
  busy: number;
  /** When the gradients of a bucket are final, by its first layer. */
  readonly final: Map<number, number>;
}

export interface SlowLink {
  readonly from: string;
  readonly to: string;
  readonly parcels: Parcel[];
  free: number;
  bytes: number;
  busy: number;
}

export interface World {
  readonly plan: PlanLayout;
  readonly profile: Profile;
  readonly cluster: Cluster;
  /** K_p of each stage. */
  readonly kept: readonly number[];
  readonly nodes: readonly Node[];
  readonly arrival: Map<string, number>;
  readonly links: Map<string, SlowLink>;
}

export const layersOf = (plan: PlanLayout, stage: number): Layers => plan.stages[stage]?.layers ?? [0, 0];

export const isLast = ({ plan }: World, node: Node): boolean => node.stage === plan.stages.length - 1;

export function timesOf({ profile, cluster }: World, name: string): DeviceTimes | undefined {
  const kind = cluster.devices.find((device) => device.name === name)?.kind ?? '';
  return profile.devices[name] ?? profile.devices[kind];
}

type TimeKey = 'forwardMs' | 'backwardMs' | 'backwardInputMs' | 'backwardWeightMs';

/** The ms that a node takes for layers, between the profiled batch sizes in proportion. */
function timeOf(world: World, node: Node, key: TimeKey, layers: Layers): number {
  const samples = node.end - node.from;
  const device = timesOf(world, node.name);
  if (samples === 0 || (key === 'backwardWeightMs' && device?.[key] === undefined)) return 0;
  const times = device?.[key] ?? device?.backwardMs.map((row) => row.map((ms) => ms / 2)) ?? [];
  let total = 0;
  for (let layer = layers[0]; layer < layers[1]; layer++) {
    const points = world.profile.batchSizes.map((size, index) => [size, times[index]?.[layer] ?? Number.NaN] as const);
    const none = [1, Number.NaN] as const;
    const [smallest, largest] = [points[0] ?? none, points.at(-1) ?? none];
    if (samples <= smallest[0] || points.length === 1) total += (smallest[1] * samples) / smallest[0];
    else {
      const above = points.find(([size]) => size >= samples) ?? largest;
      const below = points[points.indexOf(above) - 1] ?? smallest;
      total += below[1] + ((above[1] - below[1]) * (samples - below[0])) / (above[0] - below[0]);
    }
  }
  return total;
}

/** What bytes cost a device that sends or receives them, on the simulator's grid. */
function costOf(world: World, name: string, bytes: number, isReduced = false): number {
  const { handlingMsPerMiB = 0, reducingMsPerMiB } = timesOf(world, name) ?? {};
  const perMiB = isReduced && reducingMsPerMiB !== undefined ? reducingMsPerMiB : handlingMsPerMiB;
  return Math.round((perMiB / 2 ** 20) * bytes * 2 ** 30) / 2 ** 30;
}

export const overlap = (a: Node, b: Node): number => Math.max(0, Math.min(a.end, b.end) - Math.max(a.from, b.from));

/** Towards the stage before (−1) or behind (1). */
type Side = 1 | -1;

/** What crosses a border of the node's stage. */
function borderBytes({ plan, profile, nodes }: World, node: Node, side: Side): number {
  const [first, end] = layersOf(plan, node.stage);
  const outputBytes = profile.layers[side === -1 ? first - 1 : end - 1]?.outputBytes ?? 0;
  return nodes
    .filter(({ stage }) => stage === node.stage + side)
    .reduce((sum, neighbour) => sum + overlap(node, neighbour) * outputBytes, 0);
}

const framesAcross = ({ nodes }: World, node: Node, side: Side): number =>
  nodes.filter((other) => other.stage === node.stage + side && overlap(node, other) > 0).length;

function fedBytes(world: World, node: Node): number {
  const { inputBytes, labelBytes } = world.profile;
  return (node.end - node.from) * ((node.stage === 0 ? inputBytes : 0) + (isLast(world, node) ? labelBytes : 0));
}

const fedFrames = (world: World, node: Node): number => (node.stage === 0 ? 1 : 0) + (isLast(world, node) ? 1 : 0);

export const isHalved = ({ plan }: World, kind: 'F' | 'B'): boolean =>
  plan.compression?.[kind === 'F' ? 'activation' : 'gradient'] !== undefined;

type Traffic = { readonly bytes: number; readonly frames: number };

function received(world: World, node: Node, kind: 'F' | 'B'): Traffic {
  const side = kind === 'F' ? -1 : 1;
  const { dataDevice } = world.cluster;
  const bytes = borderBytes(world, node, side) * (isHalved(world, kind) ? 0.5 : 1);
  const isFed = kind === 'F' && dataDevice !== undefined && node.name !== dataDevice;
  return {
    bytes: isFed ? bytes + fedBytes(world, node) : bytes,
    frames: framesAcross(world, node, side) + (kind === 'F' ? fedFrames(world, node) : 0),
  };
}

function sent(world: World, node: Node, kind: 'F' | 'B'): Traffic {
  const side = kind === 'F' ? 1 : -1;
  const { dataDevice } = world.cluster;
  let bytes = borderBytes(world, node, side) * (isHalved(world, kind) ? 0.5 : 1);
  let frames = framesAcross(world, node, side);
  if (kind === 'F' && node.name === dataDevice)
    for (const other of world.nodes.filter(({ name }) => name !== dataDevice)) {
      bytes += fedBytes(world, other);
      if (other.end > other.from) frames += fedFrames(world, other);
    }
  return { bytes, frames };
}

export const directionOf = (kind: Operation['kind']): 'F' | 'B' => (kind === 'F' ? 'F' : 'B');

/** What a device pays before an operation for what it receives, and after it for what it sends. */
export function costsOf(
  world: World,
  node: Node,
  { kind, layers: part }: Operation,
): { receiving: number; sending: number } {
  const own = layersOf(world.plan, node.stage);
  const { passMs = 0, frameMs = 0 } = timesOf(world, node.name) ?? {};
  const isFirst = part === undefined || part[1] === own[1];
  const isFinal = part === undefined || part[0] === own[0];
  if (kind === 'W') return { receiving: 0, sending: isFinal ? passMs : 0 };
  const price = ({ bytes, frames }: Traffic): number => costOf(world, node.name, bytes) + frames * frameMs;
  return {
    receiving: isFirst ? price(received(world, node, directionOf(kind))) : 0,
    sending: isFinal ? price(sent(world, node, directionOf(kind))) + passMs : 0,
  };
}

/** One optimizer update. */
export function updateOf(world: World, node: Node): number {
  const own = layersOf(world.plan, node.stage);
  const times = timesOf(world, node.name)?.updateMs ?? [];
  return times.slice(...own).reduce((sum, ms) => sum + ms, 0);
}

export function durationOf(world: World, node: Node, { kind, layers }: Operation): number {
  const time = (key: TimeKey): number => timeOf(world, node, key, layers ?? layersOf(world.plan, node.stage));
  if (kind === 'F') return time('forwardMs');
  if (kind === 'B') return time('backwardMs');
  if (kind === 'U') return updateOf(world, node);
  if (kind === 'I') return time('backwardInputMs');
  return Math.max(time('backwardMs') - time('backwardInputMs'), time('backwardWeightMs'));
}

export function speedOf({ links }: Cluster, a: string, b: string): { bandwidth: number; latency: number } {
  const pair = (links.pairs ?? []).find(({ between }) => between.includes(a) && between.includes(b));
  const link = pair ?? links.default;
  return { bandwidth: link.bandwidthMbps, latency: link.latencyMs ?? 0 };
}

/** The ms of an AllReduce of layers by the devices (eq. 5), and what each pays for its bytes. */
export function reduction(
  world: World,
  devices: readonly string[],
  [first, stop]: Layers,
): { ms: number; costs: number[] } {
  const { plan, profile, cluster } = world;
  const speeds = devices.flatMap((a, place) => devices.slice(place + 1).map((b) => speedOf(cluster, a, b)));
  const weights = profile.layers.slice(first, stop).reduce((sum, layer) => sum + layer.weightBytes, 0);
  const bandwidth = Math.min(...speeds.map((speed) => speed.bandwidth));
  const bytes = (2 * (devices.length - 1) * weights) / devices.length;
  const encoding = plan.compression?.allReduce;
  const share = { none: 1, float16: 0.5, int8: 0.25 }[encoding ?? 'none'];
  const costs = devices.map((name) => costOf(world, name, 2 * bytes * share, true));
  const travelMs = (bytes * 8 * share) / (bandwidth * 1000);
  // The only duration of the random plans that is not on the simulator's grid already.
  const ms = Math.round(Math.max(travelMs, encoding === undefined ? 0 : bytes / 2 ** 19, ...costs) * 2 ** 30) / 2 ** 30;
  return { ms: ms + 2 * (devices.length - 1) * Math.max(...speeds.map(({ latency }) => latency)), costs };
}
