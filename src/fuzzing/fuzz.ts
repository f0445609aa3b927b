// Inputs of one target, one after the other in this thread, and their outcomes. An input fails when the target throws
// anything but a refusal, takes longer than the limit, or leaves more memory behind than a few kilobytes may require.
// Equal seeds give equal inputs and outcomes.

import { getHeapStatistics } from 'node:v8';
import { createRandom, hash32, hashString } from '../random.ts';
import type { Target, TargetEntry } from './target.ts';

/** Inputs of the seeds [first, end) of a target. */
export interface InputRange {
  readonly target: string;
  readonly first: number;
  readonly end: number;
}

/** The outcomes of a target's inputs. */
export interface FuzzSummary {
  readonly inputCount: number;
  readonly acceptedCount: number;
  readonly refusedCount: number;
  readonly milliseconds: number;
  /** The sum of all outcomes' hashes: equal for equal seeds and equal code. */
  readonly outcomeHash: number;
  readonly failures: readonly FuzzFailure[];
}

export interface FuzzFailure {
  readonly seed: number;
  /** The mistake, with its stack if there is one, and the input. */
  readonly problem: string;
}

/** The limits of an input. */
export interface FuzzLimits {
  /** Milliseconds of a processor. Default 2,000. */
  readonly limitMs: number;
  /** MiB by which array buffers and the heap together may grow. Default 64. */
  readonly limitMiB: number;
}

export const defaultLimits: FuzzLimits = { limitMs: 2_000, limitMiB: 64 };

export const noInputs: FuzzSummary = {
  inputCount: 0,
  acceptedCount: 0,
  refusedCount: 0,
  milliseconds: 0,
  outcomeHash: 0,
  failures: [],
};

/** The sum of two summaries. */
export function merged(a: FuzzSummary, b: FuzzSummary): FuzzSummary {
  return {
    inputCount: a.inputCount + b.inputCount,
    acceptedCount: a.acceptedCount + b.acceptedCount,
    refusedCount: a.refusedCount + b.refusedCount,
    milliseconds: a.milliseconds + b.milliseconds,
    outcomeHash: (a.outcomeHash + b.outcomeHash) >>> 0,
    failures: [...a.failures, ...b.failures].sort((left, right) => left.seed - right.seed),
  };
}

/** Takes the inputs of a range. `onInput` gets each seed before its input is made. */
export async function fuzzRange(
  entry: TargetEntry,
  target: Target,
  { first, end }: InputRange,
  options: { readonly limits?: FuzzLimits; readonly onInput?: (seed: number) => void } = {},
): Promise<FuzzSummary> {
  const { limits = defaultLimits, onInput = () => {} } = options;
  const nameHash = hashString(entry.name);
  let [acceptedCount, refusedCount, outcomeHash] = [0, 0, 0];
  const failures: FuzzFailure[] = [];
  const startMs = performance.now();
  for (let seed = first; seed < end; seed++) {
    onInput(seed);
    const outcome = await takeInput(entry, target, nameHash, seed, limits);
    if (outcome.kind === 'accepted') acceptedCount++;
    else if (outcome.kind === 'refused') refusedCount++;
    else failures.push({ seed, problem: await described(entry, target, nameHash, seed, outcome) });
    outcomeHash =
      (outcomeHash + hash32(seed, hashString(outcome.kind === 'failed' ? outcome.kind : outcome.message))) >>> 0;
  }
  return {
    inputCount: end - first,
    acceptedCount,
    refusedCount,
    milliseconds: performance.now() - startMs,
    outcomeHash,
    failures,
  };
}

type Outcome =
  | { readonly kind: 'accepted'; readonly message: '' }
  | { readonly kind: 'refused'; readonly message: string }
  | { readonly kind: 'failed'; readonly error: unknown };

async function takeInput(
  entry: TargetEntry,
  target: Target,
  nameHash: number,
  seed: number,
  limits: FuzzLimits,
): Promise<Outcome> {
  const input = target.input(randomOf(nameHash, seed));
  const outcome = await takeOnce(entry, target, input, limits, () => performance.now());
  if (outcome.kind !== 'failed' || !(outcome.error instanceof TooSlow)) return outcome;
  // Something else may have used the processor.
  return takeOnce(entry, target, target.input(randomOf(nameHash, seed)), limits, processorMs);
}

/** Takes an input whose time and memory are measured. */
async function takeOnce(
  entry: TargetEntry,
  target: Target,
  input: unknown,
  { limitMs, limitMiB }: FuzzLimits,
  clockMs: () => number,
): Promise<Outcome> {
  const bytesBefore = heldBytes();
  const startMs = clockMs();
  const outcome = await judged(entry, target, input);
  const milliseconds = clockMs() - startMs;
  const heldMiB = (heldBytes() - bytesBefore) / 2 ** 20;
  if (outcome.kind === 'failed') return outcome;
  if (milliseconds > limitMs)
    return failed(new TooSlow(`it took ${(milliseconds / 1000).toFixed(1)} s, more than ${limitMs / 1000} s`));
  if (heldMiB > limitMiB)
    return failed(new Error(`it took ${Math.round(heldMiB)} MiB of memory, more than ${limitMiB} MiB`));
  return outcome;
}

async function judged(entry: TargetEntry, target: Target, input: unknown): Promise<Outcome> {
  try {
    const taken = target.take(input);
    if (taken !== undefined) await taken;
    return { kind: 'accepted', message: '' };
  } catch (error) {
    if (!entry.refusals.some((refusal) => error instanceof refusal)) return failed(error);
    const { message } = error as Error;
    return isSentence(message)
      ? { kind: 'refused', message }
      : failed(new Error(`no sentence for a person: ${JSON.stringify(message)}`));
  }
}

class TooSlow extends Error {}

function failed(error: unknown): Outcome {
  return { kind: 'failed', error };
}

/** A refusal is read by a person: one line, not a page. */
function isSentence(message: string): boolean {
  return message.length >= 10 && message.length <= 10_000 && !message.includes('\n');
}

function randomOf(nameHash: number, seed: number): ReturnType<typeof createRandom> {
  return createRandom(nameHash, Math.floor(seed / 2 ** 32), seed);
}

/** Processor time of all threads: on a busy machine less than what a clock shows, but slow to ask for. */
function processorMs(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}

/** Bytes of array buffers and of the JavaScript heap, with garbage that has not been collected. */
function heldBytes(): number {
  const { external_memory: external, used_heap_size: heap } = getHeapStatistics();
  return external + heap;
}

/**
 * Threads leave stacks out, because refusals are frequent there: a failing input is taken once more, with its stack.
 */
async function described(
  entry: TargetEntry,
  target: Target,
  nameHash: number,
  seed: number,
  outcome: Outcome,
): Promise<string> {
  const limit = Error.stackTraceLimit;
  Error.stackTraceLimit = 30;
  let error = outcome.kind === 'failed' ? outcome.error : undefined;
  if (!(error instanceof TooSlow)) {
    const again = await judged(entry, target, target.input(randomOf(nameHash, seed)));
    if (again.kind === 'failed') error = again.error;
  }
  Error.stackTraceLimit = limit;
  const text =
    error instanceof TooSlow ? error.message : error instanceof Error ? (error.stack ?? error.message) : String(error);
  return `${text}\ninput: ${inputText(target.input(randomOf(nameHash, seed)))}`;
}

const shownLength = 1500;

/** An input as text: strings as they are, bytes in hexadecimal, anything else as JSON. */
function inputText(input: unknown): string {
  const text =
    typeof input === 'string'
      ? JSON.stringify(input)
      : input instanceof Uint8Array
        ? Buffer.from(input).toString('hex')
        : JSON.stringify(input, (_key, value: unknown) => {
            if (value instanceof Uint8Array) return Buffer.from(value).toString('hex');
            return typeof value === 'bigint' ? String(value) : value;
          });
  return text === undefined || text.length <= shownLength
    ? String(text)
    : `${text.slice(0, shownLength)}… (${text.length} characters)`;
}
