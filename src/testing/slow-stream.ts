// The slow simulator for streams, where rounds overlap: every device's passes in a row over many rounds, straight from
// the plan, until all that happens in some rounds is what happened a few rounds before, later by a constant. Then it
// will do so for ever. Used by tests only.

import { defined } from '../assert.ts';
import type { Cluster, PlanLayout, Profile } from '../cluster/cluster.ts';
import { type Node, type Operation, reduction, updateOf, type World } from './slow-costs.ts';
import { advance, compute, feed, nodesOf, startOf } from './slow-simulator.ts';

/** Rounds that are tried, and the most rounds after which all may come again. */
const [roundCounts, longestCycle] = [[24, 96, 384], 12] as const;

/** Milliseconds from a round to the next in the steady state; undefined if it has not come after hundreds of rounds. */
export function slowPeriodMs(plan: PlanLayout, profile: Profile, cluster: Cluster): number | undefined {
  for (const roundCount of roundCounts) {
    const found = periodIn(timesOfRounds(plan, profile, cluster, roundCount), plan);
    if (found !== undefined) return found;
  }
  return undefined;
}

/** How many rounds a plan's first stage is ahead, at most. */
const roundsAhead = ({ stages, microBatchCount }: PlanLayout): number =>
  Math.ceil((Math.max(...stages.map(({ inFlight }) => inFlight)) - 1) / microBatchCount);

/** By round: when each pass, update and piece was done, by name. */
function timesOfRounds(
  plan: PlanLayout,
  profile: Profile,
  cluster: Cluster,
  roundCount: number,
): readonly ReadonlyMap<string, number>[] {
  const M = plan.microBatchCount;
  const long = { ...plan, batchSize: plan.batchSize * roundCount, microBatchCount: M * roundCount };
  const kept = plan.stages.map(({ inFlight }) => inFlight);
  const nodes = nodesOf(long, (stage) => operationsOf(plan, stage, roundCount)).map((node) =>
    node.operations.length > 0 ? node : { ...node, operations: idleOperations(plan, node.stage, roundCount) },
  );
  const world: World = { plan: long, profile, cluster, kept, nodes, arrival: new Map(), links: new Map() };
  const ends = new Map<string, number>();
  for (const node of nodes) for (let m = 0; m < (kept[node.stage] ?? 0); m++) feed(world, node, m, 0);
  while (advance(world, startOfAny, (_, node, now) => computeAny(world, node, now, ends, M)));
  const rounds = Array.from({ length: roundCount }, () => new Map<string, number>());
  for (const [name, ms] of [...ends, ...world.arrival]) {
    const [what = '', number = '', ...rest] = name.split(' ');
    const round = what === 'U' || what === 'reduced' ? Number(number) : Math.floor(Number(number) / M);
    const place = what === 'U' || what === 'reduced' ? '' : String(Number(number) % M);
    defined(rounds[round], 'a round').set([what, place, ...rest].join(' '), ms);
  }
  return rounds;
}

/** F g + ahead, B g, and so on; a group updates with a round when that is needed, at the latest a round later. */
function operationsOf(plan: PlanLayout, stage: number, roundCount: number): Operation[] {
  const { microBatchCount: M, stages, staleness } = plan;
  const { inFlight = 1, devices = [] } = stages[stage] ?? {};
  const isGroup = devices.length > 1;
  const lag = staleness?.[stage] ?? roundsAhead(plan);
  const operations: Operation[] = [];
  let updated = 0;
  const update = (): void => {
    operations.push({ kind: 'U', microBatch: updated++ });
  };
  for (let g = 1 - inFlight; g < M * roundCount; g++) {
    const next = g + inFlight - 1;
    if (next < M * roundCount) {
      // The round that it is of reads what this update makes.
      while (isGroup && g > 0 && updated < Math.floor(g / M) && Math.floor(next / M) - lag > updated) update();
      operations.push({ kind: 'F', microBatch: next });
    }
    if (g < 0) continue;
    operations.push({ kind: 'B', microBatch: g });
    if ((g + 1) % M !== 0) continue;
    const round = Math.floor(g / M);
    while (isGroup && updated < round) update();
    if (isGroup) operations.push({ kind: 'R', microBatch: round });
    if (!isGroup || lag === 0) update();
  }
  while (updated < roundCount) update();
  return operations;
}

/** Of a device without samples, which has nothing to do meanwhile. */
function idleOperations({ stages }: PlanLayout, stage: number, roundCount: number): Operation[] {
  const isGroup = (stages[stage]?.devices.length ?? 0) > 1;
  return Array.from({ length: roundCount }, (_, round): Operation[] => [
    ...(isGroup ? [{ kind: 'R', microBatch: round } as const] : []),
    { kind: 'U', microBatch: round },
  ]).flat();
}

function startOfAny(world: World, node: Node): number {
  const operation = node.operations[node.next];
  if (operation?.kind === 'R') return node.free;
  if (operation?.kind !== 'U') return startOf(world, node);
  const { devices, layers } = defined(world.plan.stages[node.stage], 'a stage');
  if (devices.length === 1) return node.free + node.owed;
  const cost = reduction(world, devices, layers).costs[devices.indexOf(node.name)] ?? 0;
  const reduced = world.arrival.get(`reduced ${operation.microBatch} ${node.stage}`) ?? Number.POSITIVE_INFINITY;
  return Math.max(node.free + node.owed + cost, reduced);
}

function computeAny(world: World, node: Node, now: number, ends: Map<string, number>, M: number): void {
  const { kind, microBatch } = defined(node.operations[node.next], 'an operation');
  if (kind === 'R') {
    node.next++;
    ends.set(`R ${microBatch * M} ${node.name}`, now);
    reduceIfAll(world, node, microBatch, ends, M);
    return;
  }
  if (kind === 'U') {
    node.next++;
    node.free = now + updateOf(world, node);
    node.owed = 0;
  } else compute(world, node, now);
  ends.set(`${kind} ${microBatch} ${node.name}`, node.free);
}

/** The AllReduce of a round, when its last member has come and that of the round before is done. */
function reduceIfAll(world: World, node: Node, round: number, ends: Map<string, number>, M: number): void {
  const { devices, layers } = defined(world.plan.stages[node.stage], 'a stage');
  const ready = devices.map((name) => ends.get(`R ${round * M} ${name}`) ?? Number.POSITIVE_INFINITY);
  if (!ready.every(Number.isFinite)) return;
  const before = world.arrival.get(`reduced ${round - 1} ${node.stage}`) ?? 0;
  const { ms } = reduction(world, devices, layers);
  world.arrival.set(`reduced ${round} ${node.stage}`, Math.max(before, ...ready) + ms);
}

/** The constant by which all of the last rounds before draining is later than as many rounds before, if it is one. */
function periodIn(rounds: readonly ReadonlyMap<string, number>[], plan: PlanLayout): number | undefined {
  const memory = roundsAhead(plan) + 4;
  const last = rounds.length - memory;
  for (let cycle = 1; cycle <= longestCycle && last - memory - cycle > 0; cycle++) {
    const laters = new Set<number>();
    for (let round = last - memory - cycle; round <= last; round++)
      for (const [name, ms] of rounds[round] ?? []) {
        const before = rounds[round - cycle]?.get(name);
        if (before !== undefined) laters.add(ms - before);
      }
    const [later] = laters;
    if (laters.size === 1 && later !== undefined) return later / cycle;
  }
  return undefined;
}
