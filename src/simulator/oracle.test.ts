// A second simulator, slow and obvious, straight from the plan and the rules of the simulated world (planner.md),
// sharing no code with the first: it has no Program, no heap and no prefix sums. Both must agree on random plans.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, DeviceTimes, Plan, PlanLayout, Profile } from '../cluster/cluster.ts';
import { plan } from '../planner/plan.ts';
import { plannerNames } from '../planner/planners.ts';
import { program } from '../schedule/generate.ts';
import {
  randomCluster,
  randomInstance,
  randomPlan,
  randomProfile,
  withRandomCompression,
} from '../testing/random-plans.ts';
import { simulate } from './simulate.ts';

interface Piece {
  readonly id: string;
  readonly ready: number;
  readonly microBatch: number;
  readonly rank: number;
  readonly bytes: number;
  /** For which it is under way besides, to be encoded. */
  readonly codecMs?: number;
}

/** F forward, B backward, I and W its halves. */
interface Operation {
  readonly kind: 'F' | 'B' | 'I' | 'W';
  readonly microBatch: number;
  /** Of the last micro-batch, where its gradients are reduced in buckets. */
  readonly layers?: readonly [number, number];
}

interface Node {
  readonly name: string;
  readonly stage: number;
  readonly from: number;
  readonly end: number;
  readonly operations: Operation[];
  next: number;
  free: number;
  /** What it has sent since then costs it. */
  owed: number;
  busy: number;
  /** When the gradients of a bucket are final, by its first layer. */
  readonly final: Map<number, number>;
}

function timeOf(
  profile: Profile,
  cluster: Cluster,
  name: string,
  key: 'forwardMs' | 'backwardMs' | 'backwardInputMs' | 'backwardWeightMs',
  layers: readonly [number, number],
  samples: number,
): number {
  const device = timesOf(profile, cluster, name);
  if (samples === 0 || (key === 'backwardWeightMs' && device?.[key] === undefined)) return 0;
  const times = device?.[key] ?? device?.backwardMs.map((row) => row.map((ms) => ms / 2)) ?? [];
  const sizes = profile.batchSizes;
  let total = 0;
  for (let layer = layers[0]; layer < layers[1]; layer++) {
    const points = sizes.map((size, index) => [size, times[index]?.[layer] ?? Number.NaN] as const);
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

function timesOf(profile: Profile, cluster: Cluster, name: string): DeviceTimes | undefined {
  const kind = cluster.devices.find((device) => device.name === name)?.kind ?? '';
  return profile.devices[name] ?? profile.devices[kind];
}

/** What bytes cost a device that sends or receives them, on the simulator's grid. */
function costOf(profile: Profile, cluster: Cluster, name: string, bytes: number, isReduced = false): number {
  const { handlingMsPerMiB = 0, reducingMsPerMiB } = timesOf(profile, cluster, name) ?? {};
  const perMiB = isReduced && reducingMsPerMiB !== undefined ? reducingMsPerMiB : handlingMsPerMiB;
  return Math.round((perMiB / 2 ** 20) * bytes * 2 ** 30) / 2 ** 30;
}

function speedOf(cluster: Cluster, a: string, b: string): { bandwidth: number; latency: number } {
  const pair = (cluster.links.pairs ?? []).find(({ between }) => between.includes(a) && between.includes(b));
  const link = pair ?? cluster.links.default;
  return { bandwidth: link.bandwidthMbps, latency: link.latencyMs ?? 0 };
}

/** The round's length, the computing time of each device, and bytes and time of each link. */
function slowRound(
  plan: PlanLayout,
  profile: Profile,
  cluster: Cluster,
): { round: number; busy: Record<string, number>; links: Record<string, [number, number]> } {
  const M = plan.microBatchCount;
  const P = plan.stages.length;
  const isSplit = plan.schedule.startsWith('zb-h1');
  const isOverlapped = plan.schedule.endsWith('-overlap');
  const K = plan.stages.map((stage, p) => {
    if (plan.schedule === 'gpipe') return M;
    // The first stage owes nobody an input gradient, and puts nothing off.
    return Math.min(M, stage.inFlight, isSplit && p === 0 ? 2 * P - 1 : M);
  });
  const bucketsOf = (p: number): [number, number][] => {
    const [first, end] = plan.stages[p]?.layers ?? [0, 0];
    const quarters = [1, 2, 3].map((quarter) => first + Math.round((quarter * (end - first)) / 4));
    const even = end - first >= 4 ? quarters : Array.from({ length: end - first - 1 }, (_, index) => first + 1 + index);
    const borders = [first, ...(plan.stages[p]?.buckets ?? even), end];
    return borders.slice(1).map((border, index): [number, number] => [borders[index] ?? 0, border]);
  };
  const nodes: Node[] = plan.stages.flatMap((stage, index) => {
    const k = isSplit ? Math.min(K[index] ?? 0, 2 * (P - index) - 1) : (K[index] ?? 0);
    const halves = isSplit && index > 0;
    const operations: Operation[] = [];
    let weights = 0;
    for (let m = 0; m < k; m++) operations.push({ kind: 'F', microBatch: m });
    for (let m = 0; m < M; m++) {
      operations.push({ kind: halves ? 'I' : 'B', microBatch: m });
      // As late as it can be done with no more than K micro-batches kept when the next forward is done.
      if (halves && m + 1 - weights > (K[index] ?? 0) - k) operations.push({ kind: 'W', microBatch: weights++ });
      if (m + k < M) operations.push({ kind: 'F', microBatch: m + k });
    }
    while (halves && weights < M) operations.push({ kind: 'W', microBatch: weights++ });
    const last = operations.at(-1) as Operation;
    if (isOverlapped && stage.devices.length > 1) {
      operations.pop();
      for (const layers of bucketsOf(index).reverse()) operations.push({ ...last, layers });
    }
    return stage.devices.map((name, place) => {
      const from = stage.samples.slice(0, place).reduce((sum, share) => sum + share, 0);
      const end = from + (stage.samples[place] ?? 0);
      return {
        name,
        stage: index,
        from,
        end,
        operations: end > from ? operations : [],
        next: 0,
        free: 0,
        owed: 0,
        busy: 0,
        final: new Map(),
      };
    });
  });
  const arrival = new Map<string, number>();
  const queues = new Map<
    string,
    { from: string; to: string; pieces: Piece[]; free: number; bytes: number; busy: number }
  >();
  const send = (from: string | undefined, to: string, piece: Piece): void => {
    if (from === undefined || from === to) arrival.set(piece.id, piece.ready);
    else {
      const link = queues.get(`${from}->${to}`) ?? { from, to, pieces: [], free: 0, bytes: 0, busy: 0 };
      queues.set(`${from}->${to}`, link);
      link.pieces.push(piece);
    }
  };
  const overlap = (a: Node, b: Node): number => Math.max(0, Math.min(a.end, b.end) - Math.max(a.from, b.from));
  const last = plan.stages.length - 1;
  const feed = (node: Node, m: number, ready: number): void => {
    const samples = node.end - node.from;
    if (m >= M || samples === 0) return;
    if (node.stage === 0)
      send(cluster.dataDevice, node.name, {
        id: `input ${m} ${node.name}`,
        ready,
        microBatch: m,
        rank: 0,
        bytes: samples * profile.inputBytes,
      });
    if (node.stage === last)
      send(cluster.dataDevice, node.name, {
        id: `label ${m} ${node.name}`,
        ready,
        microBatch: m,
        rank: 3,
        bytes: samples * profile.labelBytes,
      });
  };
  for (const node of nodes) for (let m = 0; m < (K[node.stage] ?? 0); m++) feed(node, m, 0);

  /** What crosses the border to the stage before (−1) or behind (1). */
  const borderBytes = (node: Node, side: 1 | -1): number => {
    const [first, end] = plan.stages[node.stage]?.layers ?? [0, 0];
    const outputBytes = profile.layers[side === -1 ? first - 1 : end - 1]?.outputBytes ?? 0;
    return nodes
      .filter(({ stage }) => stage === node.stage + side)
      .reduce((sum, neighbour) => sum + overlap(node, neighbour) * outputBytes, 0);
  };
  const { dataDevice } = cluster;
  const fedBytes = (node: Node): number =>
    (node.end - node.from) *
    ((node.stage === 0 ? profile.inputBytes : 0) + (node.stage === last ? profile.labelBytes : 0));
  const halved = { F: plan.compression?.activation, B: plan.compression?.gradient };
  const receivedBytes = (node: Node, kind: 'F' | 'B'): number => {
    const own = borderBytes(node, kind === 'F' ? -1 : 1) * (halved[kind] === undefined ? 1 : 0.5);
    return kind === 'B' || dataDevice === undefined || node.name === dataDevice ? own : own + fedBytes(node);
  };
  const sentBytes = (node: Node, kind: 'F' | 'B'): number => {
    const own = borderBytes(node, kind === 'F' ? 1 : -1) * (halved[kind] === undefined ? 1 : 0.5);
    if (kind === 'B' || node.name !== dataDevice) return own;
    return nodes.filter(({ name }) => name !== dataDevice).reduce((sum, other) => sum + fedBytes(other), own);
  };
  const framesAcross = (node: Node, side: 1 | -1): number =>
    nodes.filter((other) => other.stage === node.stage + side && overlap(node, other) > 0).length;
  const fedFrames = (node: Node): number => (node.stage === 0 ? 1 : 0) + (node.stage === last ? 1 : 0);
  const receivedFrames = (node: Node, kind: 'F' | 'B'): number =>
    kind === 'F' ? framesAcross(node, -1) + fedFrames(node) : framesAcross(node, 1);
  const sentFrames = (node: Node, kind: 'F' | 'B'): number => {
    const own = framesAcross(node, kind === 'F' ? 1 : -1);
    if (kind === 'B' || node.name !== dataDevice) return own;
    const served = nodes.filter(({ name, from, end }) => name !== dataDevice && end > from);
    return served.reduce((sum, other) => sum + fedFrames(other), own);
  };
  /** What a device pays before an operation for what that is given, and after it for what it sends. */
  const costsOf = (node: Node, { kind, layers: part }: Operation): { receiving: number; sending: number } => {
    const cost = (bytes: number): number => costOf(profile, cluster, node.name, bytes);
    const direction = kind === 'F' ? 'F' : 'B';
    const own = plan.stages[node.stage]?.layers ?? [0, 0];
    const { passMs = 0, frameMs = 0 } = timesOf(profile, cluster, node.name) ?? {};
    if (kind === 'W') return { receiving: 0, sending: part === undefined || part[0] === own[0] ? passMs : 0 };
    return {
      receiving:
        part === undefined || part[1] === own[1]
          ? cost(receivedBytes(node, direction)) + receivedFrames(node, direction) * frameMs
          : 0,
      sending:
        part === undefined || part[0] === own[0]
          ? cost(sentBytes(node, direction)) + sentFrames(node, direction) * frameMs + passMs
          : 0,
    };
  };

  const needs = (node: Node, { kind, microBatch }: Operation): string[] => {
    const ids: string[] = [];
    if (kind === 'F' && node.stage === 0) ids.push(`input ${microBatch} ${node.name}`);
    if (kind === 'F' && node.stage === last) ids.push(`label ${microBatch} ${node.name}`);
    const neighbour = node.stage + (kind === 'F' ? -1 : 1);
    const direction = kind === 'F' ? 'F' : 'B';
    for (const other of kind === 'W' ? [] : nodes)
      if (other.stage === neighbour && overlap(node, other) > 0)
        ids.push(`${direction} ${microBatch} ${other.name}->${node.name}`);
    return ids;
  };
  const startOf = (node: Node): number => {
    const operation = node.operations[node.next];
    if (operation === undefined) return Number.POSITIVE_INFINITY;
    const paid = node.free + node.owed + costsOf(node, operation).receiving;
    return Math.max(paid, ...needs(node, operation).map((id) => arrival.get(id) ?? Number.POSITIVE_INFINITY));
  };

  for (;;) {
    let now = Number.POSITIVE_INFINITY;
    for (const node of nodes) now = Math.min(now, startOf(node));
    let linkNow = Number.POSITIVE_INFINITY;
    for (const link of queues.values())
      for (const piece of link.pieces) linkNow = Math.min(linkNow, Math.max(link.free, piece.ready));
    if (now === Number.POSITIVE_INFINITY && linkNow === Number.POSITIVE_INFINITY) break;
    if (now <= linkNow) {
      const node = nodes.find((each) => startOf(each) === now) as Node;
      const operation = node.operations[node.next++] as Operation;
      const { kind, microBatch, layers: part } = operation;
      const own: readonly [number, number] = plan.stages[node.stage]?.layers ?? [0, 0];
      const time = (key: 'forwardMs' | 'backwardMs' | 'backwardInputMs' | 'backwardWeightMs'): number =>
        timeOf(profile, cluster, node.name, key, part ?? own, node.end - node.from);
      const callMs = node.end === node.from ? 0 : (timesOf(profile, cluster, node.name)?.callMs ?? 0);
      const durations = {
        F: () => time('forwardMs'),
        B: () => time('backwardMs'),
        I: () => time('backwardInputMs'),
        W: () => Math.max(time('backwardMs') - time('backwardInputMs'), time('backwardWeightMs')),
      };
      const duration = durations[kind]() + callMs;
      const { receiving, sending } = costsOf(node, operation);
      node.free = now + duration;
      node.owed = sending;
      node.busy += duration + receiving + sending;
      if (part !== undefined) node.final.set(part[0], node.free);
      const isLastPart = part === undefined || part[0] === own[0];
      const direction = kind === 'F' ? 'F' : 'B';
      const border = kind === 'F' ? own[1] - 1 : own[0] - 1;
      for (const other of kind === 'W' || !isLastPart ? [] : nodes) {
        if (other.stage !== node.stage + (kind === 'F' ? 1 : -1) || overlap(node, other) === 0) continue;
        const plain = overlap(node, other) * (profile.layers[border]?.outputBytes ?? Number.NaN);
        const isHalf = (kind === 'F' ? plan.compression?.activation : plan.compression?.gradient) !== undefined;
        send(node.name, other.name, {
          id: `${direction} ${microBatch} ${node.name}->${other.name}`,
          ready: node.free,
          microBatch,
          rank: kind === 'F' ? 1 : 2,
          bytes: isHalf ? plain / 2 : plain,
          codecMs: isHalf ? plain / 2 ** 19 : 0,
        });
      }
      if (kind === 'B' || kind === 'W') feed(node, microBatch + (K[node.stage] ?? 0), node.free);
    } else {
      const link = [...queues.values()].find((each) =>
        each.pieces.some((piece) => Math.max(each.free, piece.ready) === linkNow),
      );
      assert.ok(link);
      link.pieces.sort((a, b) => a.ready - b.ready || a.microBatch - b.microBatch || a.rank - b.rank);
      const piece = link.pieces.shift() as Piece;
      const { bandwidth, latency } = speedOf(cluster, link.from, link.to);
      const duration = (piece.bytes * 8) / bandwidth / 1000;
      link.free = linkNow + duration;
      link.busy += duration;
      link.bytes += piece.bytes;
      arrival.set(piece.id, link.free + latency + (piece.codecMs ?? 0));
    }
  }

  let round = 0;
  for (const [index, { devices, layers }] of plan.stages.entries()) {
    const group = nodes.filter((node) => node.stage === index);
    let end = 0;
    const overlappedMs = new Map<string, number>();
    const reduce = (readyMs: number, [first, stop]: readonly [number, number]): void => {
      const speeds = devices.flatMap((a, place) => devices.slice(place + 1).map((b) => speedOf(cluster, a, b)));
      const weights = profile.layers.slice(first, stop).reduce((sum, layer) => sum + layer.weightBytes, 0);
      const bandwidth = Math.min(...speeds.map((speed) => speed.bandwidth));
      // The only duration of the random plans that is not on the simulator's grid already.
      end = Math.max(end, readyMs);
      const bytes = (2 * (devices.length - 1) * weights) / devices.length;
      const encoding = plan.compression?.allReduce;
      const travelMs = (bytes * 8 * { none: 1, float16: 0.5, int8: 0.25 }[encoding ?? 'none']) / (bandwidth * 1000);
      const sentBytes = bytes * { none: 1, float16: 0.5, int8: 0.25 }[encoding ?? 'none'];
      const costs = devices.map((name) => costOf(profile, cluster, name, 2 * sentBytes, true));
      for (const [place, name] of devices.entries())
        overlappedMs.set(name, (overlappedMs.get(name) ?? 0) + (isOverlapped ? (costs[place] ?? 0) : 0));
      end += Math.round(Math.max(travelMs, encoding === undefined ? 0 : bytes / 2 ** 19, ...costs) * 2 ** 30) / 2 ** 30;
      end += 2 * (devices.length - 1) * Math.max(...speeds.map((speed) => speed.latency));
    };
    if (devices.length > 1 && isOverlapped)
      for (const bucket of bucketsOf(index).reverse())
        reduce(Math.max(...group.map((node) => node.final.get(bucket[0]) ?? 0)), bucket);
    else if (devices.length > 1) reduce(Math.max(...group.map((node) => node.free)), layers);
    for (const node of nodes.filter((each) => each.stage === index)) {
      const kind = cluster.devices.find((device) => device.name === node.name)?.kind ?? '';
      const update = ((profile.devices[node.name] ?? profile.devices[kind])?.updateMs ?? [])
        .slice(layers[0], layers[1])
        .reduce((sum, ms) => sum + ms, 0);
      node.busy += update;
      round = Math.max(round, Math.max(end, node.free + node.owed + (overlappedMs.get(node.name) ?? 0)) + update);
    }
  }
  return {
    round,
    busy: Object.fromEntries(nodes.map((node) => [node.name, node.busy])),
    links: Object.fromEntries([...queues].map(([name, link]) => [name, [link.bytes, link.busy]])),
  };
}

test('the simulator equals the slow one exactly on 1000 random plans', () => {
  for (let seed = 1000; seed < 2000; seed++) {
    const plan = seed % 3 === 0 ? withRandomCompression(randomPlan(seed), seed) : randomPlan(seed);
    const cluster = randomCluster(seed, plan);
    const profile = randomProfile(seed, plan, cluster);
    const slow = slowRound(plan, profile, cluster);
    const fast = simulate(program(plan), plan, profile, cluster);
    assert.equal(fast.roundMs, slow.round, `seed ${seed}`);
    for (const [name, busy] of Object.entries(slow.busy))
      assert.equal(fast.devices[name]?.busyMs, busy, `seed ${seed}: busy time of ${name}`);
    assert.deepEqual(Object.keys(fast.links).sort(), Object.keys(slow.links).sort(), `seed ${seed}: links`);
    for (const [name, [bytes, busy]] of Object.entries(slow.links)) {
      assert.equal(fast.links[name]?.bytes, bytes, `seed ${seed}: bytes of ${name}`);
      assert.equal(fast.links[name]?.busyMs, busy, `seed ${seed}: time of ${name}`);
    }
  }
});

test('and on the plans of every planner for 60 problems with real-valued times, to a millionth', () => {
  for (let seed = 0; seed < 60; seed++) {
    const { profile, cluster } = randomInstance(seed, { deviceCount: 1 + (seed % 4), layerCount: 4 + (seed % 5) });
    for (const planner of plannerNames.filter((name) => name !== 'hetpipe' && name !== 'exhaustive')) {
      let found: Plan;
      try {
        found = plan({
          profile,
          cluster,
          batchSize: 24,
          microBatchSize: [2, 3, 4, 24][seed % 4] ?? 1,
          optimizerState: 0,
          planner,
        });
      } catch (error) {
        assert.match(String(error), /fits nowhere|does not look at memory/);
        continue;
      }
      const slow = slowRound(found, profile, cluster);
      const fastMs = found.predicted.roundMs;
      assert.ok(
        Math.abs(fastMs - slow.round) < 1e-6 * slow.round,
        `seed ${seed}, ${planner}: ${fastMs} ms, the slow one ${slow.round} ms`,
      );
    }
  }
});
