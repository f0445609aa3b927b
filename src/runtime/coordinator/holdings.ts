// Who holds which layers' state, and after how many rounds. The state after n rounds is the same on whoever holds it,
// whatever plan computed it, so that a run goes on from any set of holders that covers all layers at one round. Pure.

import type { PlanLayout } from '../../cluster/cluster.ts';

/** A device has the state of layers [first, end) after `round` rounds, and keeps it until it is released. */
export interface Holding {
  readonly device: string;
  readonly layers: readonly [first: number, end: number];
  readonly round: number;
  /** A copy of another device's stage: without frozen weights. */
  readonly isCopy?: true;
}

/** What all devices of a plan hold after `round` rounds. */
export function holdingsOf({ stages }: PlanLayout, round: number): Holding[] {
  return stages.flatMap(({ devices, layers }) => devices.map((device): Holding => ({ device, layers, round })));
}

/** By layer: who holds its state after `round` rounds, each once. */
export function holdersAt(
  holdings: readonly Holding[],
  round: number,
  layerCount: number,
): readonly (readonly string[])[] {
  const holders = Array.from({ length: layerCount }, () => new Set<string>());
  for (const holding of holdings) {
    if (holding.round !== round) continue;
    for (let layer = holding.layers[0]; layer < holding.layers[1]; layer++) holders[layer]?.add(holding.device);
  }
  return holders.map((set) => [...set]);
}

/** The last round after which every layer has a holder; undefined when there is none. */
export function lastCompleteRound(holdings: readonly Holding[], layerCount: number): number | undefined {
  const rounds = [...new Set(holdings.map(({ round }) => round))].sort((a, b) => b - a);
  return rounds.find((round) => holdersAt(holdings, round, layerCount).every((devices) => devices.length > 0));
}
