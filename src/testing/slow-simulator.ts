// A second simulator, slow and obvious, straight from the plan and the rules of the simulated world (planner.md),
// sharing no code with the first: it has no Program, no heap and no prefix sums. Used by tests only.

import { defined } from '../assert.ts';
import type { Cluster, PlanLayout, Profile } from '../cluster/cluster.ts';
import {
  costsOf,
  directionOf,
  durationOf,
  isHalved,
  isLast,
  type Layers,
  layersOf,
  type Node,
  type Operation,
  overlap,
  type Parcel,
  reduction,
  type SlowLink,
  speedOf,
  timesOf,
  updateOf,
  type World,
} from './slow-costs.ts';

/** The round's length in ms, the computing time of each device in ms, and bytes and ms of each link. */
export interface SlowRound {
  readonly round: number;
  readonly busy: Readonly<Record<string, number>>;
  readonly links: Readonly<Record<string, readonly [number, number]>>;
}

/** Simulates one round of the plan. */
export function slowRound(plan: PlanLayout, profile: Profile, cluster: Cluster): SlowRound {
  const kept = keptOf(plan);
  const nodes = nodesOf(plan, (stage) => operationsOf(plan, stage, kept[stage] ?? 0));
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

/** The devices, with what those that have samples do. */
export function nodesOf(plan: PlanLayout, operationsAt: (stage: number) => readonly Operation[]): Node[] {
  return plan.stages.flatMap(({ devices, samples }, stage) =>
    devices.map((name, place) => {
      const from = samples.slice(0, place).reduce((sum, share) => sum + share, 0);
      const end = from + (samples[place] ?? 0);
      const operations = end > from ? operationsAt(stage) : [];
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

/** Sends the node its share of a micro-batch's inputs, labels or both. */
export function feed(world: World, node: Node, microBatch: number, ready: number): void {
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

export function startOf(world: World, node: Node): number {
  const operation = node.operations[node.next];
  if (operation === undefined) return never;
  const paid = node.free + node.owed + costsOf(world, node, operation).receiving;
  return Math.max(paid, ...needs(world, node, operation).map((id) => world.arrival.get(id) ?? never));
}

/** The next event, a pass or a transfer; false at the end. */
export function advance(
  world: World,
  startOfNode: (world: World, node: Node) => number = startOf,
  computeAt: (world: World, node: Node, now: number) => void = compute,
): boolean {
  const starts = world.nodes.map((node) => startOfNode(world, node));
  const now = Math.min(...starts);
  const links = [...world.links.values()];
  const departures = links.map(({ free, parcels }) => Math.min(...parcels.map(({ ready }) => Math.max(free, ready))));
  const linkNow = Math.min(...departures);
  if (now === never && linkNow === never) return false;
  if (now <= linkNow) computeAt(world, defined(world.nodes[starts.indexOf(now)], 'a node'), now);
  else transfer(world, defined(links[departures.indexOf(linkNow)], 'a link'), linkNow);
  return true;
}

export function compute(world: World, node: Node, now: number): void {
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
    const update = updateOf(world, node);
    node.busy += update;
    return Math.max(end, node.free + node.owed + (owedMs[place] ?? 0)) + update;
  });
  return Math.max(0, ...ends);
}
