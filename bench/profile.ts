// How near a measured profile comes to the real stages of plans: profiles a model on this machine with one thread,
// predicts stages between several cuts at several shares, then compiles and times these stages as a run does. Times are
// the compute thread's processor time, which other processes change little (on Linux; elsewhere the time on the clock).
// Usage: npm run bench:profile -- [--json] [--quick] [MODEL:LARGEST_SHARE ...]

import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { systemClock } from '../dist/clock.js';
import { layerTimes } from '../dist/cluster/times.js';
import type { Engine } from '../dist/engine/engine.js';
import { createComputeThread } from '../dist/engine/node/compute-thread.js';
import { allocatorEnvironment } from '../dist/engine/node/host-node.js';
import { layers } from '../dist/graph/layers.js';
import { buildModel } from '../dist/models/zoo.js';
import { profileLayers } from '../dist/runtime/device/measure/profiler.js';
import { createStageTrial, timeMicroBatches } from '../dist/runtime/device/measure/stage-trial.js';
import { assumedLabel, assumedTraining } from '../dist/runtime/host/profile-here.js';
import { profilePoints } from '../dist/runtime/protocol/profile-points.js';
import { at, percent } from './common/numbers.ts';
import { tableHead, tableRow } from './common/table.ts';

const args = process.argv.slice(2);
const json = args.includes('--json');
const thoroughness = args.includes('--quick') ? 'quick' : 'full';
const chosen = args.filter((arg) => !arg.startsWith('--'));
const cases = chosen.length > 0 ? chosen : ['digits:64', 'mobilenet-v2-cifar:16', 'efficientnet-b1:8', 'bert-small:4'];

/** Milliseconds on a processor of a thread of this process. */
const threadMs = (id: string) => Number(readFileSync(`/proc/self/task/${id}/schedstat`, 'utf8').split(' ')[0]) / 1e6;

/** Of all threads, where the system reports it. */
function threadTimes(): Map<string, number> {
  try {
    return new Map(readdirSync('/proc/self/task').map((id) => [id, threadMs(id)]));
  } catch {
    return new Map();
  }
}

/** The compute thread, whose time is that of the processor. */
async function processorTimeEngine(): Promise<Engine & { readonly busyMs: () => number }> {
  const before = threadTimes();
  const engine = await createComputeThread();
  const [[id] = [undefined]] = [...threadTimes()]
    .filter(([thread]) => !before.has(thread))
    .sort(([, a], [, b]) => b - a);
  const busyMs = () => (id === undefined ? engine.busyMs() : threadMs(id));
  return new Proxy(engine, {
    get: (_, key) => {
      const value: unknown = key === 'busyMs' ? busyMs : Reflect.get(engine, key);
      return typeof value === 'function' && key !== 'busyMs' ? value.bind(engine) : value;
    },
  });
}

/** Stages of plans: the whole, two stages with the cut at a third and at a half of the layers, three stages. */
function ranges(layerCount: number): (readonly [number, number])[] {
  const cutAt = (part: number) => Math.min(layerCount - 1, Math.max(1, Math.round(part * layerCount)));
  const plans = [[], [cutAt(1 / 3)], [cutAt(1 / 2)], [cutAt(1 / 4), cutAt(0.6)]];
  const found = plans.flatMap((cuts) =>
    [0, ...cuts].map((first, index) => [first, cuts[index] ?? layerCount] as const),
  );
  return [...new Map(found.filter(([first, end]) => first < end).map((range) => [range.join('-'), range])).values()];
}

async function measureCase(spec: string) {
  const [, model = '', largestText] = /^(.*):(\d+)$/.exec(spec) ?? [];
  const largest = Number(largestText);
  const sequence = layers(buildModel(model, { seed: 1 }).graph);
  const batchSizes = profilePoints(largest, undefined, thoroughness);
  const training = assumedTraining(largest, []);
  const label = assumedLabel(sequence);
  const engine = await processorTimeEngine();
  const clock = { ...systemClock, now: () => engine.busyMs() };
  const started = process.cpuUsage();
  const onProgress = () => {};
  const options = { batchSizes, thoroughness, training, label, clock, onProgress } as const;
  const { times } = await profileLayers(engine, sequence, options);
  const spent = process.cpuUsage(started);
  const profileS = (spent.user + spent.system) / 1e6;
  const layerCount = sequence.layers.length;
  const shares = [...new Set([largest, Math.round(largest * 0.6), Math.max(1, Math.round(largest / 5))])];
  const rows = [];
  for (const share of shares) {
    for (const [first, end] of ranges(layerCount)) {
      const isLast = end === layerCount;
      const predicted = layerTimes(times, batchSizes, isLast);
      const trial = await createStageTrial(engine, {
        sequence,
        layers: [first, end],
        sampleCount: share,
        microBatchSize: share,
        training,
        label,
        form: { passes: isLast ? 'step' : 'whole', sums: 'in-graph', grains: 1 },
      });
      const measured = await timeMicroBatches(trial, { ms: 50, runLimit: 50, count: 7, warmRuns: 2 });
      trial.release();
      const measuredMs = measured.forwardMs + measured.backwardMs;
      const predictedMs = predicted.forwardMs(first, end, share) + predicted.backwardMs(first, end, share);
      rows.push({ model, share, layers: [first, end], predictedMs, measuredMs, error: predictedMs / measuredMs - 1 });
    }
  }
  await engine.close();
  return { model, profileS, rows };
}

if (process.env.MALLOC_ARENA_MAX === undefined) {
  const env = { ...allocatorEnvironment(), ...process.env };
  process.exit(
    spawnSync(process.execPath, [fileURLToPath(import.meta.url), ...args], { env, stdio: 'inherit' }).status ?? 1,
  );
}
const results = [];
for (const spec of cases) {
  const result = await measureCase(spec);
  results.push(result);
  if (json) continue;
  console.log(`\n${result.model}: profiled in ${result.profileS.toFixed(1)} s of processor time`);
  console.log(tableHead(['share', 'layers', 'predicted, ms', 'measured, ms', 'error']));
  for (const { share, layers: range, predictedMs, measuredMs, error } of result.rows)
    console.log(tableRow([share, range.join('–'), predictedMs.toFixed(2), measuredMs.toFixed(2), percent(error)]));
}
const errors = results.flatMap(({ rows }) => rows.map(({ error }) => Math.abs(error))).sort((a, b) => a - b);
const summary = {
  stages: errors.length,
  medianError: at(errors, errors.length >> 1),
  ninetiethPercentile: at(errors, Math.floor(errors.length * 0.9)),
  largest: at(errors, -1),
};
if (json) console.log(JSON.stringify({ results, summary }));
else
  console.log(
    `\n${summary.stages} stages: median error ${percent(summary.medianError)}, ` +
      `nine of ten below ${percent(summary.ninetiethPercentile)}, largest ${percent(summary.largest)}`,
  );
