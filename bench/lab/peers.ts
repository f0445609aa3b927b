// Section peers: PyTorch on the devices of a lab, a rank on each, under the same quotas and over the same links: its
// DDP and its pipeline, and ours of the same form. Needs a Python with torch and torchvision.

import { spawn, spawnSync } from 'node:child_process';
import { defined } from '../../dist/assert.js';
import type { DeviceTimes, PlanLayout, Profile } from '../../dist/cluster/cluster.js';
import { commandOn, endDevices, type Lab } from '../../dist/lab/lab.js';
import { median } from '../../dist/statistics.js';
import { sum } from '../common/numbers.ts';
import { table } from '../common/table.ts';
import {
  type Found,
  type Group,
  type LabBench,
  openGroup,
  type ReadyGroup,
  type RoundCounts,
  round,
  roundCounts,
} from './group.ts';
import { formOf, layoutOf } from './layout.ts';

const script = new URL('../../bench/lab_pytorch.py', import.meta.url).pathname;

const groups: readonly Group[] = [
  { name: 'peers-A-1000', environment: ['A', 1000], model: 'mobilenet', microBatch: 10, count: 8 },
  { name: 'peers-A-100', environment: ['A', 100], model: 'mobilenet', microBatch: 10, count: 8 },
];

interface PeerResult {
  readonly cluster: string;
  readonly form: string;
  readonly plan: string;
  readonly asteroidMs: number;
  readonly pyTorchMs: number;
  readonly torch: string;
}

/** Why PyTorch cannot be run by this interpreter; undefined if it can. */
function missingPyTorch(python: string): string | undefined {
  const modules = 'import torch, torchvision, torch.distributed.pipelining';
  const { status, stderr, error } = spawnSync(python, ['-c', modules], { encoding: 'utf8' });
  if (status === 0) return undefined;
  const reason = (error?.message ?? stderr).trim().split('\n').at(-1);
  return `${python} has no torch and torchvision (${reason})`;
}

/** What lab_pytorch.py is given. `cuts`: the first block of each stage but the first. */
interface Job {
  readonly mode: 'ddp' | 'pipeline';
  readonly batch: number;
  readonly microBatchCount: number;
  readonly cuts?: readonly number[];
}

interface PyTorchRun {
  readonly torch: string;
  /** Of each round, without the warm-up. */
  readonly roundMs: readonly number[];
}

async function runPyTorch(lab: Lab, python: string, job: Job, { warmUp, rounds }: RoundCounts): Promise<PyTorchRun> {
  const { devices } = lab.layout;
  const full = { ...job, world: devices.length, master: devices[0]?.address, rounds: warmUp + rounds };
  const ends = devices.map(({ name }, rank) => {
    const [program, ...args] = commandOn(lab, name, [python, script, JSON.stringify({ ...full, rank })]);
    const child = spawn(program, args, {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, OMP_NUM_THREADS: '1' },
    });
    let [printed, errors] = ['', ''];
    child.stdout.setEncoding('utf8').on('data', (text) => (printed += text));
    child.stderr.setEncoding('utf8').on('data', (text) => (errors += text));
    return new Promise<string>((resolve, reject) => {
      child.once('close', (code) => {
        if (code === 0) resolve(printed);
        else reject(new Error(`PyTorch on ${name} ended with ${code}: ${errors.slice(-1500)}`));
      });
    });
  });
  try {
    const [first = ''] = await Promise.all(ends);
    const run: PyTorchRun = JSON.parse(first);
    return { torch: run.torch, roundMs: run.roundMs.slice(warmUp) };
  } finally {
    await endDevices(lab);
  }
}

/** A profile whose layers are the blocks at which PyTorch can be cut, `features.0` to `features.18` and the head. */
function byBlocks(profile: Profile): { readonly profile: Profile; readonly ends: readonly number[] } {
  const { layers } = profile;
  const blockOf = (layer: number) => /^features\.\d+/.exec(layers[layer]?.name ?? '')?.[0] ?? 'head';
  const ends = layers.flatMap((_, index) =>
    index + 1 === layers.length || blockOf(index + 1) !== blockOf(index) ? [index + 1] : [],
  );
  const merged = (row: readonly number[]) => ends.map((end, block) => sum(row.slice(ends[block - 1] ?? 0, end)));
  const mergedTimes = ({ forwardMs, backwardMs, stepMs }: DeviceTimes): DeviceTimes => ({
    forwardMs: forwardMs.map(merged),
    backwardMs: backwardMs.map(merged),
    ...(stepMs === undefined ? {} : { stepMs: stepMs.map(merged) }),
  });
  const devices = Object.fromEntries(
    Object.entries(profile.devices).map(([name, times]) => [name, mergedTimes(times)]),
  );
  return { profile: { ...profile, layers: ends.map((end) => defined(layers[end - 1], 'a layer')), devices }, ends };
}

/** A straight pipeline cut at blocks, as PyTorch's is: `cuts` in blocks, `layout` in layers. */
function straight({ bed, profile, cluster, sizes }: ReadyGroup, schedule: string) {
  const blocks = byBlocks(profile);
  const devices = bed.lab.layout.devices.map(({ name }) => [name]);
  const ofBlocks = layoutOf(blocks.profile, cluster, { groups: devices, schedule, ...sizes });
  const layer = (block: number) => blocks.ends[block - 1] ?? 0;
  const stages = ofBlocks.stages.map((stage) => {
    const [first, end] = stage.layers;
    return { ...stage, layers: [layer(first), layer(end)] as const };
  });
  const layout: PlanLayout = { ...ofBlocks, stages };
  return { layout, cuts: ofBlocks.stages.slice(1).map(({ layers }) => layers[0]) };
}

/** Ours and PyTorch's, data parallel and as a straight pipeline, on the same devices. */
async function measure(bench: LabBench, group: Group, python: string): Promise<PeerResult[]> {
  const ready = await openGroup(bench, group, { copies: false });
  try {
    const { bed, profile, cluster, sizes, batch } = ready;
    const results: PeerResult[] = [];
    const oursMs = async (layout: PlanLayout) => median((await ready.run(layout)).roundMs);
    const theirs = (layout: PlanLayout, job: Pick<Job, 'mode' | 'cuts'>) => {
      const counts = roundCounts(bench, ready.predict(layout).roundMs);
      return runPyTorch(bed.lab, python, { batch, microBatchCount: sizes.microBatchCount, ...job }, counts);
    };
    const add = (form: string, layout: PlanLayout, ms: number, { torch, roundMs }: PyTorchRun) => {
      const pyTorchMs = median(roundMs);
      const plan = formOf(layout);
      const times = { asteroidMs: round(ms, 4), pyTorchMs: round(pyTorchMs, 4) };
      results.push({ cluster: group.name, form, plan, ...times, torch });
      bench.log(`  ${form}: ${ms.toFixed(0)} ms, PyTorch ${torch} ${pyTorchMs.toFixed(0)} ms`);
    };
    const devices = bed.lab.layout.devices.map(({ name }) => name);
    const parallel = layoutOf(profile, cluster, { groups: [devices], schedule: '1f1b', ...sizes });
    add('data parallel', parallel, await oursMs(parallel), await theirs(parallel, { mode: 'ddp' }));
    const { layout, cuts } = straight(ready, '1f1b');
    const ours = await oursMs(layout);
    const pipeline = await theirs(layout, { mode: 'pipeline', cuts });
    add('straight pipeline', layout, ours, pipeline);
    // A stage and a device: PyTorch's schedules without a bubble want several stages a device.
    const zeroBubble = straight(ready, 'zb-h1').layout;
    add('straight pipeline, ZB-H1 beside its 1F1B', zeroBubble, await oursMs(zeroBubble), pipeline);
    return results;
  } finally {
    await ready.bed.close();
  }
}

export async function peers(bench: LabBench): Promise<Found> {
  const results: PeerResult[] = [];
  const { python } = bench;
  const missing = python === undefined ? 'no --python was given' : missingPyTorch(python);
  for (const group of groups.filter(({ name }) => name.includes(bench.only))) {
    if (python === undefined || missing !== undefined) bench.log(`${group.name}: left out, ${missing}`);
    else results.push(...(await measure(bench, group, python)));
  }
  const ratios = table(
    ['cluster, Mbps', 'form', 'plan', 'Asteroid ms', 'PyTorch ms', 'ratio'],
    results.map(({ cluster, form, plan, asteroidMs, pyTorchMs }) => [
      ...[cluster, form, plan, asteroidMs, pyTorchMs],
      `${(pyTorchMs / asteroidMs).toFixed(2)}x`,
    ]),
  );
  return { key: 'peers', results, tables: [ratios] };
}
