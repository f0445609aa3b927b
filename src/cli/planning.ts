// Plans while a person waits: progress on a terminal; Ctrl-C or a time limit ends the search with the best plan so far.

import { systemClock } from '../clock.ts';
import type { Plan } from '../cluster/cluster.ts';
import { InputError, RunError } from '../errors.ts';
import { type CompressInput, planCompressedSteps } from '../planner/compress.ts';
import type { Pin } from '../planner/constraints.ts';
import { fittingWithCopies, planWithCopies } from '../planner/replan/room-for-copies.ts';
import type { Steps } from '../planner/steps.ts';
import { interruptSignal, type Output } from './output.ts';
import { bar, duration } from './terminal.ts';

/** How long the search runs between two checks for signals and updates of the progress bar. */
const sliceMs = 50;
/** Default time limit of planner `best`; the others have none. */
export const bestTimeLimitMs: number = 45_000;

export interface PlanSearch {
  readonly plan: Plan;
  readonly planningMs: number;
  /** Whether Ctrl-C or the time limit ended it. */
  readonly isCutShort: boolean;
}

/** How a search hears that its time is up, and tells what it has found. */
export type SearchHooks = Required<Pick<CompressInput, 'isTimeUp' | 'onBetter'>>;

/** Searches for a plan of training, as search does, with room for the copies of a stream if any are made. */
export async function searchPlan(
  { isCopied, ...input }: CompressInput & { readonly isCopied: boolean },
  output: Output,
  askedLimitMs?: number,
): Promise<PlanSearch> {
  const copies = { profile: input.profile, optimizerState: input.optimizerState, isCopied };
  const begin = (hooks: SearchHooks): Steps<Plan> =>
    planWithCopies(input.cluster, copies, (cluster) => planCompressedSteps({ ...input, ...hooks, cluster }));
  const found = await search(begin, input.planner === 'best', output, askedLimitMs);
  // A search that was ended early has its best plan so far as it was found: without copies.
  return found.isCutShort && input.planner !== 'best'
    ? { ...found, plan: fittingWithCopies(found.plan, input.cluster, copies) }
    : found;
}

/**
 * Searches for a plan; an anytime search (planner `best`) ends by itself when the time is up (PlanInput.isTimeUp).
 * Throws InputError as the steps do, and RunError when it is ended before it has found any.
 */
export async function search(
  begin: (hooks: SearchHooks) => Steps<Plan>,
  isAnytime: boolean,
  output: Output,
  askedLimitMs?: number,
): Promise<PlanSearch> {
  const startMs = systemClock.now();
  const timeLimitMs = askedLimitMs ?? (isAnytime ? bestTimeLimitMs : Number.POSITIVE_INFINITY);
  let isCutShort = false;
  const isTimeUp = (): boolean => {
    isCutShort ||= systemClock.now() - startMs >= timeLimitMs;
    return isCutShort;
  };
  const signal = interruptSignal(output, 'Ending the search with the best plan so far …');
  let best: Plan | undefined;
  const onBetter = (plan: Plan): void => {
    best = plan;
  };
  const steps = begin({ isTimeUp, onBetter });
  let sliceEndMs = startMs + sliceMs;
  for (;;) {
    const step = steps.next();
    const nowMs = systemClock.now();
    if (step.done === true) {
      output.terminal.live([]);
      return { plan: step.value, planningMs: nowMs - startMs, isCutShort };
    }
    if (nowMs < sliceEndMs) continue;
    output.terminal.live([`Planning   ${bar(step.value, 30)}  ${duration((nowMs - startMs) / 1000)}${found(best)}`]);
    await new Promise((resolve) => setImmediate(resolve));
    sliceEndMs = systemClock.now() + sliceMs;
    if (!signal.aborted && (isAnytime || nowMs - startMs < timeLimitMs)) continue;
    output.terminal.live([]);
    if (best === undefined)
      throw new RunError('The search ended before it had found any plan; give it more time, or planner asteroid.');
    return { plan: best, planningMs: nowMs - startMs, isCutShort: true };
  }
}

function found(plan: Plan | undefined): string {
  return plan === undefined ? '' : `  best so far: ${plan.predicted.samplesPerS.toFixed(1)} samples/s`;
}

/** LAYER=DEVICE, the layer by index or name. Throws InputError. */
export function readPin(text: string): Pin {
  const at = text.lastIndexOf('=');
  if (at < 1 || at === text.length - 1)
    throw new InputError(`--pin ${text} is not of the form LAYER=DEVICE: write it so, such as 0=pi-1.`);
  const layer = text.slice(0, at);
  return { layer: /^\d+$/.test(layer) ? Number(layer) : layer, device: text.slice(at + 1) };
}
