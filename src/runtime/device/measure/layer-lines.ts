// Layers alone at two batch sizes; others follow from the line through both. Layers alone only share out what real
// stages take, so that sessions for more sizes would buy little, and sessions are most of what a profile costs.

import { defined } from '../../../assert.ts';
import { type LayerTrialOptions, scaledTrial } from './layer-trials.ts';
import { sum } from './parts.ts';
import type { LayerTrial } from './trials.ts';

/** What is measured of layers at one batch size. */
type LayersAt = (
  batchSize: number,
  which: Pick<LayerTrialOptions, 'isBrief' | 'splitKinds'>,
) => Promise<readonly LayerTrial[]>;

export interface LayerLinesOptions {
  readonly smallest: number;
  readonly most: number;
  /** Of each layer (`layerKinds`). */
  readonly kinds: readonly string[];
  /** Of the time of the backward passes, that of layers whose backward passes are measured split too. */
  readonly splitPart: number;
  /** The second batch size, from what a sample takes at the smallest; it is kept within the limits. */
  secondSize(sampleMs: number): number;
  readonly layersAt: LayersAt;
}

/** Times of the layers alone, by batch size. */
export interface LayerLines {
  readonly small: readonly LayerTrial[];
  /** At `batchSize`, the larger of the two. */
  readonly large: readonly LayerTrial[];
  readonly batchSize: number;
  at(batchSize: number): readonly LayerTrial[];
}

/** Measures layers alone at the smallest batch size and a larger one; only the smallest where it is all there is. */
export async function timeLayerLines(options: LayerLinesOptions): Promise<LayerLines> {
  const { smallest, most, kinds, splitPart, secondSize, layersAt } = options;
  const mayGrow = most > smallest;
  const small = await layersAt(smallest, { isBrief: mayGrow });
  const wanted = mayGrow ? Math.floor(secondSize(aloneMs(small) / smallest)) : smallest;
  const batchSize = mayGrow ? Math.min(most, Math.max(smallest + 1, wanted)) : smallest;
  const large = mayGrow ? await layersAt(batchSize, { splitKinds: longestKinds(kinds, small, splitPart) }) : small;
  const points = { small, smallest, large, batchSize };
  return { small, large, batchSize, at: (size) => onLine(points, size) };
}

/** What a micro-batch of the layers alone takes. */
export function aloneMs(layers: readonly LayerTrial[]): number {
  return sum(layers.map(({ forwardMs, backwardMs }) => forwardMs + backwardMs));
}

/** The kinds of layers that together take this part of the time of the backward passes, the longest first. */
function longestKinds(kinds: readonly string[], layers: readonly LayerTrial[], part: number): ReadonlySet<string> {
  const msByKind = new Map<string, number>();
  for (const [layer, kind] of kinds.entries())
    msByKind.set(kind, (msByKind.get(kind) ?? 0) + defined(layers[layer], kind).backwardMs);
  const longest = [...msByKind].sort(([, one], [, other]) => other - one);
  const wantedMs = part * sum([...msByKind.values()]);
  const found = new Set<string>();
  let knownMs = 0;
  for (const [kind, ms] of longest) {
    if (knownMs >= wantedMs) break;
    found.add(kind);
    knownMs += ms;
  }
  return found;
}

/** Each layer on the line through its times at two batch sizes; in proportion where there is one. */
function onLine(
  {
    small,
    smallest,
    large,
    batchSize,
  }: {
    readonly small: readonly LayerTrial[];
    readonly smallest: number;
    readonly large: readonly LayerTrial[];
    readonly batchSize: number;
  },
  size: number,
): readonly LayerTrial[] {
  if (batchSize === smallest) return large.map((trial) => scaledTrial(trial, size / batchSize));
  const part = (size - smallest) / (batchSize - smallest);
  return large.map((trial, layer) => {
    const { forwardMs, backwardMs } = defined(small[layer], 'a layer');
    // Noise must not make more samples take less.
    const along = (few: number, many: number): number => few + part * Math.max(0, many - few);
    return {
      ...scaledTrial(trial, size / batchSize),
      forwardMs: along(forwardMs, trial.forwardMs),
      backwardMs: along(backwardMs, trial.backwardMs),
    };
  });
}
