// `asteroid serve` under load: autocannon with 200 connections, and beside it connections that compare every answer
// with stock ONNX Runtime's; two of three workers are killed and come back meanwhile. Nothing may be wrong or lost.
//   npm run bench -- serve [--seconds 120] [--connections 200] [--json]
// Runs autocannon by npx.

import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import * as runtime from 'onnxruntime-node';
import { defined } from '../dist/assert.js';
import { exportGraph } from '../dist/graph/onnx/export.js';
import { inferenceMode } from '../dist/graph/onnx/modes.js';
import { buildModel } from '../dist/models/zoo.js';
import { createRandom } from '../dist/random.js';
import { freePort, listening, type Running, startAsteroid, startWorker } from './common/remote-workers.ts';
import { table } from './common/table.ts';

const { values } = parseArgs({
  options: {
    seconds: { type: 'string', default: '120' },
    connections: { type: 'string', default: '200' },
    json: { type: 'boolean', default: false },
  },
});
const seconds = Number(values.seconds);
const folder = mkdtempSync(join(tmpdir(), 'asteroid-bench-serve-'));
const checkerCount = 8;
const tolerance = 1e-5;

interface Question {
  readonly body: string;
  readonly wanted: readonly number[];
}

interface Checked {
  answers: number;
  wrong: number;
  /** Other answers, by status, and connections that broke, by the error's code. */
  readonly failed: Map<string, number>;
}

/** What happened, and how long after the load began. */
type Happened = readonly [ms: number, what: string];

/** What autocannon says. */
interface Load {
  readonly requests: { readonly total: number; readonly average: number };
  readonly latency: { readonly p50: number; readonly p97_5: number; readonly p99: number; readonly max: number };
  readonly errors: number;
  readonly timeouts: number;
  readonly non2xx: number;
  readonly '2xx': number;
  readonly statusCodeStats: Readonly<Record<string, { readonly count: number }>>;
}

const port = await freePort();
const workers: Running[] = [];
let server: Running | undefined;
try {
  const questions = await makeQuestions(16);
  const place = ['--workers', '0', '--remote', '3', '--port', String(port), '--code-file', 'code'];
  const model = ['serve', '--model', 'model.onnx', '--planner', 'unmeasured', '--listen', '127.0.0.1:0', '--json'];
  server = startAsteroid(folder, [...model, ...place, '--queue', '4096']);
  await listening(folder, server);
  const names = ['a', 'b', 'c'];
  workers.push(...names.map((name) => startWorker(folder, port, name)));
  const url = await servingUrl(server);
  await ready(url);
  const load = cannon(`${url}/v2/models/model/infer`, defined(questions[0], 'a question').body);
  await Promise.race([answered(url), load]);
  const [checked, memory] = [{ answers: 0, wrong: 0, failed: new Map() }, [] as [number, number][]];
  const ending = new AbortController();
  const checkers = Array.from({ length: checkerCount }, (_, index) =>
    check(`${url}/v2/models/model/infer`, questions, index, { checked, signal: ending.signal }),
  );
  const watching = watchMemory(server.child, memory, ending.signal);
  const happened = timeline(server);
  for (const [index, at] of [0.25, 0.5].entries()) {
    await setTimeout(1000 * seconds * (index === 0 ? at : 0.25));
    const name = defined(names[index], 'a name');
    happened.add(`${name} is killed`);
    defined(workers[index], name).child.kill('SIGKILL');
    await setTimeout(1000 * seconds * 0.08);
    happened.add(`${name} is started again`);
    workers[index] = startWorker(folder, port, name);
  }
  const result = await load;
  ending.abort();
  await Promise.all([...checkers, watching]);
  server.child.kill('SIGTERM');
  const lines = await server.ended;
  const changes = lines.filter((line) => line.startsWith('{"event":"recovered"')).length;
  print(result, checked, memory, changes, happened.list);
} finally {
  for (const running of [...workers, server]) running?.child.kill('SIGKILL');
  rmSync(folder, { recursive: true, force: true });
}

/** Writes the model, and what stock ONNX Runtime answers to random pictures. */
async function makeQuestions(count: number): Promise<readonly Question[]> {
  const bytes = exportGraph(inferenceMode(buildModel('digits', { seed: 4 }).graph));
  writeFileSync(join(folder, 'model.onnx'), bytes);
  const session = await runtime.InferenceSession.create(bytes, { intraOpNumThreads: 1 });
  const name = defined(session.inputNames[0], 'an input');
  const random = createRandom(8);
  const questions: Question[] = [];
  for (let index = 0; index < count; index++) {
    const data = Array.from({ length: 784 }, () => Math.round(random.uniform() * 255) / 256);
    const shape = [1, 1, 28, 28];
    const found = await session.run({ [name]: new runtime.Tensor('float32', Float32Array.from(data), shape) });
    const { data: wanted } = defined(Object.values(found)[0], 'an output');
    questions.push({
      body: JSON.stringify({ inputs: [{ name, shape, datatype: 'FP32', data }] }),
      wanted: Array.from(wanted as Float32Array),
    });
  }
  await session.release();
  return questions;
}

async function servingUrl(server: Running): Promise<string> {
  for (;;) {
    const line = server.lines.find((each) => each.startsWith('{"event":"serving"'));
    if (line !== undefined) return (JSON.parse(line) as { url: string }).url;
    if (server.child.exitCode !== null) throw new Error('the server ended');
    await setTimeout(100);
  }
}

/** Notes the events of the server from now on, and what is added. */
function timeline({ child }: Running): { readonly list: readonly Happened[]; add(what: string): void } {
  const list: Happened[] = [];
  const startMs = performance.now();
  const add = (what: string): void => void list.push([Math.round(performance.now() - startMs), what]);
  createInterface({ input: defined(child.stdout ?? undefined, 'its output') }).on('line', (line) => {
    const event = JSON.parse(line) as Readonly<Record<string, unknown>>;
    const shown = ['event', 'phase', 'device', 'reason', 'cause', 'seconds', 'silentMs', 'deadAfterMs'];
    add(shown.flatMap((key) => (event[key] === undefined ? [] : [String(event[key])])).join(' '));
  });
  return { list, add };
}

async function ready(url: string): Promise<void> {
  while ((await fetch(`${url}/v2/health/ready`)).status !== 200) await setTimeout(100);
}

/** Resolves when the load has begun: npx may take its time. */
async function answered(url: string): Promise<void> {
  while (!(await (await fetch(`${url}/metrics`)).text()).includes('asteroid_requests_total{')) await setTimeout(100);
}

/** Asks one question after the other. */
async function check(
  url: string,
  questions: readonly Question[],
  first: number,
  { checked, signal }: { readonly checked: Checked; readonly signal: AbortSignal },
): Promise<void> {
  for (let index = first; !signal.aborted; index++) {
    const { body, wanted } = defined(questions[index % questions.length], 'a question');
    const answer = await fetch(url, { method: 'POST', body }).catch(brokenBy);
    if (typeof answer === 'string' || answer.status !== 200) {
      const what = typeof answer === 'string' ? answer : String(answer.status);
      checked.failed.set(what, (checked.failed.get(what) ?? 0) + 1);
      if (typeof answer !== 'string') await answer.arrayBuffer();
      continue;
    }
    const { outputs } = (await answer.json()) as { outputs: readonly { data: readonly number[] }[] };
    const found = outputs[0]?.data ?? [];
    const scale = Math.max(...wanted.map(Math.abs));
    const isRight =
      found.length === wanted.length &&
      wanted.every((value, at) => Math.abs(value - (found[at] ?? Number.NaN)) <= tolerance * scale);
    checked.answers++;
    if (!isRight) checked.wrong++;
  }
}

/** How a request's connection broke. */
function brokenBy(error: unknown): string {
  const { cause } = error as { readonly cause?: { readonly code?: string } };
  if (cause?.code === undefined) throw error;
  return cause.code;
}

/** Resident memory of the server, every two seconds. */
async function watchMemory({ pid }: ChildProcess, memory: [number, number][], signal: AbortSignal): Promise<void> {
  const startMs = performance.now();
  while (!signal.aborted) {
    const text = await fetchResident(pid);
    memory.push([(performance.now() - startMs) / 1000, text]);
    await setTimeout(2000, undefined, { signal }).catch(() => {}); // the load has ended
  }
}

async function fetchResident(pid: number | undefined): Promise<number> {
  const { readFile } = await import('node:fs/promises');
  const found = /VmRSS:\s*(\d+) kB/.exec(await readFile(`/proc/${pid}/status`, 'utf8'));
  return Number(found?.[1] ?? 0) / 1024;
}

async function cannon(url: string, body: string): Promise<Load> {
  writeFileSync(join(folder, 'body.json'), body);
  const given = ['-c', values.connections, '-d', values.seconds, '-m', 'POST', '-i', join(folder, 'body.json')];
  const child = spawn('npx', ['--yes', 'autocannon@8', ...given, '-t', '60', '--json', url], {
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  let output = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    output += text;
  });
  const code = await new Promise((resolve) => child.once('close', resolve));
  if (code !== 0) throw new Error(`autocannon ended with ${String(code)}`);
  return JSON.parse(output) as Load;
}

function print(
  load: Load,
  checked: Checked,
  memory: readonly (readonly [number, number])[],
  changes: number,
  happened: readonly Happened[],
): void {
  const at = (fraction: number): number => memory[Math.floor(fraction * (memory.length - 1))]?.[1] ?? 0;
  const memoryMiB = [0.1, 0.25, 0.5, 0.75, 1].map(at);
  if (values.json) return console.log(JSON.stringify({ load, checked, memoryMiB, changes, happened }));
  const { requests, latency, errors, timeouts, non2xx } = load;
  console.log(
    table(
      ['', ''],
      [
        ['answers a second', requests.average.toFixed(0)],
        ['answers', String(load['2xx'])],
        ['errors, time-outs, other statuses', `${errors}, ${timeouts}, ${non2xx}`],
        ['latency p50, p97.5, p99, largest (ms)', Object.values(pick(latency)).join(', ')],
        ['compared, wrong, failed', `${checked.answers}, ${checked.wrong}, ${sum([...checked.failed.values()])}`],
        [
          'statuses of the load',
          counts(Object.entries(load.statusCodeStats).map(([code, { count }]) => [code, count])),
        ],
        ['statuses that failed, of those compared', counts([...checked.failed])],
        ['changes of the layout', String(changes)],
        ['memory of the server at 10, 25, 50, 75, 100 % (MiB)', memoryMiB.map((mib) => mib.toFixed(0)).join(', ')],
      ],
    ),
  );
  for (const [ms, what] of happened) console.log(`${(ms / 1000).toFixed(2).padStart(7)} s  ${what}`);
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

function counts(found: readonly (readonly [string | number, number])[]): string {
  return found.map(([status, count]) => `${count} × ${status}`).join(', ') || 'none';
}

function pick({ p50, p97_5, p99, max }: Load['latency']): Readonly<Record<string, number>> {
  return { p50, p97_5, p99, max };
}
