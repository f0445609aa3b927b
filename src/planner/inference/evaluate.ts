// What a pipeline of forward passes achieves by the rules of the simulated world. Period: in the steady state every
// device computes each micro-batch and pays for what it moves, every directed link carries its pieces, all at the same
// time (PipeEdge, eq. 2 and 3); the busiest of them paces the pipeline. Latency: one micro-batch in an empty pipeline,
// from its inputs to its result.

import { type FlatDevice, type FlatStage, flatStages } from '../flat-stages.ts';
import type { StageLayout } from '../problem.ts';
import type { InferenceProblem } from './problem.ts';

export interface Evaluation {
  /** Milliseconds a micro-batch in the steady state. */
  readonly periodMs: number;
  readonly latencyMs: number;
  /** How loaded devices and links are together: breaks ties between pipelines of one period. */
  readonly load: number;
}

/** Devices and links nearly as busy as the busiest count for the load, others hardly. */
const loadPower = 8;

/** Evaluates stages of which no device has zero samples. */
export function evaluate(problem: InferenceProblem, layouts: readonly StageLayout[]): Evaluation {
  const { base, times } = problem;
  const { dataDevice } = base.cluster;
  const holder = dataDevice === undefined ? -1 : base.table.deviceIndex(dataDevice);
  const { stages, devices } = flatStages({ problem: base, times, holder }, layouts);
  const busy: number[] = devices.map(({ forwardMs, forward }) => forwardMs + forward.receivingMs + forward.sendingMs);
  const links = new Map<number, number>();
  const occupy = (from: number, to: number, ms: number): void => {
    if (from === to) return;
    const key = from * base.devices.length + to;
    links.set(key, (links.get(key) ?? 0) + ms);
  };
  for (const { pieces } of stages)
    for (const { from, to, forwardOccupancyMs } of pieces)
      occupy(devices[from]?.place ?? 0, devices[to]?.place ?? 0, forwardOccupancyMs);
  const ends = transfersOfEnds(problem, layouts, holder);
  for (const { from, to, occupancyMs } of ends) occupy(from, to, occupancyMs);
  busy.push(...links.values());
  const periodMs = Math.max(...busy);
  const load = busy.reduce((sum, ms) => sum + (ms / periodMs) ** loadPower, 0);
  return { periodMs, latencyMs: latencyOf(problem, layouts, { stages, devices, ends, holder }), load };
}

/** What the slowest device computes on a micro-batch, in milliseconds: the pace that no link can improve. */
export function slowestMs({ base, times }: InferenceProblem, layouts: readonly StageLayout[]): number {
  const { devices } = flatStages({ problem: base, times, holder: -1 }, layouts);
  return Math.max(...devices.map(({ forwardMs }) => forwardMs));
}

interface Transfer {
  readonly from: number;
  readonly to: number;
  readonly occupancyMs: number;
  readonly latencyMs: number;
}

/** Inputs from the data's holder to the first stage's devices, and results from the last's to it. */
function transfersOfEnds(
  { base, cutBytes }: InferenceProblem,
  layouts: readonly StageLayout[],
  holder: number,
): readonly Transfer[] {
  if (holder === -1) return [];
  const { table } = base;
  const transfer = (from: number, to: number, bytes: number): Transfer => ({
    from,
    to,
    occupancyMs: table.occupancyMs(from, to, bytes),
    latencyMs: from === to ? 0 : table.latencyMs(from, to),
  });
  const of = (layout: StageLayout | undefined, make: (place: number, samples: number) => Transfer): Transfer[] =>
    (layout?.devices ?? []).map((place, index) => make(place, layout?.samples[index] ?? 0));
  return [
    ...of(layouts[0], (place, samples) => transfer(holder, place, samples * (cutBytes[0] as number))),
    ...of(layouts.at(-1), (place, samples) => transfer(place, holder, samples * (cutBytes.at(-1) as number))),
  ];
}

function latencyOf(
  { codecMs, microBatchSize }: InferenceProblem,
  layouts: readonly StageLayout[],
  flat: {
    readonly stages: readonly FlatStage[];
    readonly devices: readonly FlatDevice[];
    readonly ends: readonly Transfer[];
    readonly holder: number;
  },
): number {
  const { stages, devices, ends, holder } = flat;
  const arrivals = new Float64Array(devices.length);
  const travelMs = ({ from, to, occupancyMs, latencyMs }: Transfer): number =>
    from === to ? 0 : occupancyMs + latencyMs;
  const firstCount = layouts[0]?.devices.length ?? 0;
  if (holder !== -1)
    for (let index = 0; index < firstCount; index++) arrivals[index] = travelMs(ends[index] as Transfer);
  let resultMs = 0;
  for (const [stage, { first, end, pieces }] of stages.entries()) {
    const codec = (codecMs[layouts[stage]?.layers[1] ?? 0] ?? 0) * microBatchSize;
    const done: number[] = [];
    for (let index = first; index < end; index++) {
      const { forward, forwardMs } = devices[index] as FlatDevice;
      // What arrives is paid for while the device waits.
      const doneMs = Math.max(arrivals[index] as number, forward.receivingMs) + forwardMs;
      done.push(doneMs);
      const back = stage === stages.length - 1 && holder !== -1 ? ends[firstCount + index - first] : undefined;
      resultMs = Math.max(resultMs, doneMs + (back === undefined ? 0 : travelMs(back)));
    }
    for (const { from, to, forwardOccupancyMs, latencyMs } of pieces)
      arrivals[to] = Math.max(
        arrivals[to] as number,
        (done[from - first] as number) + forwardOccupancyMs + latencyMs + codec,
      );
  }
  return resultMs;
}

/** What a plan is searched for. */
export type Objective = 'throughput' | 'latency';

export const objectives: readonly Objective[] = ['throughput', 'latency'];

/** A pipeline with what it achieves. */
export interface Rated extends Evaluation {
  readonly layouts: readonly StageLayout[];
  readonly problem: InferenceProblem;
}

export function rate(problem: InferenceProblem, layouts: readonly StageLayout[]): Rated {
  return { ...evaluate(problem, layouts), layouts, problem };
}

/** Milliseconds a sample in the steady state. */
function sampleMs({ periodMs, problem }: Rated): number {
  return periodMs / problem.microBatchSize;
}

/** By the objective first; the other one breaks ties, then the load. Differences of rounding are none. */
export function isBetter(one: Rated, other: Rated | undefined, objective: Objective): boolean {
  if (other === undefined) return true;
  const keys = ({ latencyMs, load }: Rated, ms: number): readonly number[] =>
    objective === 'throughput' ? [ms, latencyMs, load] : [latencyMs, ms, load];
  const [a, b] = [keys(one, sampleMs(one)), keys(other, sampleMs(other))];
  for (const [index, key] of a.entries()) {
    const than = b[index] as number;
    if (Math.abs(key - than) > 1e-9 * Math.max(key, than)) return key < than;
  }
  return false;
}
