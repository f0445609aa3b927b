// The text pictures of docs/async.md, made by what they show: the simulator's events, and the rule of staleness.

import type { Cluster, PlanLayout, Profile } from '../cluster/cluster.ts';
import { program } from '../schedule/generate.ts';
import { passes } from '../schedule/passes.ts';
import type { ProgramEvent } from '../schedule/program.ts';
import { stalenessOf } from '../schedule/staleness.ts';
import { simulate } from '../simulator/simulate.ts';

const names = ['a', 'b', 'c'] as const;

/** Three devices with a layer each: forward 1 ms, backward 2 ms, links that take no time. */
const profile: Profile = {
  ...{ model: 'three layers', inputBytes: 0, labelBytes: 0, batchSizes: [1] },
  layers: names.map((name) => ({ name, outputBytes: 0, weightBytes: 0, savedBytes: 0, flops: 1 })),
  devices: { any: { forwardMs: [[1, 1, 1]], backwardMs: [[2, 2, 2]] } },
};
const cluster: Cluster = {
  devices: names.map((name) => ({ name, kind: 'any', memoryMiB: 1 })),
  links: { default: { bandwidthMbps: 1 } },
};

function pipeline(schedule: string, microBatchCount: number, inFlight: readonly number[]): PlanLayout {
  return {
    ...{ planner: 'hand', schedule, batchSize: microBatchCount, microBatchSize: 1, microBatchCount },
    stages: names.map((name, stage) => ({
      layers: [stage, stage + 1],
      devices: [name],
      samples: [1],
      inFlight: inFlight[stage] ?? 1,
    })),
  };
}

/** Columns for a millisecond. */
const columns = 3;

/** A line for each device: passes by their letter and number, which last as long as the line under them. */
function timeline(events: readonly ProgramEvent[], numberOf: (event: ProgramEvent) => number, endMs: number): string {
  return names
    .map((name) => {
      let line = `${name}  `;
      for (const event of events) {
        if (event.device !== name || event.endMs > endMs) continue;
        if (event.kind !== 'forward' && event.kind !== 'backward') continue;
        line = line.padEnd(columns * event.startMs + columns);
        const text = `${passes[event.kind].letter}${numberOf(event)}`;
        line += text.padEnd(columns * (event.endMs - event.startMs), '─');
      }
      return line.trimEnd();
    })
    .join('\n');
}

/** A synchronous round of three micro-batches, and another. */
export function roundsPicture(): string {
  const plan = pipeline('1f1b', 3, [3, 2, 1]);
  const { events, roundMs } = simulate(program(plan), plan, profile, cluster);
  const again = events.map((event) => ({
    ...{ ...event, startMs: event.startMs + roundMs, endMs: event.endMs + roundMs },
    microBatch: (event.microBatch ?? 0) + 3,
  }));
  return timeline([...events, ...again], ({ microBatch = 0 }) => microBatch, 2 * roundMs);
}

const stream = pipeline('async', 1, [3, 2, 1]);

/** Ticks of a stream, one micro-batch a round, for as long as the two rounds take. */
export function ticksPicture(): string {
  const { events } = simulate(program(stream), stream, profile, cluster);
  return timeline(events, ({ round = 0 }) => round, 30);
}

/** Which version of the weights each round reads. */
export function stalenessPicture(): string {
  const [staleness = 0] = stalenessOf(stream);
  const rounds = Array.from({ length: 8 }, (_, round) => round);
  const row = (title: string, values: readonly number[]): string =>
    `${title.padEnd(26)}${values.map((value) => String(value).padStart(4)).join('')}`;
  return [
    row('round', rounds),
    row(
      'reads version',
      rounds.map((round) => Math.max(0, round - staleness)),
    ),
    row(
      'makes version',
      rounds.map((round) => round + 1),
    ),
  ].join('\n');
}

/** By the name that stands before each in docs/async.md. */
export const asyncPictures: Readonly<Record<string, () => string>> = {
  rounds: roundsPicture,
  ticks: ticksPicture,
  staleness: stalenessPicture,
};
