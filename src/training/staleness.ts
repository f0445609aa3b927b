// What repairs the staleness of an asynchronous pipeline's gradients: `--staleness-correction`. A stage of staleness s
// computes the gradient of round t at version t − s of its weights. Each correction is the plain optimizer where s = 0,
// and part of the optimizer's graph (update-rules.ts). What a run keeps, sends and writes are true weights.
//
// predict: passes read, in place of version v, what the weights will be s updates later if the smoothed gradient stays
// as it is, ŵ = w − s·η·u: SpecTrain (Chen et al. 2018, arXiv 1809.02839) with u = v, the velocity of momentum; XPipe
// (Guan et al. 2019, arXiv 1911.04610) with Adam's u = m̂ / (√v̂ + ε), here with AdamW's decay besides; Lion's u is its
// sign. Changes: both passes of a round read one prediction (SpecTrain predicts anew for the backward pass), as weight
// stashing asks; it is made when the version is, with that update's learning rate; the version that a stream begins
// with is read as it is.
//
// nesterov: Ajanthan et al., ICML 2025 (arXiv 2505.01099): d = γ (w_t − w_{t−1}), w_{t+1} = w_t + d − η (1 − γ) ∇f at
// the delayed look-ahead point w_{t−s} + d_{t−s}, with γ near 1. As torch.optim's Nesterov momentum and NAdam (the
// paper's own implementation) the weights are kept at the look-ahead point. Changes: passes read s updates further on,
// as with predict, which is what lets delayed gradients bear several times the learning rate; γ goes by the staleness,
// not 0.99 for all. SGD: γ is `delayedMomentum`, and a gradient is taken (1 − γ) / (1 − μ) times, which leaves a
// learning rate the meaning that it has with momentum μ. Adam: γ is `longMomentum`, of which an update takes the part
// 1 − c and of the newest gradient c (the paper's implementation: 0.3 to 0.5), c = 1 − `delayedMomentum`; and the
// learning rate rises to what was asked for over the first quarter of the run (`delayedRate`): PipeMare (Yang et al.
// 2021, arXiv 1910.05124), T1. All of it measured: bench/results/2026-11-28-async-accuracy.md.

import { InputError } from '../errors.ts';

/** The values of `--staleness-correction`. */
export const stalenessCorrections = ['none', 'predict', 'nesterov'] as const;

export type StalenessCorrection = (typeof stalenessCorrections)[number];

/** A correction in a stage. */
export interface Correction {
  readonly kind: Exclude<StalenessCorrection, 'none'>;
  /** In rounds, above 0. */
  readonly staleness: number;
}

/** What a stage's optimizer has to do; undefined where it is the plain one. */
export function correctionOf(kind: StalenessCorrection, staleness: number): Correction | undefined {
  return kind === 'none' || staleness === 0 ? undefined : { kind, staleness };
}

/**
 * The momentum γ of `nesterov` in a stage whose SGD has momentum μ: 1 − γ = (1 − μ) / √(1 + s). More bears a higher
 * learning rate, less learns faster at first.
 */
export function delayedMomentum(momentum: number, staleness: number): number {
  return 1 - (1 - momentum) / Math.sqrt(1 + staleness);
}

/** The same of Adam, whose smoothed gradient is not all of an update: 1 − γ = (1 − β₁) / (1 + s). */
export function longMomentum(beta1: number, staleness: number): number {
  return 1 - (1 - beta1) / (1 + staleness);
}

/**
 * The learning rate of update `step` (from 1) where gradients are s updates late: η (1 + s)^(−p), p falling from ½ to 0
 * over `rampRounds` updates. PipeMare's T1 is η s^(−p), p from 1.
 */
export function delayedRate(
  learningRate: number,
  staleness: number,
  { step, rampRounds = 0 }: { readonly step: number; readonly rampRounds?: number | undefined },
): number {
  const left = rampRounds === 0 ? 0 : Math.max(0, 1 - step / rampRounds);
  return learningRate * (1 + staleness) ** (-left / 2);
}

/** Throws InputError where the optimizer has no smoothed gradient, which both corrections go by. */
export function checkCorrection(
  kind: StalenessCorrection,
  optimizer: { readonly kind: string; readonly momentum: number },
): void {
  if (kind === 'nesterov' && optimizer.kind === 'lion')
    throw new InputError(
      '--staleness-correction nesterov takes a gradient into a step whole, and --optimizer lion its sign alone: give ' +
        'predict or none.',
    );
  if (kind === 'none' || optimizer.kind !== 'sgd' || optimizer.momentum > 0) return;
  throw new InputError(
    `--staleness-correction ${kind} goes by the optimizer's momentum, and SGD without momentum has none: give ` +
      '--momentum 0.9 or --optimizer adam.',
  );
}
