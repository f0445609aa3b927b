// Which layers' state travels between which devices so that the devices of a new plan have what they need: only layers
// that a device does not hold, all pairs at once (Asteroid §3.4, "concurrent layer migration"). Several holders of a
// layer share the work.
//
// FTPipeHD's Algorithm 1 is the special case of single-device stages whose copies go to the next worker (chain
// replication): holders are the layer's owner and the worker after it; if both are gone, nobody (global replication:
// the central node sends it, `from: null`). Its arithmetic on worker indices follows from these sets when one index is
// removed; the tests compare the two.

import type { Cluster, PlanLayout, Profile } from '../../cluster/cluster.ts';
import { links } from '../../cluster/links.ts';
import type { OptimizerState } from '../../cluster/memory.ts';

/** What a device gets of layers [first, end). */
export interface Delivery {
  readonly layers: readonly [first: number, end: number];
  readonly to: string;
}

/** Layers [first, end) travel to a device. */
export interface Move extends Delivery {
  /** null: from the coordinator's checkpoint, since no device holds them. */
  readonly from: string | null;
}

export interface MovesInput {
  /**
   * By layer: the devices that hold its state at the round to return to. If empty, only the coordinator's checkpoint
   * does.
   */
  readonly holders: readonly (readonly string[])[];
  /** The plan whose devices need the layers. */
  readonly target: PlanLayout;
  /** Bytes of a layer's state. Default: every layer counts the same. */
  readonly bytes?: (layer: number) => number;
  /** Gives the links' bandwidths; if absent, all are equal. */
  readonly cluster?: Cluster;
}

/**
 * The moves after which every device of the target has the layers of its stage: each missing one exactly once, nothing
 * else. Several holders each give a contiguous part, sized so that all of them are busy for the same time; ties go to
 * the ones in neighbouring stages of the target, then to the first holder named. Sorted by stage, device and layer;
 * deterministic.
 */
export function moves({ holders, target, bytes = () => 1, cluster }: MovesInput): Move[] {
  const found: Move[] = [];
  const senders = new Senders(target, cluster);
  for (const [stage, { layers, devices }] of target.stages.entries()) {
    for (const to of devices) {
      for (let first = layers[0]; first < layers[1]; ) {
        const from = holders[first] ?? [];
        const key = keyOf(from);
        let end = first + 1;
        while (end < layers[1] && keyOf(holders[end] ?? []) === key) end++;
        if (!from.includes(to)) found.push(...senders.share(from, { to, stage, layers: [first, end], bytes }));
        first = end;
      }
    }
  }
  return merged(found);
}

function keyOf(devices: readonly string[]): string {
  return JSON.stringify(devices);
}

/** A run of layers with the same holders, needed by one device. */
interface Run {
  readonly to: string;
  /** The stage of the target that contains `to`. */
  readonly stage: number;
  readonly layers: readonly [first: number, end: number];
  readonly bytes: (layer: number) => number;
}

/**
 * The sending time already assigned to each device. A device sends to several at once over one interface, so its time
 * is the sum.
 */
class Senders {
  readonly #busyMs = new Map<string, number>();
  readonly #stages: ReadonlyMap<string, number>;
  readonly #byteMs: (from: string, to: string) => number;

  constructor({ stages }: PlanLayout, cluster: Cluster | undefined) {
    this.#stages = new Map(stages.flatMap(({ devices }, stage) => devices.map((device) => [device, stage] as const)));
    const table = cluster === undefined ? undefined : links(cluster);
    this.#byteMs = (from, to) =>
      table === undefined ? 1 : table.occupancyMs(table.deviceIndex(from), table.deviceIndex(to), 1);
  }

  /** Shares a run among its holders. */
  share(holders: readonly string[], { to, stage, layers: [first, end], bytes }: Run): Move[] {
    if (holders.length === 0) return [{ layers: [first, end], from: null, to }];
    const distance = (device: string): number =>
      Math.abs((this.#stages.get(device) ?? Number.MAX_SAFE_INTEGER) - stage);
    const sources = [...holders]
      .sort((a, b) => this.#busy(a) - this.#busy(b) || distance(a) - distance(b))
      .map((name) => ({ name, busyMs: this.#busy(name), byteMs: this.#byteMs(name, to) }));
    let total = 0;
    for (let layer = first; layer < end; layer++) total += bytes(layer);
    const levelMs = levelOf(sources, total);
    const active = total === 0 ? sources.slice(0, 1) : sources.filter(({ busyMs }) => busyMs < levelMs);
    const found: Move[] = [];
    let layer = first;
    let [sent, due] = [0, 0];
    for (const [index, { name, busyMs, byteMs }] of active.entries()) {
      const [start, before] = [layer, sent];
      due += (levelMs - busyMs) / byteMs;
      // A layer on the border between two parts goes to the preferred source; the last source takes the remainder.
      while (layer < end && (sent < due || index === active.length - 1)) sent += bytes(layer++);
      if (layer === start) continue;
      this.#busyMs.set(name, busyMs + (sent - before) * byteMs);
      found.push({ layers: [start, layer], from: name, to });
    }
    return found;
  }

  #busy(device: string): number {
    return this.#busyMs.get(device) ?? 0;
  }
}

/**
 * The time at which all sources are done if they send `bytes` together and none idles: the level with Σ max(0, (level −
 * busy) / byteMs) = bytes. Sources are sorted by busyMs.
 */
function levelOf(sources: readonly { readonly busyMs: number; readonly byteMs: number }[], bytes: number): number {
  let rate = 0;
  let weighted = 0;
  let level = 0;
  for (const { busyMs, byteMs } of sources) {
    if (rate > 0 && level <= busyMs) break;
    rate += 1 / byteMs;
    weighted += busyMs / byteMs;
    level = (bytes + weighted) / rate;
  }
  return level;
}

/** Merges neighbouring ranges of the same pair into one move. */
function merged(all: readonly Move[]): Move[] {
  const result: Move[] = [];
  for (const move of all) {
    const last = result.at(-1);
    if (last !== undefined && last.from === move.from && last.to === move.to && last.layers[1] === move.layers[0])
      result[result.length - 1] = { ...last, layers: [last.layers[0], move.layers[1]] };
    else result.push(move);
  }
  return result;
}

/**
 * The layers that devices of the target have, or get by these moves, from a copy: copies are without frozen weights,
 * which come from the coordinator. `owners`: by layer, the devices that hold all of its state.
 */
export function fromCopies(
  { stages }: PlanLayout,
  travels: readonly Move[],
  owners: readonly (readonly string[])[],
): Delivery[] {
  const found: { layers: readonly [number, number]; to: string }[] = [];
  for (const { layers, devices } of stages) {
    for (const to of devices) {
      const own = travels.filter((move) => move.to === to);
      for (let layer = layers[0]; layer < layers[1]; layer++) {
        const move = own.find((candidate) => candidate.layers[0] <= layer && layer < candidate.layers[1]);
        const from = move === undefined ? to : move.from;
        if (from === null || owners[layer]?.includes(from) === true) continue;
        const last = found.at(-1);
        if (last?.to === to && last.layers[1] === layer) last.layers = [last.layers[0], layer + 1];
        else found.push({ layers: [layer, layer + 1], to });
      }
    }
  }
  return found;
}

/** Bytes of a layer's state: its weights, and the optimizer's copies of those that are trained. */
export function stateBytes({ layers }: Profile, layer: number, optimizerState: OptimizerState): number {
  const { weightBytes = 0, frozenBytes = 0 } = layers[layer] ?? {};
  return weightBytes + optimizerState * (weightBytes - frozenBytes);
}

/** The bytes that a link carries. `from: null`: from the coordinator. */
export interface LinkLoad {
  readonly from: string | null;
  readonly to: string;
  readonly bytes: number;
}

/** The moves' bytes by link, in the order of the first move of each. */
export function linkLoads(all: readonly Move[], bytes: (layer: number, from: string | null) => number): LinkLoad[] {
  const loads = new Map<string, { from: string | null; to: string; bytes: number }>();
  for (const { layers, from, to } of all) {
    const key = JSON.stringify([from, to]);
    const load = loads.get(key) ?? { from, to, bytes: 0 };
    for (let layer = layers[0]; layer < layers[1]; layer++) load.bytes += bytes(layer, from);
    loads.set(key, load);
  }
  return [...loads.values()];
}

/**
 * Milliseconds until the last of these loads has arrived, all links at once: bytes over bandwidth plus latency. The
 * coordinator's are sent by the cluster's dataDevice (nothing travels to itself), or over the default link if the
 * cluster names none.
 */
export function transferTimeMs(loads: readonly LinkLoad[], cluster: Cluster): number {
  const table = links(cluster);
  const { bandwidthMbps, latencyMs = 0 } = cluster.links.default;
  return loads.reduce((latest, { from, to, bytes }) => {
    const sender = from ?? cluster.dataDevice;
    if (sender === to || bytes === 0) return latest;
    if (sender === undefined) return Math.max(latest, (bytes * 8) / (bandwidthMbps * 1000) + latencyMs);
    const [a, b] = [table.deviceIndex(sender), table.deviceIndex(to)];
    return Math.max(latest, table.occupancyMs(a, b, bytes) + table.latencyMs(a, b));
  }, 0);
}
