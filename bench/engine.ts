// Training steps (forward, backward, SGD with momentum) and PyTorch's, in alternation: `npm run bench:engine` prints
// a table and writes bench/results/; `-- --json` prints { cases: [{ name, threads, asteroidMs, pytorchMs, ratio }],
// geomean } with ratio = PyTorch's time / ours.
// Options: --only NAME, --threads 1|2, --rounds N (default 7), --python FILE (default: $PYTHON, python3).
// PyTorch: `python3 -m venv .venv && .venv/bin/pip install torch torchvision transformers`, then --python
// .venv/bin/python. Where it is missing, ours is timed alone and the ratios are null.
//
// Each side is a process of its own that computes only while it is asked to. Ours is the product's path: a stage on the
// compute thread, as a worker has it. Its step computes the gradients' norms too, which PyTorch's loop leaves out; the
// sums of the loss stay where they are on both sides.

import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { allocatorEnvironment } from '../dist/engine/node/host-node.js';
import { mean, median } from '../dist/statistics.js';
import { machine } from './common/numbers.ts';
import { table, writeResult } from './common/table.ts';
import { compileStageForBench } from './engine-stage.ts';

const cases = [
  { name: 'mobilenet-v2', model: 'mobilenet-v2:input=32,classes=10,dropout=0', batch: 32 },
  { name: 'efficientnet-b1', model: 'efficientnet-b1:input=32,classes=10,dropout=0', batch: 32 },
  { name: 'resnet-50', model: 'resnet-50', batch: 8 },
  { name: 'bert-small', model: 'bert-small:dropout=0', batch: 8 },
];
const stepsARound = 3;

const { values: options } = parseArgs({
  options: {
    json: { type: 'boolean', default: false },
    only: { type: 'string' },
    threads: { type: 'string' },
    rounds: { type: 'string', default: '7' },
    python: { type: 'string', default: process.env.PYTHON ?? 'python3' },
    serve: { type: 'string' },
  },
});

/** A process that answers "N" with the milliseconds of N steps, as a JSON line; the first line says what it is. */
class Side {
  private readonly process: ChildProcessWithoutNullStreams;
  private readonly lines: AsyncIterator<string>;
  private errors = '';

  constructor(command: string, args: readonly string[], env: NodeJS.ProcessEnv = {}) {
    this.process = spawn(command, args, { stdio: ['pipe', 'pipe', 'pipe'], env: { ...process.env, ...env } });
    this.process.stderr.on('data', (data) => {
      this.errors += data;
    });
    this.process.on('error', (error) => {
      this.errors += error.message;
    });
    this.lines = createInterface({ input: this.process.stdout })[Symbol.asyncIterator]();
  }

  async read(): Promise<unknown> {
    const { value, done } = await this.lines.next();
    if (done) throw new Error(this.errors.trim().split('\n').at(-1) ?? 'no answer');
    return JSON.parse(value);
  }

  async steps(count: number): Promise<number[]> {
    this.process.stdin.write(`${count}\n`);
    return (await this.read()) as number[];
  }

  async end() {
    this.process.stdin.end();
    if (this.process.exitCode === null && this.process.pid !== undefined) await once(this.process, 'exit');
  }
}

interface Case {
  readonly model: string;
  readonly batch: number;
}

async function serve({ model: spec, batch, threads }: Case & { readonly threads: number }) {
  const step = await compileStageForBench(spec, batch, threads);
  console.log(JSON.stringify({ ready: true }));
  for await (const line of createInterface({ input: process.stdin })) {
    const times: number[] = [];
    for (let index = 0; index < Number(line); index++) {
      const start = performance.now();
      await step();
      times.push(performance.now() - start);
    }
    console.log(JSON.stringify(times));
  }
  process.exit(0);
}

interface Result {
  readonly name: string;
  readonly threads: number;
  readonly asteroidMs: number;
  readonly pytorchMs: number | null;
  /** PyTorch's time / ours. */
  readonly ratio: number | null;
}

async function measure({ name, model, batch }: Case & { readonly name: string }, threads: number) {
  const own = fileURLToPath(import.meta.url);
  const ours = new Side(
    process.execPath,
    [own, '--serve', JSON.stringify({ model, batch, threads })],
    allocatorEnvironment(),
  );
  await ours.read();
  const theirs = new Side(options.python, [
    fileURLToPath(new URL('../bench/engine_pytorch.py', import.meta.url)),
    name,
    String(batch),
    String(threads),
  ]);
  let version: string | null = null;
  let reason: string | null = null;
  try {
    version = ((await theirs.read()) as { torch: string }).torch;
  } catch (error) {
    reason = error instanceof Error ? error.message : String(error);
  }
  const times: Record<'ours' | 'theirs', number[]> = { ours: [], theirs: [] };
  await ours.steps(8);
  if (version !== null) await theirs.steps(4);
  for (let round = 0; round < Number(options.rounds); round++) {
    times.ours.push(...(await ours.steps(stepsARound)));
    if (version !== null) times.theirs.push(...(await theirs.steps(stepsARound)));
  }
  await ours.end();
  await theirs.end();
  const asteroidMs = median(times.ours);
  const pytorchMs = version === null ? null : median(times.theirs);
  return {
    result: { name, threads, asteroidMs, pytorchMs, ratio: pytorchMs === null ? null : pytorchMs / asteroidMs },
    version,
    reason,
  };
}

function drawn(results: readonly Result[]): string {
  return table(
    ['model', 'threads', 'Asteroid, ms', 'PyTorch, ms', 'ratio'],
    results.map(({ name, threads, asteroidMs, pytorchMs, ratio }) => [
      ...[name, threads, asteroidMs.toFixed(1), pytorchMs?.toFixed(1) ?? '–', ratio?.toFixed(2) ?? '–'],
    ]),
  );
}

async function main() {
  const results: Result[] = [];
  let torch: string | null = null;
  for (const entry of cases.filter(({ name }) => options.only === undefined || options.only === name)) {
    for (const threads of options.threads === undefined ? [1, 2] : [Number(options.threads)]) {
      const { result, version, reason } = await measure(entry, threads);
      results.push(result);
      torch ??= version;
      if (reason !== null && results.length === 1) console.error(`PyTorch is left out: ${reason}`);
      if (!options.json)
        console.error(
          `${result.name}, ${threads}: ${result.asteroidMs.toFixed(1)} ms, ` +
            `PyTorch ${result.pytorchMs?.toFixed(1) ?? '–'} ms`,
        );
    }
  }
  const ratios = results.map(({ ratio }) => ratio).filter((ratio) => ratio !== null);
  const geomean = ratios.length === 0 ? null : Math.exp(mean(ratios.map(Math.log)));
  if (options.json) console.log(JSON.stringify({ cases: results, geomean }));
  else console.log(`${drawn(results)}\n\nGeometric mean of the ratios: ${geomean?.toFixed(2) ?? '–'}`);
  if (torch === null || options.only !== undefined || options.threads !== undefined) return;
  writeResult(
    'engine',
    (date) => `# Training steps compared with PyTorch, ${date}

Forward, backward and SGD with momentum, medians of ${Number(options.rounds) * stepsARound} steps of each side in \
alternation,
on ${machine()}, Node ${process.versions.node}, PyTorch ${torch} (eager). 32 images of 3x32x32, 8 of 3x224x224,
8 sequences of 128. Made by \`npm run bench:engine\`.

${drawn(results)}

Geometric mean of the ratios (PyTorch's time / ours): ${geomean?.toFixed(2)}
`,
  );
}

if (options.serve === undefined) await main();
else await serve(JSON.parse(options.serve));
