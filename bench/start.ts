// Seconds from `asteroid train --workers 3` to each phase of a run's start, on this machine: with an empty cache, and
// from the cache that the first run left.
// Usage: npm run bench -- start [--profile full] [--repeat N]

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';
import { median } from '../dist/statistics.js';
import { tableHead, tableRow } from './common/table.ts';

const { values: flags } = parseArgs({
  options: {
    dist: { type: 'string', default: 'dist' },
    profile: { type: 'string', default: 'quick' },
    repeat: { type: 'string', default: '3' },
  },
});

/** Models of up to 20 million weights, and the images that they take. */
const cases: readonly (readonly [name: string, model: string, sample: string, batch: string])[] = [
  ['MobileNetV2, 2.2 M weights, 32 pixels', 'mobilenet-v2:input=32,classes=10', '3x32x32', '64'],
  ['EfficientNet-B1, 6.5 M weights, 32 pixels', 'efficientnet-b1:input=32,classes=10', '3x32x32', '64'],
  ['ResNet-18, 11 M weights, 64 pixels', 'resnet-18:input=64,classes=10', '3x64x64', '32'],
];

/** What is waited for: the name of a phase, and when it is over. */
const phases = ['measuring', 'profiling', 'planning', 'deploying', 'training', 'first round'] as const;
type Seconds = Partial<Record<(typeof phases)[number], number>>;

/** Seconds from the start of the command to the beginning of each phase, and to the commit of the first round. */
async function startOf(home: string, args: readonly string[]): Promise<Seconds> {
  const beginMs = performance.now();
  const main = join(flags.dist, 'cli/main.js');
  const out = join(mkdtempSync(join(home, 'run-')), 'out');
  const words = ['train', ...args, '--workers', '3', '--steps', '2', '--json', '--out', out];
  const child = spawn(
    process.execPath,
    [main, ...words, ...(flags.profile === 'none' ? [] : ['--profile', flags.profile])],
    {
      stdio: ['ignore', 'pipe', 'inherit'],
      env: { ...process.env, HOME: home, XDG_CACHE_HOME: join(home, 'cache') },
    },
  );
  const found: Seconds = {};
  const lines = createInterface({ input: child.stdout });
  lines.on('line', (line) => {
    const event = JSON.parse(line) as { readonly event: string; readonly phase?: string };
    const name = event.event === 'round' ? 'first round' : event.phase;
    const phase = phases.find((each) => each === name);
    if (phase !== undefined) found[phase] ??= (performance.now() - beginMs) / 1000;
  });
  const code = await new Promise((resolve) => child.once('close', resolve));
  if (code !== 0) throw new Error(`train ended with ${code}`);
  return found;
}

console.log(tableHead(['Model', 'Cache', ...phases]));
for (const [name, model, sample, batch] of cases) {
  const args = ['--model', model, '--data', `synthetic:${sample}`, '--batch', batch];
  const runs: Record<'empty' | 'filled', Seconds[]> = { empty: [], filled: [] };
  for (let count = 0; count < Number(flags.repeat); count++) {
    const home = mkdtempSync(join(tmpdir(), 'asteroid-start-'));
    runs.empty.push(await startOf(home, args));
    runs.filled.push(await startOf(home, args));
    rmSync(home, { recursive: true, force: true });
  }
  for (const cache of ['empty', 'filled'] as const) {
    const seconds = phases.map((phase) => median(runs[cache].map((run) => run[phase] ?? Number.NaN)).toFixed(1));
    console.log(tableRow([name, cache, ...seconds]));
  }
}
