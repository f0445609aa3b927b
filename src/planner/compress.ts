// Plans for links whose tensors may be compressed. A planner searches with the links as they are and with links that
// carry half as many bytes at the cuts; the simulator chooses among the results in every allowed encoding, and
// compression that gains nothing is left out.

import type { Plan, PlanLayout, Profile } from '../cluster/cluster.ts';
import {
  type Compression,
  cutEncodingNames,
  isCutEncoding,
  type SumEncoding,
  sumEncodingNames,
} from '../cluster/compression.ts';
import { parseCluster, parseProfile } from '../cluster/validate.ts';
import { InputError } from '../errors.ts';
import { program } from '../schedule/generate.ts';
import { createSimulator } from '../simulator/simulate.ts';
import { type PlanInput, planSteps } from './plan.ts';
import type { Steps } from './steps.ts';

/** What the user allows: nothing; one encoding everywhere; or any combination that gains. */
export type CompressMode = 'none' | SumEncoding | 'auto';

export const compressModes: readonly CompressMode[] = ['none', ...sumEncodingNames, 'auto'];

/** With `auto`, the fraction by which each compression must shorten the round. */
const leastGain = 0.02;

/** This encoding for gradient sums and at cuts; float16 at cuts if the encoding is for sums only. */
function everywhere(encoding: SumEncoding): Compression {
  const atCuts = isCutEncoding(encoding) ? encoding : 'float16';
  return { activation: atCuts, gradient: atCuts, allReduce: encoding };
}

/** A planning problem and the compression allowed. */
export interface CompressInput extends PlanInput {
  /** Default 'none'. */
  readonly compress?: CompressMode;
}

/** Runs planCompressedSteps to its end on the calling thread. */
export function planCompressed(input: CompressInput): Plan {
  const steps = planCompressedSteps(input);
  for (;;) {
    const step = steps.next();
    if (step.done === true) return step.value;
  }
}

/** The planner's plan with the compression that `compress` allows, in steps. Throws InputError as planSteps does. */
export function* planCompressedSteps({ compress = 'none', ...input }: CompressInput): Steps<Plan> {
  if (compress === 'none') return yield* planSteps(input);
  const profile = parseProfile(input.profile);
  const cluster = parseCluster(input.cluster);
  const { onBetter, ...quiet } = input;
  const simulator = createSimulator(profile, cluster);
  const simulated = (plan: Plan, compression: Compression | undefined): Plan => {
    const { compression: _, predicted, ...layout } = plan;
    const compressed: PlanLayout = { ...layout, ...(compression && { compression }) };
    const { roundMs, samplesPerS } = simulator(program(compressed), compressed, { events: false });
    return { ...compressed, predicted: { roundMs, samplesPerS, peakMemoryMiB: predicted.peakMemoryMiB } };
  };
  let best: Plan | undefined;
  const consider = (plan: Plan, factor = 1): void => {
    if (best !== undefined && plan.predicted.roundMs >= best.predicted.roundMs * factor) return;
    best = plan;
    onBetter?.(plan);
  };
  for (const found of yield* candidates(quiet, profile)) {
    if (found.virtualWorkers !== undefined)
      throw new InputError(`Plans of planner "${found.planner}" are not compressed; use --compress none.`);
    if (compress !== 'auto') consider(simulated(found, used(found, everywhere(compress))));
    else
      for (const compression of subsets(found))
        consider(simulated(found, compression), (1 - leastGain) ** Object.keys(compression ?? {}).length);
  }
  return best as unknown as Plan;
}

/**
 * The planner's plans for links as they are and for half the bytes at the cuts; for `best` also plain data parallelism,
 * whose sums shrink.
 */
function* candidates(input: PlanInput, profile: Profile): Steps<readonly Plan[]> {
  const found = [yield* planSteps(input)];
  const halved = {
    ...profile,
    layers: profile.layers.map((layer) => ({ ...layer, outputBytes: layer.outputBytes / 2 })),
  };
  for (const other of [
    { ...input, profile: halved },
    ...(input.planner === 'best' ? [{ ...input, planner: 'dp' }] : []),
  ]) {
    try {
      found.push({ ...(yield* planSteps(other)), planner: found[0]?.planner ?? '' });
    } catch (error) {
      if (!(error instanceof InputError)) throw error; // no further candidate
    }
  }
  return found;
}

/** The part of a compression that applies to a plan; undefined if none does. */
function used(
  { stages, forwardOnlyLayers = 0 }: Plan,
  { activation, gradient, allReduce }: Compression,
): Compression | undefined {
  const isCut = stages.length > 1;
  const isCutTrained = stages.some(({ layers }, stage) => stage > 0 && layers[0] > forwardOnlyLayers);
  const isReduced = stages.some(({ layers, devices }) => devices.length > 1 && layers[1] > forwardOnlyLayers);
  const compression: Compression = {
    ...(isCut && activation && { activation }),
    ...(isCutTrained && gradient && { gradient }),
    ...(isReduced && allReduce && { allReduce }),
  };
  return Object.keys(compression).length === 0 ? undefined : compression;
}

/** All combinations of compressions for a plan, the smallest first. */
function subsets(plan: Plan): readonly (Compression | undefined)[] {
  const found = new Map<string, Compression | undefined>();
  for (const activation of [undefined, ...cutEncodingNames]) {
    for (const gradient of [undefined, ...cutEncodingNames]) {
      for (const allReduce of [undefined, ...sumEncodingNames]) {
        const compression = used(plan, {
          ...(activation && { activation }),
          ...(gradient && { gradient }),
          ...(allReduce && { allReduce }),
        });
        found.set(JSON.stringify(compression ?? {}), compression);
      }
    }
  }
  return [...found.values()].sort((a, b) => Object.keys(a ?? {}).length - Object.keys(b ?? {}).length);
}
