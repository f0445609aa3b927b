// Whether rounds repeat themselves: what happens in the last of them is what happened some rounds before, later by a
// constant. What a round does depends on a few rounds before it alone, so that it then goes on like that for ever.

import type { ProgramEvent } from '../schedule/program.ts';

/** By round: when each of its events ended, by name. */
export type Rounds = readonly ReadonlyMap<string, number>[];

/** The most rounds after which all may come again. */
const longestCycle = 12;

export function roundsOf(events: readonly ProgramEvent[], roundCount: number): Rounds {
  const rounds = Array.from({ length: roundCount }, () => new Map<string, number>());
  for (const { device, kind, payload, to, microBatch, round, endMs } of events)
    if (round !== undefined) rounds[round]?.set([device, kind, payload, to, microBatch].join(' '), endMs);
  return rounds;
}

/**
 * Milliseconds from a round to the next; undefined if rounds do not repeat themselves. The last `memory` rounds, which
 * may drain, do not count.
 */
export function repeatedAfterMs(rounds: Rounds, memory: number): number | undefined {
  const last = rounds.length - 1 - memory;
  for (let cycle = 1; cycle <= longestCycle && last - memory - cycle >= 0; cycle++) {
    let laterMs: number | undefined;
    let isRepeated = true;
    for (let round = last - memory; isRepeated && round <= last; round++)
      for (const [name, endMs] of rounds[round] ?? []) {
        const ownMs = endMs - (rounds[round - cycle]?.get(name) ?? Number.NaN);
        laterMs ??= ownMs;
        isRepeated &&= ownMs === laterMs;
      }
    if (isRepeated && laterMs !== undefined) return laterMs / cycle;
  }
  return undefined;
}

/** The mean over the later half of the rounds. */
export function meanMs(rounds: Rounds): number {
  const endMs = (round: number): number => Math.max(...(rounds[round]?.values() ?? []));
  const half = Math.floor(rounds.length / 2);
  return (endMs(rounds.length - 1) - endMs(half)) / (rounds.length - 1 - half);
}
