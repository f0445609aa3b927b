// A second simulator, slow and obvious, straight from the plan and the rules of the simulated world (planner.md),
// sharing no code with the first: it has no Program, no heap and no prefix sums. Used by tests only.

import { defined } from '../assert.ts';
import type { Cluster, DeviceTimes, PlanLayout, Profile } from '../cluster/cluster.ts';

/** What travels over a link. */
interface Parcel {
  readonly id: string;
  readonly ready: number;
  readonly microBatch: number;
  readonly rank: number;
  readonly bytes: number;
  /** The time to encode it, by which it arrives later. */
  readonly codecMs?: number;
}

type Layers = readonly [number, number];

/** F forward, B backward, I and W its halves. */
interface Operation {
  readonly kind: 'F' | 'B' | 'I' | 'W';
  readonly microBatch: number;
  /** Of the last micro-batch, if its gradients are reduced in buckets. */
  readonly layers?: Layers;
}

interface Node {
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

interface SlowLink {
  readonly from: string;
  readonly to: string;
  readonly parcels: Parcel[];
  free: number;
  bytes: number;
  busy: number;
}

interface World {
  readonly plan: PlanLayout;
  readonly profile: Profile;
  readonly cluster: Cluster;
  /** K_p of each stage. */
  readonly kept: readonly number[];
  readonly nodes: readonly Node[];
  readonly arrival: Map<string, number>;
  readonly links: Map<string, SlowLink>;
}

/** The round's length in ms, the computing time of each device in ms, and bytes and ms of each link. */
export interface SlowRound {
  readonly round: number;
  readonly busy: Readonly<Record<string, number>>;
  readonly links: Readonly<Record<string, readonly [number, number]>>;
}

/** Simulates one round of the plan. */
export function slowRound(plan: PlanLayout, profile: Profile, cluster: Cluster): SlowRound {
  const kept = keptOf(plan);
  const nodes = nodesOf(plan, kept);
  const world: World = { plan, profile, cluster, kept, nodes, arrival: new Map(), links: new Map() };
  for (const node of nodes) for (let m = 0; m < (kept[node.stage] ?? 0); m++) feed(world, node, m, 0);
  while (advance(world));
  return {
    round: Math.max(...plan.stages.map((_, stage) => finish(world, stage))),
    busy: Object.fromEntries(nodes.map((node) => [node.name, node.busy])),
    links: Object.fromEntries([...world.links].map(([name, link]) => [name, [link.bytes, link.busy]])),
  };
}

const isSplit = ({ schedule }: PlanLayout): boolean => schedule.startsWith('zb-h1');
const isOverlapped = ({ schedule }: PlanLayout): boolean => schedule.endsWith('-overlap');
const layersOf = (plan: PlanLayout, stage: number): Layers => plan.stages[stage]?.layers ?? [0, 0];

function keptOf(plan: PlanLayout): number[] {
  return plan.stages.map((stage, p) => {
    if (plan.schedule === 'gpipe') return plan.microBatchCount;
    // The first stage owes nobody an input gradient, and puts nothing off.
    const most = isSplit(plan) && p === 0 ? 2 * plan.stages.length - 1 : plan.microBatchCount;
    return Math.min(plan.microBatchCount, stage.inFlight, most);
  });
}

function bucketsOf(plan: PlanLayout, p: number): Layers[] {
  const [first, end] = layersOf(plan, p);
  const quarters = [1, 2, 3].map((quarter) => first + Math.round((quarter * (end - first)) / 4));
  const even = end - first >= 4 ? quarters : Array.from({ length: end - first - 1 }, (_, index) => first + 1 + index);
  const borders = [first, ...(plan.stages[p]?.buckets ?? even), end];
  return borders.slice(1).map((border, index): Layers => [borders[index] ?? 0, border]);
}

function operationsOf(plan: PlanLayout, p: number, kept: number): Operation[] {
  const M = plan.microBatchCount;
  const k = isSplit(plan) ? Math.min(kept, 2 * (plan.stages.length - p) - 1) : kept;
  const halves = isSplit(plan) && p > 0;
  const operations: Operation[] = [];
  let weights = 0;
  for (let m = 0; m < k; m++) operations.push({ kind: 'F', microBatch: m });
  for (let m = 0; m < M; m++) {
    operations.push({ kind: halves ? 'I' : 'B', microBatch: m });
    // As late as it can be done with no more than K micro-batches kept when the next forward is done.
    if (halves && m + 1 - weights > kept - k) operations.push({ kind: 'W', microBatch: weights++ });
    if (m + k < M) operations.push({ kind: 'F', microBatch: m + k });
  }
  while (halves && weights < M) operations.push({ kind: 'W', microBatch: weights++ });
  if (!isOverlapped(plan) || (plan.stages[p]?.devices.length ?? 0) < 2) return operations;
  const last = defined(operations.pop(), 'a last operation');
  const pieces = bucketsOf(plan, p).reverse();
  return [...operations, ...pieces.map((layers) => ({ ...last, layers }))];
}

function nodesOf(plan: PlanLayout, kept: readonly number[]): Node[] {
  return plan.stages.flatMap(({ devices, samples }, stage) =>
    devices.map((name, place) => {
      const from = samples.slice(0, place).reduce((sum, share) => sum + share, 0);
      const end = from + (samples[place] ?? 0);
      const operations = end > from ? operationsOf(plan, stage, kept[stage] ?? 0) : [];
      return { name, stage, from, end, operations, next: 0, free: 0, owed: 0, busy: 0, final: new Map() };
    }),
  );
}

function send({ arrival, links }: World, from: string | undefined, to: string, parcel: Parcel): void {
  if (from === undefined || from === to) arrival.set(parcel.id, parcel.ready);
  else {
    const link = links.get(`${from}->${to}`) ?? { from, to, parcels: [], free: 0, bytes: 0, busy: 0 };
    links.set(`${from}->${to}`, link);
    link.parcels.push(parcel);
  }
}

const isLast = ({ plan }: World, node: Node): boolean => node.stage === plan.stages.length - 1;

/** Sends the node its share of a micro-batch's inputs, labels or both. */
function feed(world: World, node: Node, microBatch: number, ready: number): void {
  const { plan, profile, cluster } = world;
  const samples = node.end - node.from;
  if (microBatch >= plan.microBatchCount || samples === 0) return;
  const give = (what: string, rank: number, bytes: number): void =>
    send(world, cluster.dataDevice, node.name, {
      id: `${what} ${microBatch} ${node.name}`,
      ready,
      microBatch,
      rank,
      bytes,
    });
  if (node.stage === 0) give('input', 0, samples * profile.inputBytes);
  if (isLast(world, node)) give('label', 3, samples * profile.labelBytes);
}

function timesOf({ profile, cluster }: World, name: string): DeviceTimes | undefined {
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

const overlap = (a: Node, b: Node): number => Math.max(0, Math.min(a.end, b.end) - Math.max(a.from, b.from));

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

const isHalved = ({ plan }: World, kind: 'F' | 'B'): boolean =>
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

const directionOf = (kind: Operation['kind']): 'F' | 'B' => (kind === 'F' ? 'F' : 'B');

/** What a device pays before an operation for what it receives, and after it for what it sends. */
function costsOf(world: World, node: Node, { kind, layers: part }: Operation): { receiving: number; sending: number } {
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

/** The ids of all that must arrive before an operation. */
function needs(world: World, node: Node, { kind, microBatch }: Operation): string[] {
  const ids: string[] = [];
  if (kind === 'F' && node.stage === 0) ids.push(`input ${microBatch} ${node.name}`);
  if (kind === 'F' && isLast(world, node)) ids.push(`label ${microBatch} ${node.name}`);
  const neighbour = node.stage + (kind === 'F' ? -1 : 1);
  for (const other of kind === 'W' ? [] : world.nodes)
    if (other.stage === neighbour && overlap(node, other) > 0)
      ids.push(`${directionOf(kind)} ${microBatch} ${other.name}->${node.name}`);
  return ids;
}

const never = Number.POSITIVE_INFINITY;

function startOf(world: World, node: Node): number {
  const operation = node.operations[node.next];
  if (operation === undefined) return never;
  const paid = node.free + node.owed + costsOf(world, node, operation).receiving;
  return Math.max(paid, ...needs(world, node, operation).map((id) => world.arrival.get(id) ?? never));
}

/** The next event, a pass or a transfer; false at the end. */
function advance(world: World): boolean {
  const starts = world.nodes.map((node) => startOf(world, node));
  const now = Math.min(...starts);
  const links = [...world.links.values()];
  const departures = links.map(({ free, parcels }) => Math.min(...parcels.map(({ ready }) => Math.max(free, ready))));
  const linkNow = Math.min(...departures);
  if (now === never && linkNow === never) return false;
  if (now <= linkNow) compute(world, defined(world.nodes[starts.indexOf(now)], 'a node'), now);
  else transfer(world, defined(links[departures.indexOf(linkNow)], 'a link'), linkNow);
  return true;
}

function durationOf(world: World, node: Node, { kind, layers }: Operation): number {
  const time = (key: TimeKey): number => timeOf(world, node, key, layers ?? layersOf(world.plan, node.stage));
  if (kind === 'F') return time('forwardMs');
  if (kind === 'B') return time('backwardMs');
  if (kind === 'I') return time('backwardInputMs');
  return Math.max(time('backwardMs') - time('backwardInputMs'), time('backwardWeightMs'));
}

function compute(world: World, node: Node, now: number): void {
  const operation = defined(node.operations[node.next++], 'an operation');
  const { kind, microBatch, layers: part } = operation;
  const callMs = node.end === node.from ? 0 : (timesOf(world, node.name)?.callMs ?? 0);
  const duration = durationOf(world, node, operation) + callMs;
  const { receiving, sending } = costsOf(world, node, operation);
  node.free = now + duration;
  node.owed = sending;
  node.busy += duration + receiving + sending;
  if (part !== undefined) node.final.set(part[0], node.free);
  const isFinal = part === undefined || part[0] === layersOf(world.plan, node.stage)[0];
  if (kind !== 'W' && isFinal) sendOn(world, node, operation);
  if (kind === 'B' || kind === 'W') feed(world, node, microBatch + (world.kept[node.stage] ?? 0), node.free);
}

/** Sends what a pass gives to the nodes of the next stage, or of the stage before, whose samples overlap. */
function sendOn(world: World, node: Node, { kind, microBatch }: Operation): void {
  const direction = directionOf(kind);
  const own = layersOf(world.plan, node.stage);
  const border = kind === 'F' ? own[1] - 1 : own[0] - 1;
  const isHalf = isHalved(world, direction);
  for (const other of world.nodes) {
    if (other.stage !== node.stage + (kind === 'F' ? 1 : -1) || overlap(node, other) === 0) continue;
    const plain = overlap(node, other) * (world.profile.layers[border]?.outputBytes ?? Number.NaN);
    send(world, node.name, other.name, {
      id: `${direction} ${microBatch} ${node.name}->${other.name}`,
      ready: node.free,
      microBatch,
      rank: kind === 'F' ? 1 : 2,
      bytes: isHalf ? plain / 2 : plain,
      codecMs: isHalf ? plain / 2 ** 19 : 0,
    });
  }
}

function speedOf({ links }: Cluster, a: string, b: string): { bandwidth: number; latency: number } {
  const pair = (links.pairs ?? []).find(({ between }) => between.includes(a) && between.includes(b));
  const link = pair ?? links.default;
  return { bandwidth: link.bandwidthMbps, latency: link.latencyMs ?? 0 };
}

function transfer({ cluster, arrival }: World, link: SlowLink, now: number): void {
  link.parcels.sort((a, b) => a.ready - b.ready || a.microBatch - b.microBatch || a.rank - b.rank);
  const parcel = defined(link.parcels.shift(), 'a parcel');
  const { bandwidth, latency } = speedOf(cluster, link.from, link.to);
  const duration = (parcel.bytes * 8) / bandwidth / 1000;
  link.free = now + duration;
  link.busy += duration;
  link.bytes += parcel.bytes;
  arrival.set(parcel.id, link.free + latency + (parcel.codecMs ?? 0));
}

/** The ms of an AllReduce of layers by the devices (eq. 5), and what each pays for its bytes. */
function reduction(world: World, devices: readonly string[], [first, stop]: Layers): { ms: number; costs: number[] } {
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

/** Reduces and updates a stage; when it is done. */
function finish(world: World, stage: number): number {
  const { plan, nodes } = world;
  const { devices, layers } = defined(plan.stages[stage], 'the stage');
  const group = nodes.filter((node) => node.stage === stage);
  const owedMs = devices.map(() => 0);
  let end = 0;
  const buckets = isOverlapped(plan) ? bucketsOf(plan, stage).reverse() : [layers];
  for (const bucket of devices.length > 1 ? buckets : []) {
    const { ms, costs } = reduction(world, devices, bucket);
    const readyMs = group.map((node) => (isOverlapped(plan) ? (node.final.get(bucket[0]) ?? 0) : node.free));
    end = Math.max(end, ...readyMs) + ms;
    for (const [place, cost] of costs.entries()) if (isOverlapped(plan)) owedMs[place] = (owedMs[place] ?? 0) + cost;
  }
  const ends = group.map((node, place) => {
    const times = timesOf(world, node.name)?.updateMs ?? [];
    const update = times.slice(layers[0], layers[1]).reduce((sum, ms) => sum + ms, 0);
    node.busy += update;
    return Math.max(end, node.free + node.owed + (owedMs[place] ?? 0)) + update;
  });
  return Math.max(0, ...ends);
}
