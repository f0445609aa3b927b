// `npm run fuzz -- --inputs N --start S --only TARGET`: takes N inputs, shared among all targets, or all of one. Exits
// with 1 when one fails, with the command that takes it again; with 2 for a wrong flag.

import { availableParallelism } from 'node:os';
import { parseArgs } from 'node:util';
import { InputError } from '../errors.ts';
import { defaultLimits, type FuzzSummary, type InputRange, merged, noInputs } from './fuzz.ts';
import { shareInputs } from './target.ts';
import { targetOf, targets } from './targets.ts';
import { fuzzOnThreads } from './threads.ts';

const names = targets.filter(({ share }) => share > 0).map(({ name }) => name);
const usage = `Gives random and damaged input to everything that reads from the network or from files, and checks that
it is taken or refused with a sentence.

  npm run fuzz -- --inputs 1000000
  npm run fuzz -- --only onnx --start 17 --inputs 1

  --inputs N      how many inputs, of all targets together (default 100000)
  --start S       the first seed of each target (default 0)
  --only TARGET   ${names.join(', ')}
  --threads T     worker threads (default: one for each core)`;

interface Flags {
  readonly inputs: number;
  readonly start: number;
  readonly only: string | undefined;
  readonly threads: number;
  readonly help: boolean;
}

function readFlags(): Flags {
  const { values } = parseArgs({
    options: {
      inputs: { type: 'string', default: '100000' },
      start: { type: 'string', default: '0' },
      only: { type: 'string' },
      threads: { type: 'string', default: String(availableParallelism()) },
      help: { type: 'boolean', default: false },
    },
  });
  const number = (flag: 'inputs' | 'start' | 'threads', least: number): number => {
    const value = Number(values[flag]);
    if (values[flag] !== '' && Number.isSafeInteger(value) && value >= least) return value;
    throw new InputError(`--${flag} ${values[flag]} must be a whole number of at least ${least}.`);
  };
  if (values.only !== undefined) targetOf(values.only);
  return {
    inputs: number('inputs', 1),
    start: number('start', 0),
    only: values.only,
    threads: Math.min(64, number('threads', 1)),
    help: values.help,
  };
}

/** Slow targets, which have small shares, come first. */
function rangesOf({ inputs, start, only }: Flags): InputRange[] {
  const counts = only === undefined ? shareInputs(targets, inputs) : new Map([[only, inputs]]);
  return [...counts]
    .map(([target, count]) => ({ target, first: start, end: start + count }))
    .sort((a, b) => a.end - b.end);
}

function line(name: string, { inputCount, refusedCount, acceptedCount, milliseconds }: FuzzSummary): string {
  const numbers = [inputCount, refusedCount, acceptedCount].map((count) => String(count).padStart(9)).join('');
  return `${name.padEnd(16)}${numbers}${(milliseconds / 1000).toFixed(1).padStart(9)}`;
}

function describe(summaries: ReadonlyMap<string, FuzzSummary>, seconds: number): string {
  const all = [...summaries.values()].reduce(merged, noInputs);
  const rows = [...summaries].sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, summary]) => line(name, summary));
  const hash = all.outcomeHash.toString(16).padStart(8, '0');
  return [
    'target             inputs  refused accepted  seconds',
    ...rows,
    `${all.inputCount} inputs in ${seconds.toFixed(1)} s; all outcomes ${hash}`,
  ].join('\n');
}

/** Prints the outcomes; returns how many inputs failed. */
async function fuzz(flags: Flags): Promise<number> {
  const startMs = performance.now();
  const isTerminal = process.stderr.isTTY;
  const summaries = await fuzzOnThreads(rangesOf(flags), {
    threadCount: flags.threads,
    limits: defaultLimits,
    onProgress: (count) => isTerminal && process.stderr.write(`\r${count} of ${flags.inputs}`),
  });
  if (isTerminal) process.stderr.write('\r');
  console.log(describe(summaries, (performance.now() - startMs) / 1000));
  const failures = [...summaries].flatMap(([target, summary]) =>
    summary.failures.map((failure) => ({ target, ...failure })),
  );
  for (const { target, seed, problem } of failures.slice(0, 20)) {
    console.log(`\n${target} failed; see it again: npm run fuzz -- --only ${target} --start ${seed} --inputs 1`);
    console.log(problem.replace(/^/gm, '  '));
  }
  if (failures.length > 0) console.log(`\n${failures.length} inputs failed.`);
  return failures.length;
}

async function main(): Promise<void> {
  const flags = readFlags();
  if (flags.help) return console.log(usage);
  process.exitCode = (await fuzz(flags)) > 0 ? 1 : 0;
}

main().catch((error: unknown) => {
  const isInput =
    error instanceof InputError ||
    (error instanceof Error && 'code' in error && String(error.code).startsWith('ERR_PARSE_ARGS'));
  // Of Node's own messages the first sentence is enough.
  console.error(isInput && error instanceof Error ? `${error.message.split(/\. |\n/)[0]?.replace(/\.$/, '')}.` : error);
  process.exitCode = isInput ? 2 : 1;
});
