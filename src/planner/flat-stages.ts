// A pipeline's stages in the evaluator's form: devices in one flat list with all of their durations, and the pieces and
// links between them. Equals what the simulator's compiler derives from a Program, but is derived from the stages
// alone.

import type { StageDemand } from '../cluster/memory.ts';
import type { PassTraffic, Traffic } from '../cluster/overhead.ts';
import { onGrid } from '../cluster/times.ts';
import type { Pace } from '../schedule/schedules.ts';
import { bucketsOfStage, isSplitStage, paceOfStage } from './layout.ts';
import { gradientsCross, leastInFlight, type Problem, type StageLayout, stageDemand, withStages } from './problem.ts';
import { recomputeMs } from './recomputation.ts';
import { groupReduceMs, reduceCostMs, ringBytes, type ShareTimes } from './share-times.ts';

/** A piece that crosses the border between two stages: indices in the flat list of devices, and times of the link. */
export interface Piece {
  readonly from: number;
  readonly to: number;
  readonly forwardOccupancyMs: number;
  readonly backwardOccupancyMs: number;
  readonly latencyMs: number;
}

/** A device of a stage. */
export interface FlatDevice {
  readonly place: number;
  readonly forward: PassCost;
  readonly backward: PassCost;
  readonly forwardMs: number;
  /** Until the gradients can be sent back: the whole backward, or its first half. */
  readonly backwardMs: number;
  /** The second half of a split backward, otherwise 0. */
  readonly weightMs: number;
  /** Main-thread time for a pass, regardless of its traffic. */
  readonly wakeMs: number;
  /**
   * By bucket: the time of the last micro-batch's pass that makes its weight gradients final. A single entry without
   * buckets.
   */
  readonly lastMs: readonly number[];
  readonly updateMs: number;
  /** Processor time for AllReduces that overlap with passes. */
  readonly reduceCpuMs: number;
}

/** Processor time for a pass's traffic: before it can begin, and after its end. */
export interface PassCost {
  readonly receivingMs: number;
  readonly sendingMs: number;
}

export interface FlatStage {
  /** Devices [first, end) of the flat list. */
  readonly first: number;
  readonly end: number;
  readonly pace: Pace;
  /** Whether it has no backward pass. */
  readonly isForwardOnly: boolean;
  /** Whether the stage before waits for its gradients. */
  readonly isGradientWanted: boolean;
  /** By bucket, in the order in which they are reduced; empty for a single device. */
  readonly reduceMs: readonly number[];
  /** The pieces to the next stage. */
  readonly pieces: readonly Piece[];
}

/** A link from the data's holder to a device. */
export interface Feed {
  readonly occupancyMs: number;
  readonly labelOccupancyMs: number;
  readonly latencyMs: number;
  freeMs: number;
}

/** The facts that determine the durations of a problem's pipelines. */
export interface FlatContext {
  readonly problem: Problem;
  readonly times: ShareTimes;
  /** The place of the data's holder; −1 if every device has its data. */
  readonly holder: number;
}

/** The stages and all of their devices. No device may have zero samples. */
export function flatStages(
  asked: FlatContext,
  layouts: readonly StageLayout[],
): { readonly stages: readonly FlatStage[]; readonly devices: readonly FlatDevice[] } {
  const problem = withStages(asked.problem, layouts.length);
  const context = { ...asked, problem };
  const { times } = context;
  const { isStream, overlapsAllReduce: overlaps } = problem.schedule;
  const handedOut = feedTraffic(context, layouts);
  const flat: FlatDevice[] = [];
  let before: readonly Piece[] = [];
  const stages = layouts.map((layout, stage): FlatStage => {
    const { layers, devices, samples } = layout;
    const first = flat.length;
    const pieces = piecesBetween(problem, layout, layouts[stage + 1], first);
    const pace = paceOfStage(problem, layout, stage, layouts.length);
    const isForwardOnly = layers[1] <= problem.forwardOnlyLayers;
    const isGroup = devices.length > 1 && !isForwardOnly;
    const isOverlapped = isGroup && (overlaps || isStream);
    const buckets = isGroup && overlaps ? bucketsOfStage(problem, times, layout) : [layers];
    const inFlight = isStream ? leastInFlight(problem, stage, layouts.length) : pace.ahead;
    const demand = stageDemand(problem, ...layers, inFlight);
    const trafficOf = stageTraffic(context, layouts, stage, { first, before, behind: pieces, handedOut });
    for (const [index, place] of devices.entries()) {
      const share = samples[index] ?? 0;
      const traffic = trafficOf(index, share);
      flat.push(flatDevice(context, { place, layout, share, buckets, isOverlapped, demand, traffic }));
    }
    before = pieces;
    const reduceMs = isGroup ? buckets.map((range) => groupReduceMs(problem, devices, ...range)) : [];
    const isGradientWanted = gradientsCross(problem, layers[0]);
    return { first, end: flat.length, pace, isForwardOnly, isGradientWanted, reduceMs, pieces };
  });
  return { stages, devices: flat };
}

/** The traffic of a device's passes of a micro-batch. */
type MicroBatchTraffic = Readonly<Record<'forward' | 'backward', PassTraffic>>;

/** The facts that a device's durations depend on. */
interface DeviceContext {
  readonly place: number;
  readonly layout: StageLayout;
  readonly share: number;
  readonly buckets: readonly (readonly [number, number])[];
  readonly isOverlapped: boolean;
  readonly demand: StageDemand;
  readonly traffic: MicroBatchTraffic;
}

function flatDevice(
  { problem, times }: FlatContext,
  { place, layout, share, buckets, isOverlapped, demand, traffic }: DeviceContext,
): FlatDevice {
  const { layers, devices } = layout;
  const isSplit = isSplitStage(problem, layout);
  const cost = ({ received, sent }: PassTraffic): PassCost => ({
    receivingMs: times.processorMs(place, received),
    sendingMs: times.processorMs(place, sent),
  });
  // Recomputation is part of the first half, or of the first piece.
  const recomputationMs = onGrid(recomputeMs(problem, place, layers, demand, share));
  const pieceMs = (range: readonly [number, number]): number =>
    isSplit ? times.backwardWeightMs(place, ...range, share) : times.backwardMs(place, ...range, share);
  const costMs = (range: readonly [number, number]): number =>
    reduceCostMs(problem, place, ringBytes(problem, devices.length, ...range));
  return {
    place,
    forward: cost(traffic.forward),
    backward: cost(traffic.backward),
    forwardMs: times.forwardMs(place, ...layers, share),
    backwardMs:
      recomputationMs +
      (isSplit ? times.backwardInputMs(place, ...layers, share) : times.backwardMs(place, ...layers, share)),
    weightMs: isSplit ? pieceMs(layers) : 0,
    wakeMs: times.processorMs(place, { bytes: 0, frames: 0, passes: 1 }),
    lastMs: buckets.map((range, index) => pieceMs(range) + (isSplit || index > 0 ? 0 : recomputationMs)),
    updateMs: times.updateMs(place, ...layers),
    reduceCpuMs: isOverlapped ? buckets.reduce((sum, range) => sum + costMs(range), 0) : 0,
  };
}

/** The traffic of a stage's devices, by their index in the stage and their share of the micro-batch. */
function stageTraffic(
  { problem, holder }: FlatContext,
  layouts: readonly StageLayout[],
  stage: number,
  links: {
    readonly first: number;
    readonly before: readonly Piece[];
    readonly behind: readonly Piece[];
    readonly handedOut: Pick<Traffic, 'bytes' | 'frames'>;
  },
): (index: number, share: number) => MicroBatchTraffic {
  const { layers: profiled, inputBytes, labelBytes } = problem.profile;
  const { layers, devices } = layouts[stage] as StageLayout;
  const [isFirst, isLast] = [stage === 0, stage === layouts.length - 1];
  const [first, end] = layers;
  const inBytes = isFirst ? 0 : (profiled[first - 1]?.outputBytes ?? 0);
  const outBytes = isLast ? 0 : (profiled[end - 1]?.outputBytes ?? 0);
  const fedBytes = holder === -1 ? 0 : (isFirst ? inputBytes : 0) + (isLast ? labelBytes : 0);
  const fedFrames = Number(isFirst) + Number(isLast);
  const [givesBack, isGivenBack] = [gradientsCross(problem, first), gradientsCross(problem, end)];
  const [before, behind] = [new Int32Array(devices.length), new Int32Array(devices.length)];
  for (const { to } of links.before) before[to - links.first] = (before[to - links.first] as number) + 1;
  for (const { from } of links.behind) behind[from - links.first] = (behind[from - links.first] as number) + 1;
  return (index, share) => {
    const [beforeCount, behindCount] = [before[index] ?? 0, behind[index] ?? 0];
    const isHolder = devices[index] === holder;
    const { bytes, frames } = isHolder ? links.handedOut : nothing;
    return {
      forward: {
        received: {
          bytes: (inBytes + (isHolder ? 0 : fedBytes)) * share,
          frames: beforeCount + fedFrames,
          passes: 0,
        },
        sent: { bytes: outBytes * share + bytes, frames: behindCount + frames, passes: 1 },
      },
      backward: {
        received: { bytes: isGivenBack ? outBytes * share : 0, frames: isGivenBack ? behindCount : 0, passes: 0 },
        sent: { bytes: givesBack ? inBytes * share : 0, frames: givesBack ? beforeCount : 0, passes: 1 },
      },
    };
  };
}

const nothing: Pick<Traffic, 'bytes' | 'frames'> = { bytes: 0, frames: 0 };

/** Inputs and labels that the data's holder sends to others for a micro-batch. */
function feedTraffic(
  { problem, holder }: FlatContext,
  layouts: readonly StageLayout[],
): Pick<Traffic, 'bytes' | 'frames'> {
  const { inputBytes, labelBytes } = problem.profile;
  const [first, last] = [layouts[0], layouts.at(-1)] as [StageLayout, StageLayout];
  const others = ({ devices, samples }: StageLayout): number =>
    devices.reduce((sum, place, index) => sum + (place === holder ? 0 : (samples[index] ?? 0)), 0);
  const frames = ({ devices }: StageLayout): number => devices.filter((place) => place !== holder).length;
  return { bytes: inputBytes * others(first) + labelBytes * others(last), frames: frames(first) + frames(last) };
}

/**
 * Rule 3: the pieces between a stage whose devices begin at `first` of the flat list and the next, by overlapping
 * sample ranges.
 */
function piecesBetween(
  { table, profile }: Problem,
  from: StageLayout,
  to: StageLayout | undefined,
  first: number,
): readonly Piece[] {
  if (to === undefined) return [];
  const bytes = profile.layers[from.layers[1] - 1]?.outputBytes ?? 0;
  const found: Piece[] = [];
  let [i, j, start] = [0, 0, 0];
  let [fromEnd, toEnd] = [from.samples[0] ?? 0, to.samples[0] ?? 0];
  while (i < from.devices.length && j < to.devices.length) {
    const end = Math.min(fromEnd, toEnd);
    if (end > start) {
      const [a, b] = [from.devices[i] ?? 0, to.devices[j] ?? 0];
      found.push({
        from: first + i,
        to: first + from.devices.length + j,
        forwardOccupancyMs: onGrid(table.occupancyMs(a, b, (end - start) * bytes)),
        backwardOccupancyMs: onGrid(table.occupancyMs(b, a, (end - start) * bytes)),
        latencyMs: onGrid(table.latencyMs(a, b)),
      });
    }
    start = end;
    if (fromEnd === end) fromEnd += from.samples[++i] ?? 0;
    else toEnd += to.samples[++j] ?? 0;
  }
  return found;
}

/** By device of the flat list: the holder's link to it if it carries inputs or labels. */
export function createFeeds({ problem, holder }: FlatContext, layouts: readonly StageLayout[]): (Feed | undefined)[] {
  const { table, profile } = problem;
  const last = layouts.length - 1;
  return layouts.flatMap(({ devices, samples }, stage) =>
    devices.map((place, index): Feed | undefined => {
      if (holder === -1 || place === holder || (stage > 0 && stage < last)) return undefined;
      const share = samples[index] ?? 0;
      const labelMs = onGrid(table.occupancyMs(holder, place, share * profile.labelBytes));
      return {
        occupancyMs: stage === 0 ? onGrid(table.occupancyMs(holder, place, share * profile.inputBytes)) : labelMs,
        labelOccupancyMs: last === 0 ? labelMs : 0,
        latencyMs: onGrid(table.latencyMs(holder, place)),
        freeMs: 0,
      };
    }),
  );
}
