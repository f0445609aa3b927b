// Layer-wise light re-planning (Asteroid §3.4, module 3): a plan for the remaining devices, in milliseconds, close to
// the plan before.
//
// - A stage that keeps a device keeps its layers: the lost samples go to its other devices by capacity, within their
// memory, and no weights move.
//
// - If a whole stage is lost, its layers go to the remaining stages, by capacity; these keep their devices and their
// order, and only the cuts between them move. Other orders and groupings of devices are not considered: heavy.ts does
// that.

import type { Plan, PlanLayout, StagePlan } from '../../cluster/cluster.ts';
import { bytesInMiB } from '../../cluster/memory.ts';
import { InputError } from '../../errors.ts';
import { effectiveInFlight } from '../../schedule/pace.ts';
import { schedules } from '../../schedule/schedules.ts';
import { Evaluator } from '../evaluate.ts';
import { keptByDevices } from '../layout.ts';
import { largestShare, leastMemoryBytes } from '../memory.ts';
import { straightPartition } from '../partition.ts';
import { predictedPlan } from '../predict.ts';
import {
  type PlannerDevice,
  type Problem,
  type StageLayout,
  stageDemand,
  withMicroBatchSize,
  withStages,
} from '../problem.ts';
import { kindsOf, type Group as StageGroup, StageTable } from '../stages.ts';
import { backups, holdersAfter } from './backups.ts';
import { type CutCosts, chooseCuts, cutCosts, type Group } from './cuts.ts';
import { stateBytes } from './moves.ts';
import { type ReplanInput, remainingProblem, type Survivors, survivingStages } from './survivors.ts';

/** A stage of the new plan; devices are places. */
interface Settled extends StageLayout {
  readonly inFlight: number;
}

/**
 * The plan on the remaining devices, with the plan's micro-batches. `predicted` is the simulator's, and zero if there
 * is no profile. Deterministic. Throws InputError, naming the device that lacks the most memory, if the remaining
 * devices cannot hold the model in their order.
 */
export function lightReplan(input: ReplanInput): Plan {
  const { plan, lost } = input;
  const survivors = survivingStages(plan, lost);
  const problem = withStages(remainingProblem(input), survivors.length);
  const kept = survivors.length === plan.stages.length ? keptCuts(input, problem, survivors) : undefined;
  const { schedule, stages } = kept ?? movedCuts(input, problem, survivors);
  return planned(input, problem, schedule, stages);
}

/** The plan with unchanged cuts; stages that lost a device share their samples anew. Undefined if they do not fit. */
function keptCuts(
  { plan, lost }: ReplanInput,
  problem: Problem,
  survivors: readonly Survivors[],
): { readonly schedule: string; readonly stages: readonly StagePlan[] } | undefined {
  const table = new StageTable(problem);
  const stages: StagePlan[] = [];
  for (const { stage, devices } of survivors) {
    const { savedBytes: _, ...before } = plan.stages[stage] as StagePlan;
    const ahead = effectiveInFlight(plan, stage);
    const group = groupOf(problem, devices);
    let samples: readonly number[] = before.samples;
    if (before.devices.some((device) => lost.includes(device))) {
      table.setLayers(...before.layers);
      const shared = table.stage(group, ahead)?.shares;
      if (shared === undefined) return undefined;
      // A device without samples stays as a spare that holds the weights: no device has to leave.
      samples = group.places.map((place) => shared.samples[shared.devices.indexOf(place)] ?? 0);
    }
    const demand = stageDemand(problem, ...before.layers, ahead);
    if (group.devices.some(({ memoryBytes }, index) => leastMemoryBytes(demand, samples[index] ?? 0) > memoryBytes))
      return undefined;
    const kept = keptByDevices(problem, { layers: before.layers, devices: group.places, samples }, ahead);
    stages.push({ ...before, devices, samples, ...kept });
  }
  return { schedule: plan.schedule, stages };
}

/**
 * Successive reductions of a schedule's K_p until the plan fits: the schedule's own, P − p (a slower pipeline), one
 * micro-batch at a time.
 */
const inFlightRules: readonly ((stage: number, stageCount: number) => number)[] = [
  () => Number.POSITIVE_INFINITY,
  (stage, stageCount) => stageCount - stage,
  () => 1,
];

/** The cuts tried move the fewest bytes among those within these fractions of the best bottleneck. */
const slacks: readonly number[] = [0.01, 0.05];

/** Weights are moved if the change pays for itself within this number of rounds. */
const horizonRounds = 10;

/** The plan with new cuts for the remaining stages. Throws InputError if none fits. */
function movedCuts(
  input: ReplanInput,
  problem: Problem,
  survivors: readonly Survivors[],
): { readonly schedule: string; readonly stages: readonly StagePlan[] } {
  const { schedule } = problem;
  const lean = schedules['1f1b'];
  // 1f1b sums the gradients in gpipe's order and needs less memory.
  for (const each of schedule === lean || schedule.isStream ? [schedule] : [schedule, lean]) {
    const scheduled = withStages(withMicroBatchSize(problem, problem.microBatchSize, each), survivors.length);
    for (const rule of each === lean || each.isStream ? inFlightRules : inFlightRules.slice(0, 1)) {
      const settled = bestCuts(input, scheduled, survivors, rule);
      if (settled === undefined) continue;
      const stages = settled.map((stage) => ({
        ...stage,
        devices: namesOf(scheduled, stage.devices),
        ...keptByDevices(scheduled, stage, stage.inFlight),
      }));
      return { schedule: each.name, stages };
    }
  }
  throw refusal(input, problem, survivors);
}

function bestCuts(
  input: ReplanInput,
  problem: Problem,
  survivors: readonly Survivors[],
  rule: (stage: number, stageCount: number) => number,
): readonly Settled[] | undefined {
  const groups = groupsOf(input, problem, survivors, rule);
  const costs = cutCosts(problem, groups);
  const layerCount = problem.profile.layers.length;
  const candidates = new Candidates(problem, groups, costs);
  for (const crossings of [1, 2] as const)
    for (const ends of chooseCuts(layerCount, groups.length, costs, { crossings, slacks })) candidates.offer(ends);
  for (const ends of neighbourTakeovers(input.plan, survivors)) candidates.offer(ends);
  candidates.improve();
  return candidates.best()?.stages;
}

/**
 * The cuts before, with the layers of lost stages given whole to the stage before or after them: these move the fewest
 * bytes.
 */
function* neighbourTakeovers({ stages }: PlanLayout, survivors: readonly Survivors[]): Generator<number[], void, void> {
  const endOf = (stage: number): number => stages[stage]?.layers[1] ?? 0;
  const last = survivors.length - 1;
  yield survivors.map(({ stage }, index) => endOf(index === last ? stages.length - 1 : stage));
  yield survivors.map((_, index) => endOf((survivors[index + 1]?.stage ?? stages.length) - 1));
}

interface Candidate {
  readonly ends: readonly number[];
  readonly stages: readonly Settled[];
  /** The time to move weights plus that of the next `horizonRounds` simulated rounds. */
  readonly costMs: number;
}

/** How far borders are moved in search of a lower cost. */
const steps: readonly number[] = [8, 4, 3, 2, 1].flatMap((step) => [step, -step]);
const leastGain = 0.002;

/** Limit of that search, in devices times micro-batches evaluated: a few milliseconds. */
const searchUnits = 3e4;

/** The cuts tried so far, with their costs. */
class Candidates {
  readonly #groups: readonly Group[];
  readonly #costs: CutCosts;
  readonly #evaluator: Evaluator;
  readonly #table: StageTable;
  readonly #byteMs: number;
  readonly #unitsEach: number;
  #unitsLeft = searchUnits;
  readonly #tried = new Map<string, Candidate | undefined>();

  constructor(problem: Problem, groups: readonly Group[], costs: CutCosts) {
    this.#groups = groups;
    this.#costs = costs;
    // The evaluator knows 1f1b, gpipe and streams; cuts that are good for 1f1b are good for schedules derived from it.
    const { schedule, microBatchSize } = problem;
    this.#evaluator = new Evaluator(
      schedule.name === 'gpipe' || schedule.isStream
        ? problem
        : withMicroBatchSize(problem, microBatchSize, schedules['1f1b']),
    );
    this.#table = new StageTable(problem);
    this.#unitsEach = problem.microBatchCount * groups.reduce((sum, { devices }) => sum + devices.length, 0);
    this.#byteMs = 8 / (problem.cluster.links.default.bandwidthMbps * 1000);
  }

  /** Evaluates cuts; undefined if they do not fit. Stages that equal those of `like` are reused. */
  offer(ends: readonly number[], like?: Candidate): Candidate | undefined {
    const key = ends.join(' ');
    if (this.#tried.has(key)) return this.#tried.get(key);
    this.#unitsLeft -= this.#unitsEach;
    const stages = this.#settle(ends, like);
    // All pairs at once: the group that gets the most is the last to be ready.
    const moveMs = ends.reduce(
      (latest, end, group) => Math.max(latest, this.#costs.movedBytes(group, ends[group - 1] ?? 0, end) * this.#byteMs),
      0,
    );
    const candidate =
      stages === undefined
        ? undefined
        : { ends, stages, costMs: moveMs + horizonRounds * this.#evaluator.roundMs(stages) };
    this.#tried.set(key, candidate);
    return candidate;
  }

  /**
   * Local search from the best cuts tried: moves one border or two neighbouring ones, as long as that helps and the
   * budget lasts.
   */
  improve(): void {
    for (const start of this.#sorted()) {
      for (let current: Candidate | undefined = start; current !== undefined; ) current = this.#better(current);
      if (this.#unitsLeft <= 0) return;
    }
  }

  /** The first change of a candidate that lowers its cost. */
  #better(candidate: Candidate): Candidate | undefined {
    const { ends } = candidate;
    for (let border = 0; border + 1 < ends.length; border++) {
      for (const width of [1, 2]) {
        if (border + width >= ends.length) continue;
        for (const step of steps) {
          const moved = ends.map((end, index) => (index >= border && index < border + width ? end + step : end));
          if (moved.some((end, index) => end <= (moved[index - 1] ?? 0))) continue;
          if (this.#unitsLeft <= 0) return undefined;
          const found = this.offer(moved, candidate);
          if (found !== undefined && found.costMs < candidate.costMs * (1 - leastGain)) return found;
        }
      }
    }
    return undefined;
  }

  /** The candidate with the least cost; undefined if none fits. */
  best(): Candidate | undefined {
    return this.#sorted()[0];
  }

  #sorted(): Candidate[] {
    return [...this.#tried.values()].filter((candidate) => candidate !== undefined).sort((a, b) => a.costMs - b.costMs);
  }

  /**
   * The stages with these ends and their shares; undefined if they do not fit. Devices that get no samples leave the
   * plan.
   */
  #settle(ends: readonly number[], like: Candidate | undefined): Settled[] | undefined {
    const settled: Settled[] = [];
    for (const [index, { devices, inFlight: inFlightCount }] of this.#groups.entries()) {
      const layers = [ends[index - 1] ?? 0, ends[index] ?? 0] as const;
      const same = like?.stages[index];
      if (same !== undefined && same.layers[0] === layers[0] && same.layers[1] === layers[1]) {
        settled.push(same);
        continue;
      }
      this.#table.setLayers(...layers);
      const shares = this.#table.stage(groupFrom(devices), inFlightCount)?.shares;
      if (shares === undefined) return undefined;
      const used = shares.devices.flatMap((_, place) => ((shares.samples[place] ?? 0) > 0 ? [place] : []));
      settled.push({
        layers,
        devices: used.map((place) => shares.devices[place] ?? 0),
        samples: used.map((place) => shares.samples[place] ?? 0),
        inFlight: inFlightCount,
      });
    }
    return settled;
  }
}

/** The groups of the future stages, in the plan's order. */
function groupsOf(
  { plan, lost, copies = backups(plan) }: ReplanInput,
  problem: Problem,
  survivors: readonly Survivors[],
  rule: (stage: number, stageCount: number) => number,
): Group[] {
  const [holders, owners] = [holdersAfter(plan, lost, copies), holdersAfter(plan, lost, new Map())];
  const { profile, schedule, microBatchCount, optimizerState } = problem;
  /** A device with a copy lacks the frozen weights. */
  const missing = (device: string, layer: number): number => {
    if (owners[layer]?.includes(device) === true) return 0;
    if (holders[layer]?.includes(device) === true) return profile.layers[layer]?.frozenBytes ?? 0;
    // At least a byte for each layer, so that few layers without weights (or of unknown size) change their owner.
    return 1 + stateBytes(profile, layer, optimizerState);
  };
  return survivors.map(({ devices }, stage) => ({
    devices: groupOf(problem, devices).devices,
    inFlight: Math.min(schedule.inFlight(stage, survivors.length, microBatchCount), rule(stage, survivors.length)),
    missingBytes: profile.layers.map((_, layer) => devices.reduce((sum, device) => sum + missing(device, layer), 0)),
  }));
}

function groupOf(problem: Problem, names: readonly string[]): StageGroup {
  return groupFrom(names.map((name) => problem.devices[problem.table.deviceIndex(name)] as PlannerDevice));
}

/** A group for one query after setLayers; not cached, so that no other group's result can be returned for it. */
function groupFrom(devices: readonly PlannerDevice[]): StageGroup {
  const places = devices.map(({ place }) => place);
  return { devices, places, signature: 0, slowestMbps: () => 0, kinds: () => kindsOf(devices) };
}

function namesOf(problem: Problem, places: readonly number[]): string[] {
  return places.map((place) => problem.devices[place]?.name ?? '');
}

function planned(
  { plan, profile }: ReplanInput,
  { cluster, optimizerState }: Problem,
  schedule: string,
  stages: readonly StagePlan[],
): Plan {
  const { batchSize, microBatchSize, microBatchCount, forwardOnlyLayers, staleness, tangentCount, compression } = plan;
  const layout: PlanLayout = {
    ...{ planner: 'light', schedule, batchSize, microBatchSize, microBatchCount, stages },
    ...(forwardOnlyLayers === undefined ? {} : { forwardOnlyLayers }),
    // With other stages, the least that they need.
    ...(staleness?.length === stages.length ? { staleness } : {}),
    ...(tangentCount === undefined ? {} : { tangentCount }),
    ...(compression === undefined ? {} : { compression }),
  };
  if (profile === undefined) return { ...layout, predicted: { roundMs: 0, samplesPerS: 0, peakMemoryMiB: {} } };
  return predictedPlan(layout, profile, cluster, optimizerState);
}

/**
 * The error if no cut fits: names the device that lacks the most memory in the cuts with the least shortage, one
 * micro-batch at a time.
 */
function refusal(input: ReplanInput, problem: Problem, survivors: readonly Survivors[]): InputError {
  const lean = withMicroBatchSize(problem, problem.microBatchSize, schedules['1f1b']);
  const groups = groupsOf(input, lean, survivors, () => 1);
  const lacking = (
    group: number,
    first: number,
    end: number,
  ): { readonly device: PlannerDevice; readonly bytes: number } => {
    const { devices, inFlight: inFlightCount } = groups[group] as Group;
    const demand = stageDemand(lean, first, end, inFlightCount);
    const device = devices.reduce((largest, other) => (other.memoryBytes > largest.memoryBytes ? other : largest));
    const together = lean.replicateBatchDependent || lean.sums.batchDependentCount(first, end) === 0;
    const others = together ? devices.filter((other) => other !== device) : [];
    const held = others.reduce(
      (sum, { memoryBytes }) => sum + largestShare(demand, memoryBytes, lean.microBatchSize),
      0,
    );
    const share = Math.max(0, lean.microBatchSize - held);
    return { device, bytes: share === 0 ? 0 : Math.max(0, leastMemoryBytes(demand, share) - device.memoryBytes) };
  };
  const ends = straightPartition(lean.profile.layers.length, groups.length, {
    stageMs: (group, first, end) => lacking(group, first, end).bytes,
    crossMs: () => 0,
  });
  const worst = ends
    .map((end, group) => lacking(group, ends[group - 1] ?? 0, end))
    .reduce((most, other) => (other.bytes > most.bytes ? other : most));
  const hasMiB = worst.device.memoryBytes / bytesInMiB;
  const lacksMiB = worst.bytes / bytesInMiB;
  const lost = input.lost.map((name) => `"${name}"`).join(', ');
  return new InputError(
    `Without ${lost} the model does not fit the stages that are left: device "${worst.device.name}" has ` +
      `${Math.floor(hasMiB * 10) / 10} MiB and lacks ${Math.ceil(lacksMiB)} MiB; raise its memoryMiB to ` +
      `${Math.ceil(hasMiB + lacksMiB)}, use smaller micro-batches, or let a device join.`,
  );
}
