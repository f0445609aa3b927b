// Learning rates by round, as pure functions, and their text form.

import { assert, unreachable } from '../assert.ts';
import { InputError } from '../errors.ts';

interface WarmUp {
  /** The rate rises linearly over this many rounds: base · 1/n in the first, base · n/n in the n-th. */
  readonly warmupRounds: number;
}

export type LearningRateSchedule =
  | ({ readonly kind: 'constant' } & WarmUp)
  /** base · factor^⌊round / every⌋, with rounds counted from the start of training. */
  | ({ readonly kind: 'step'; readonly every: number; readonly factor: number } & WarmUp)
  /** base · (1 + cos(π p)) / 2, where p is the fraction of the rounds after the warm-up that has passed. */
  | ({ readonly kind: 'cosine' } & WarmUp)
  /** base · (1 − p). */
  | ({ readonly kind: 'linear' } & WarmUp);

/**
 * The learning rate of `round` (from 0) of `totalRounds`. The last round's is small but not 0, as with PyTorch's
 * schedulers.
 */
export function learningRate(schedule: LearningRateSchedule, base: number, round: number, totalRounds: number): number {
  assert(round >= 0, `round ${round}`);
  const { warmupRounds } = schedule;
  if (round < warmupRounds) return (base * (round + 1)) / warmupRounds;
  const part = Math.min(1, (round - warmupRounds) / Math.max(1, totalRounds - warmupRounds));
  switch (schedule.kind) {
    case 'constant':
      return base;
    case 'step':
      return base * schedule.factor ** Math.floor(round / schedule.every);
    case 'cosine':
      return (base * (1 + Math.cos(Math.PI * part))) / 2;
    case 'linear':
      return base * (1 - part);
    default:
      return unreachable(schedule);
  }
}

const forms = 'constant, step:EVERY:FACTOR, cosine or linear, each with :warmup=ROUNDS if wanted';

/** Reads a schedule such as "cosine", "step:30:0.1" or "linear:warmup=100". Throws InputError. */
export function parseSchedule(text: string): LearningRateSchedule {
  const refuse = (problem: string): never => {
    throw new InputError(`The learning-rate schedule "${text}" ${problem}; write ${forms}.`);
  };
  const parts = text.trim().split(':');
  const warmup = parts.at(-1)?.startsWith('warmup=') ? parts.pop()?.slice('warmup='.length) : undefined;
  const [kind, ...values] = parts;
  const warmupRounds = warmup === undefined ? 0 : wholeNumber(warmup);
  if (warmupRounds === undefined) return refuse(`has a warm-up of "${warmup}" rounds, which is not a whole number`);
  if (kind === 'step') {
    const [every, factor] = [
      wholeNumber(values[0] ?? ''),
      values[1] === undefined || values[1].trim() === '' ? Number.NaN : Number(values[1]),
    ];
    if (values.length !== 2) return refuse('needs two numbers after "step"');
    if (every === undefined || every === 0)
      return refuse(`steps every "${values[0]}" rounds, which is not a positive whole number`);
    if (!(factor > 0 && factor <= 1))
      return refuse(`has the factor "${values[1]}", which is not above 0 and at most 1`);
    return { kind, every, factor, warmupRounds };
  }
  if (kind !== 'constant' && kind !== 'cosine' && kind !== 'linear') return refuse('is not known');
  if (values.length > 0) return refuse(`has "${values.join(':')}" too much`);
  return { kind, warmupRounds };
}

function wholeNumber(text: string): number | undefined {
  return /^\d{1,9}$/.test(text) ? Number(text) : undefined;
}
