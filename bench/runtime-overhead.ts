// What the runtime costs: the same training run in this process and over one worker process, in alternation. `npm run
// build`, then
//   npm run bench -- runtime-overhead [--json]
// prints medians of the training time (after deployment, without compiling) and the ratio worker / in-process.

import { resolveSettings } from '../dist/cli/settings.js';
import { systemClock } from '../dist/clock.js';
import { loadModel } from '../dist/runtime/host/models.js';
import { runSession } from '../dist/runtime/host/session-here.js';
import { median } from '../dist/statistics.js';
import { loadDataset } from '../dist/storage/node/datasets.js';
import { at } from './common/numbers.ts';

const isJson = process.argv.includes('--json');
const pairCount = 3;
const data = await loadDataset('mnist');

const cases = [
  { name: 'digits, batch 100', batch: 100, steps: 150 },
  { name: 'digits, batch 100 in 4 micro-batches', batch: 100, microBatch: 25, steps: 150 },
  { name: 'digits, batch 32', batch: 32, steps: 300 },
];

async function seconds(
  settings: { readonly batch: number; readonly microBatch?: number; readonly steps: number },
  workers: number,
): Promise<number> {
  const resolved = resolveSettings(
    { model: 'digits', data: 'mnist', optimizer: 'adam', lr: 0.003, workers, ...settings },
    {},
    '',
  );
  const model = await loadModel('digits', 0);
  let trainingMs = 0;
  // The first rounds warm up caches and the JIT; time counts from round 10 on.
  await runSession(
    { settings: resolved, model, train: data.train, test: undefined },
    {
      clock: systemClock,
      signal: new AbortController().signal,
      observe: (event) => {
        if (event.kind === 'round' && event.metrics.round === 9) trainingMs = -performance.now();
        if (event.kind === 'round' && event.metrics.round === settings.steps - 1) trainingMs += performance.now();
      },
    },
  );
  return trainingMs / 1000;
}

const results = [];
for (const { name, ...settings } of cases) {
  const here: number[] = [];
  const worker: number[] = [];
  for (let pair = 0; pair < pairCount; pair++) {
    here.push(await seconds(settings, 0));
    worker.push(await seconds(settings, 1));
  }
  const ratios = worker.map((value, index) => value / at(here, index));
  results.push({ name, inProcessS: median(here), oneWorkerS: median(worker), ratio: median(ratios) });
  if (!isJson)
    console.log(
      `${name}: in process ${median(here).toFixed(3)} s, one worker ${median(worker).toFixed(3)} s, ` +
        `ratio ${median(ratios).toFixed(3)}`,
    );
}
if (isJson) console.log(JSON.stringify({ cases: results }));
