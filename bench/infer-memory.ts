// Memory of workers that infer, predicted and measured: each one's most (VmHWM, Linux), from its start to its end, over
// one to three workers; by `infer`, whose last batch is smaller, and by `serve`, whose rounds have 1, 2, 4 and 8
// samples. Held against the prediction, 160 MiB for the process included, plus 10 % and 30 MiB; exit code 1 where a
// worker takes more.
//   npm run bench -- infer-memory [--only resnet] [--workers 1,2,3] [--limit MiB] [--planner best] [--json]
// --limit: each worker's --max-memory; with little of it, weights lie in files (which only measured plans know).

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { processMiB } from '../dist/cluster/memory.js';
import { type CutTensor, layers } from '../dist/graph/layers.js';
import { elementCount } from '../dist/graph/tensor.js';
import { loadInferenceModel } from '../dist/runtime/host/models.js';
import { samplesOf } from './common/inference-cases.ts';
import { writeNpz } from './common/npz.ts';
import { freePort, listening, peakMiBOf, type Running, startAsteroid, startWorker } from './common/remote-workers.ts';
import { table } from './common/table.ts';

const { values: flags } = parseArgs({
  options: {
    only: { type: 'string', default: '' },
    workers: { type: 'string', default: '1,2,3' },
    limit: { type: 'string' },
    planner: { type: 'string', default: 'unmeasured' },
    json: { type: 'boolean', default: false },
  },
});

const models = ['mobilenet-v2', 'resnet-50', 'vit-base'] as const;
const [batch, sampleCount] = [8, 44] as const;
type Command = 'infer' | 'serve';

interface Worker {
  readonly device: string;
  readonly measuredMiB: number;
  readonly predictedMiB: number;
}

type Event = Readonly<Record<string, unknown>> & { readonly event: string };

const eventsOf = ({ lines }: Running): readonly Event[] => lines.map((line) => JSON.parse(line) as Event);

/** The first event of a kind. */
async function seen(running: Running, kind: string): Promise<Event> {
  for (;;) {
    const found = eventsOf(running).find(({ event }) => event === kind);
    if (found !== undefined) return found;
    if (running.child.exitCode !== null) throw new Error(`asteroid ended before ${kind}`);
    await setTimeout(100);
  }
}

async function measured(model: string, command: Command, workerCount: number): Promise<readonly Worker[]> {
  const folder = mkdtempSync(join(tmpdir(), 'infer-memory-'));
  const started: Running[] = [];
  try {
    const { inputs } = layers((await loadInferenceModel(model)).graph);
    writeFileSync(join(folder, 'x.npz'), writeNpz(samplesOf(inputs, sampleCount, 3)));
    const port = await freePort();
    const place = ['--workers', '0', '--remote', String(workerCount), '--port', String(port), '--code-file', 'code'];
    const how = ['--model', model, '--planner', flags.planner, '--micro-batch', String(batch), '--json'];
    const own =
      command === 'infer'
        ? ['--data', 'npz:x.npz', '-o', 'y.npz', '--batch', String(2 * batch)]
        : ['--listen', '127.0.0.1:0'];
    const coordinator = startAsteroid(folder, [command, ...how, ...own, ...place]);
    started.push(coordinator);
    await listening(folder, coordinator);
    const limit = flags.limit === undefined ? [] : ['--max-memory', flags.limit];
    const names = Array.from({ length: workerCount }, (_, index) => `worker-${index + 1}`);
    const workers = names.map((name) => startWorker(folder, port, name, limit));
    started.push(...workers);
    const peaks = names.map(() => 0);
    const timer = setInterval(() => {
      for (const [index, { child }] of workers.entries()) peaks[index] = peakMiBOf(child.pid) ?? peaks[index] ?? 0;
    }, 50);
    if (command === 'serve') await askAll(coordinator, inputs);
    await coordinator.ended.finally(() => clearInterval(timer));
    const { plan } = (await seen(coordinator, 'deployment')) as unknown as {
      readonly plan: { readonly predicted: { readonly peakMemoryMiB: Readonly<Record<string, number>> } };
    };
    // A device that the plan leaves out is measured all the same.
    return names.map((device, index) => ({
      device,
      measuredMiB: peaks[index] ?? 0,
      predictedMiB: processMiB + (plan.predicted.peakMemoryMiB[device] ?? 0),
    }));
  } finally {
    for (const { child } of started) child.kill('SIGKILL');
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Requests of each number of samples, then the end. */
async function askAll(server: Running, inputs: readonly CutTensor[]): Promise<void> {
  const { url, model } = await seen(server, 'serving');
  await seen(server, 'ready');
  for (const count of [8, 4, 2, 1, 8, 4, 2, 1]) {
    const sized = inputs.map(({ name, shape, type }) => {
      const sizes = shape.map((size) => (size === 'N' ? count : size));
      return { name, shape: sizes, datatype: type === 'int64' ? 'INT64' : 'FP32', data: zeros(elementCount(sizes)) };
    });
    const body = JSON.stringify({ inputs: sized });
    const answer = await fetch(`${url}/v2/models/${model}/infer`, { method: 'POST', body });
    if (!answer.ok) throw new Error(await answer.text());
    await answer.arrayBuffer();
  }
  server.child.kill('SIGTERM');
}

const zeros = (count: number): readonly number[] => new Array<number>(count).fill(0);

const limitMiB = ({ predictedMiB }: Worker): number => 1.1 * predictedMiB + 30;
const listed = (workers: readonly Worker[], value: (worker: Worker) => number): string =>
  workers.map((worker) => value(worker).toFixed(0)).join(', ');

const results = [];
for (const model of models)
  for (const command of ['infer', 'serve'] as const)
    for (const workerCount of flags.workers.split(',').map(Number)) {
      const title = `${model}, ${command}, ${workerCount} ${workerCount === 1 ? 'worker' : 'workers'}`;
      if (!title.includes(flags.only)) continue;
      const workers = await measured(model, command, workerCount);
      const isWithin = workers.every((each) => each.measuredMiB <= limitMiB(each));
      console.error(`${title}: ${listed(workers, (each) => each.measuredMiB)} MiB${isWithin ? '' : ', TOO MUCH'}`);
      results.push({ title, workers, isWithin });
    }
if (flags.json) console.log(JSON.stringify(results));
else
  console.log(
    table(
      ['run', 'measured', 'predicted', 'limit', 'within'],
      results.map(({ title, workers, isWithin }) => [
        title,
        listed(workers, ({ measuredMiB }) => measuredMiB),
        listed(workers, ({ predictedMiB }) => predictedMiB),
        listed(workers, limitMiB),
        isWithin ? 'yes' : 'NO',
      ]),
    ),
  );
if (results.some(({ isWithin }) => !isWithin)) process.exitCode = 1;
