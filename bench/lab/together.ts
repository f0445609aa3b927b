// Section together: what five devices can be at most on this machine: each trains the whole model by itself, one alone
// and all at once. They share its cores, caches and memory, and nothing else.

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { commandOn, endDevices, type Lab } from '../../dist/lab/lab.js';
import { mean, median } from '../../dist/statistics.js';
import { sum } from '../common/numbers.ts';
import { table } from '../common/table.ts';
import { type JsonEvent, roundMsOf } from './events.ts';
import { type Found, type Group, type LabBench, leastWarmUp, models, openBed, round, settingsOf } from './group.ts';

const main = new URL('../../dist/cli/main.js', import.meta.url).pathname;

/** Five equal devices. */
const groups: readonly Group[] = [
  { name: 'together-A', environment: ['A', 1000], model: 'mobilenet', microBatch: 10, count: 8 },
];

interface TogetherResult {
  readonly cluster: string;
  readonly model: string;
  readonly results: readonly { readonly devices: number; readonly roundMs: readonly number[] }[];
}

interface Apart {
  readonly batch: number;
  readonly warmUp: number;
  readonly rounds: number;
}

/**
 * By device of `names`, which train at the same time: milliseconds of each round while all of them did, without the
 * warm-up.
 */
async function trainApart(
  lab: Lab,
  names: readonly string[],
  settings: readonly string[],
  { batch, warmUp, rounds }: Apart,
): Promise<Record<string, number[]>> {
  const folder = mkdtempSync(join(tmpdir(), 'asteroid-together-'));
  const times: Record<string, number[]> = Object.fromEntries(names.map((name) => [name, []]));
  let end = () => {};
  const over = new Promise<void>((resolve) => {
    end = resolve;
  });
  const options = ['--steps', '100000', '--workers', '0', '--threads', '1', '--json'];
  try {
    const ends = names.map((name) => {
      const home = join(folder, name);
      const words = ['train', ...settings, ...options, '--out', home];
      const [program, ...args] = commandOn(lab, name, [process.execPath, main, ...words]);
      const child = spawn(program, args, { stdio: ['ignore', 'pipe', 'inherit'], env: { ...process.env, HOME: home } });
      createInterface({ input: child.stdout }).on('line', (line) => {
        const event: JsonEvent = JSON.parse(line);
        if (event.event !== 'round') return;
        if (event.round >= warmUp) times[name]?.push(roundMsOf(event, batch));
        // All go on until the last one has this many rounds.
        if (Object.values(times).every((own) => own.length >= rounds)) end();
      });
      return new Promise((resolve) => child.once('close', resolve));
    });
    await Promise.race([over, Promise.all(ends)]);
    await endDevices(lab);
    await Promise.all(ends);
    return times;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Devices that train by themselves, one alone and all at once: the machine makes the difference. */
async function measure(bench: LabBench, group: Group): Promise<TogetherResult> {
  const bed = await openBed(bench, group);
  try {
    const names = bed.lab.layout.devices.map(({ name }) => name);
    const counts = { batch: group.microBatch * group.count, warmUp: leastWarmUp, rounds: bench.rounds };
    const results = [];
    // The one before and after all: the machine becomes faster and slower.
    for (const devices of [names.slice(0, 1), names, names.slice(0, 1)]) {
      const times = await trainApart(bed.lab, devices, settingsOf(group), counts);
      const roundMs = Object.values(times).map((all) => round(median(all), 4));
      results.push({ devices: devices.length, roundMs });
      bench.log(`  ${devices.length} at once: ${roundMs.join(', ')} ms`);
    }
    return { cluster: group.name, model: models[group.model].model, results };
  } finally {
    await bed.close();
  }
}

export async function together(bench: LabBench): Promise<Found> {
  const results: TogetherResult[] = [];
  for (const group of groups) if (group.name.includes(bench.only)) results.push(await measure(bench, group));
  const rounds = table(
    ['cluster', 'devices at once', 'rounds, ms', 'beside one alone'],
    results.flatMap(({ cluster, results: runs }) => {
      const aloneMs = mean(runs.flatMap(({ devices, roundMs }) => (devices === 1 ? roundMs.slice(0, 1) : [])));
      const speed = (roundMs: readonly number[]) => sum(roundMs.map((ms) => aloneMs / ms)).toFixed(2);
      return runs.map(({ devices, roundMs }) => [
        cluster,
        devices,
        roundMs.join(', '),
        `${speed(roundMs)}x the samples`,
      ]);
    }),
  );
  return { key: 'together', results, tables: [rounds] };
}
