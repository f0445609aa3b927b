// `npm run simulate:faults -- --seeds N --start S`: rehearses seeds S to S + N − 1. Exits with 1 when something that
// must hold did not, with the command that repeats it; with 2 for a wrong flag.

import { parseArgs } from 'node:util';
import { InputError } from '../errors.ts';
import { type RehearsedModes, rehearsedModes, scenarioIn } from './modes.ts';
import { rehearse } from './rehearse.ts';
import { rehearseOnThreads, type SeedSummary } from './seeds.ts';

const usage = `Rehearses runs on virtual devices, each with the faults of its seed, and checks after every event what
must hold.

  npm run simulate:faults -- --seeds 10000 --start 0
  npm run simulate:faults -- --start 17 --trace      one seed, a line for everything that happens

  --seeds N     how many seeds (default 1000; with --trace 1)
  --start S     the first seed (default 0)
  --threads T   worker threads (default 2)
  --modes M     sync (default) | async, where rounds overlap | forward-gradient | infer | mixed
                | frozen, where weights are
  --trace       prints the scenario and every event`;

interface Flags {
  readonly seeds: number;
  readonly start: number;
  readonly threads: number;
  readonly modes: RehearsedModes;
  readonly trace: boolean;
  readonly help: boolean;
}

function readFlags(): Flags {
  const { values } = parseArgs({
    options: {
      seeds: { type: 'string' },
      start: { type: 'string', default: '0' },
      threads: { type: 'string', default: '2' },
      modes: { type: 'string', default: 'sync' },
      trace: { type: 'boolean', default: false },
      help: { type: 'boolean', default: false },
    },
  });
  const number = (flag: 'seeds' | 'start' | 'threads', least: number, text: string): number => {
    const value = Number(text);
    if (text !== '' && Number.isSafeInteger(value) && value >= least) return value;
    throw new InputError(`--${flag} ${text} must be a whole number of at least ${least}.`);
  };
  return {
    seeds: number('seeds', 1, values.seeds ?? (values.trace ? '1' : '1000')),
    start: number('start', 0, values.start),
    threads: Math.min(64, number('threads', 1, values.threads)),
    modes: modesOf(values.modes),
    trace: values.trace,
    help: values.help,
  };
}

function modesOf(text: string): RehearsedModes {
  const modes = rehearsedModes.find((name) => name === text);
  if (modes === undefined) throw new InputError(`--modes ${text} must be one of ${rehearsedModes.join(', ')}.`);
  return modes;
}

/** Runs one seed after the other and prints every event. Returns how many had violations. */
async function trace({ start, seeds, modes }: Flags): Promise<number> {
  let failureCount = 0;
  for (let seed = start; seed < start + seeds; seed++) {
    const scenario = scenarioIn(modes, seed);
    console.log(JSON.stringify(scenario, undefined, 2));
    const report = await rehearse(scenario, { isTraced: true });
    for (const line of report.lines ?? []) console.log(line);
    console.log(`seed ${seed}: ${report.outcome} ${report.eventCount} events, trace ${report.traceHash}`);
    for (const violation of report.violations) console.log(`  ${violation}`);
    if (report.violations.length > 0) failureCount++;
  }
  return failureCount;
}

function describe(
  { seedCount, eventCount, virtualSeconds, traceHash, outcomes }: SeedSummary,
  seconds: number,
): string {
  const sorted = Object.entries(outcomes).sort((a, b) => b[1] - a[1]);
  const lines = sorted.slice(0, 12).map(([outcome, count]) => `${String(count).padStart(8)}  ${outcome}`);
  const hash = traceHash.toString(16).padStart(8, '0');
  const hours = (virtualSeconds / 3600).toFixed(1);
  return [
    ...lines,
    ...(sorted.length > 12 ? [`          and ${sorted.length - 12} other outcomes`] : []),
    `${seedCount} seeds, ${eventCount} events, ${hours} virtual hours in ${seconds.toFixed(1)} s; all traces ${hash}`,
  ].join('\n');
}

/** Returns how many seeds had violations. */
async function runAll({ start, seeds, threads, modes }: Flags): Promise<number> {
  const startMs = performance.now();
  const isTerminal = process.stderr.isTTY;
  const summary = await rehearseOnThreads(
    { first: start, end: start + seeds, modes },
    {
      threadCount: threads,
      onProgress: ({ seedCount }) => isTerminal && process.stderr.write(`\r${seedCount} of ${seeds}`),
    },
  );
  if (isTerminal) process.stderr.write('\r');
  console.log(describe(summary, (performance.now() - startMs) / 1000));
  for (const { seed, violations } of summary.failures.slice(0, 20)) {
    console.log(
      `\nseed ${seed} broke what must hold; see it again: ` +
        `npm run simulate:faults -- --start ${seed} --modes ${modes} --trace`,
    );
    for (const violation of violations) console.log(`  ${violation}`);
  }
  const count = summary.failures.length;
  if (count > 0) console.log(`\n${count} of ${seeds} seeds broke what must hold.`);
  return count;
}

async function main(): Promise<void> {
  const flags = readFlags();
  if (flags.help) return console.log(usage);
  const failureCount = await (flags.trace ? trace(flags) : runAll(flags));
  process.exitCode = failureCount > 0 ? 1 : 0;
}

main().catch((error: unknown) => {
  const isInput =
    error instanceof InputError ||
    (error instanceof Error && 'code' in error && String(error.code).startsWith('ERR_PARSE_ARGS'));
  console.error(isInput ? `${error instanceof Error ? error.message : error}\n\n${usage}` : error);
  process.exitCode = isInput ? 2 : 1;
});
