// Planning by hand without measured profiles: plan, simulate and what-if with the kinds of the devices.

import assert from 'node:assert/strict';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import type { Plan } from '../cluster/cluster.ts';
import type { LossPrediction } from '../planner/replan/predict-loss.ts';
import type { WhatIf } from '../planner/what-if.ts';
import type { Simulation } from '../simulator/simulation.ts';
import { temporaryFolder, words } from '../testing/command.ts';
import { startCommandHost } from '../testing/command-host.ts';

const cwd = temporaryFolder();
const at = (name: string): string => join(cwd, name);
const host = startCommandHost(cwd);
after(() => host.close());

const nanos = `# three boards
devices:
  - { name: nano-1, kind: jetson-nano, memoryMiB: 3072, powerW: 10 }
  - { name: nano-2, kind: jetson-nano, memoryMiB: 3072, powerW: 10 }
  - { name: tx2, kind: jetson-tx2, memoryMiB: 7168 }
links: { default: { bandwidthMbps: 100 } }
`;
const flags = ['--model', 'digits', '--cluster', 'nanos.yaml'];

async function json<T>(...args: readonly string[]): Promise<T> {
  const { code, stdout, stderr } = await host.run({ args: [...args, '--json'], cwd });
  assert.equal(code, 0, stderr);
  return JSON.parse(stdout) as T;
}

async function refused(...args: readonly string[]): Promise<string> {
  const { code, stderr } = await host.run({ args, cwd });
  assert.equal(code, 2, stderr);
  return stderr.trim();
}

before(() => writeFile(at('nanos.yaml'), nanos));

test('plan by kinds: its profile and plan give simulate the same round; energy and a chart come with it', async () => {
  const { plan, planningMs } = await json<{ plan: Plan; planningMs: number }>(
    ...['plan', ...flags, '--batch', '64', '--planner', 'asteroid', '--profile-out', 'profile.json', '-o', 'plan.json'],
  );
  assert.ok(planningMs > 0);
  const simulated = await json<Simulation>(
    ...[...words('simulate --profile profile.json --cluster nanos.yaml --plan plan.json --gantt round.svg')],
  );
  assert.equal(simulated.roundMs, plan.predicted.roundMs);
  assert.deepEqual(await json('simulate', ...flags, '--plan', 'plan.json'), simulated);
  const nano = simulated.devices['nano-1'];
  assert.equal(nano?.energyJ, (10 * (nano?.busyMs ?? 0)) / 1000);
  assert.equal(simulated.devices['tx2']?.energyJ, undefined);
  const chart = await readFile(at('round.svg'), 'utf8');
  assert.match(chart, /^<svg .*>digits: \d+\.\d ms a round</s);
});

test('plan of inference: simulate takes it; flags of one kind of plan are refused in the other', async () => {
  const inference = ['plan', ...flags, '--batch', '8', '--schedule', 'inference'];
  const { plan } = await json<{ plan: Plan }>(...inference, '--activation-bits', '4', '-o', 'inference.json');
  assert.equal(plan.schedule, 'inference');
  const { roundMs, lowerBoundMs = 0 } = plan.predicted;
  assert.ok(lowerBoundMs > 0 && lowerBoundMs <= roundMs);
  const simulated = await json<Simulation>('simulate', ...flags, '--plan', 'inference.json');
  assert.ok(simulated.roundMs >= roundMs * (1 - 1e-9));
  const alone = (await json<{ plan: Plan }>(...inference, '--objective', 'latency')).plan.predicted;
  assert.ok((alone.latencyMs ?? Number.NaN) <= (plan.predicted.latencyMs ?? 0));
  const gone = await json<WhatIf>('what-if', ...flags, '--plan', 'inference.json', '--leave', 'tx2');
  assert.equal(gone.before.predicted.roundMs, roundMs);
  assert.equal(gone.after.schedule, 'inference');
  assert.match(await refused('plan', ...flags, '--batch', '8', '--objective', 'latency'), /add --schedule inference/);
  assert.match(await refused(...inference, '--objective', 'speed'), /must be one of throughput, latency/);
  assert.match(await refused(...inference, '--activation-bits', '5'), /must be one of 16, 8, 6, 4, 2, auto/);
  assert.match(await refused(...inference, '--planner', 'gpipe'), /no planner "gpipe" of inference/);
});

test('plan --print: the passes of each device; a planner without a program is refused before it plans', async () => {
  const straight = [...flags, '--batch', '4', '--micro-batch', '1', '--planner', 'straight', '--print'];
  const { code, stdout, stderr } = await host.run({ args: ['plan', ...straight, '--schedule', 'gpipe'], cwd });
  assert.equal(code, 0, stderr);
  const lines = `${stdout}${stderr}`.split('\n').filter((line) => /^(?:nano-\d|tx2):/u.test(line));
  assert.deepEqual(
    lines.map((line) => line.replace(/^\S+ +/u, '')),
    Array.from({ length: lines.length }, () => 'F0 F1 F2 F3 B0 B1 B2 B3 U'),
  );
  assert.ok(lines.length > 0);
  assert.match(
    await refused('plan', ...flags, '--batch', '4', '--planner', 'hetpipe', '--print'),
    /Planner "hetpipe" makes no program: leave --print out, or take another planner\.$/u,
  );
});

test('pins, exclusions and a time limit reach the planner', async () => {
  const { plan } = await json<{ plan: Plan }>(
    'plan',
    ...flags,
    ...words('--batch 16 --pin 5=nano-2 --exclude tx2 --time-limit 20'),
  );
  assert.ok(plan.stages.at(-1)?.devices.includes('nano-2'));
  assert.ok(plan.stages.every((stage) => !stage.devices.includes('tx2')));
  assert.match(
    await refused('plan', ...flags, '--batch', '16', '--pin', 'nano-2'),
    /--pin nano-2 is not of the form LAYER=DEVICE/,
  );
  assert.match(await refused('plan', ...flags, '--batch', '16', '--exclude', 'pi'), /no device "pi"/);
});

test('what-if: a slower device, then one that leaves and one that joins', async () => {
  const { plan } = JSON.parse(await readFile(at('plan.json'), 'utf8')) as { plan: Plan };
  const slowed = await json<WhatIf>(
    'what-if',
    ...flags,
    ...words('--plan plan.json --slow tx2=0.5 --planner asteroid'),
  );
  assert.equal(slowed.before.predicted.roundMs, plan.predicted.roundMs);
  assert.ok((slowed.kept?.predicted.roundMs ?? 0) >= slowed.after.predicted.roundMs);
  const moved = await json<WhatIf>(
    'what-if',
    ...flags,
    ...words('--batch 64 --leave tx2 --join nx=jetson-nx --planner single'),
  );
  assert.equal(moved.kept, undefined);
  assert.deepEqual(
    moved.after.stages.map(({ devices }) => devices),
    [['nx']],
  );
  // digits has 237,514 parameters of 4 bytes, and the only device that had them is gone.
  assert.deepEqual([moved.move.bytes, moved.move.lostBytes], [950_056, 950_056]);
  const { stdout } = await host.run({
    args: ['what-if', ...flags, '--batch', '64', '--link', 'nano-1,tx2=10:5', '--planner', 'dp'],
    cwd,
  });
  assert.match(stdout, /^Before {5}.*samples\/s .*\nAfter {6}.*by the same plan\n {11}.*by a new plan\nMemory /m);
});

test('what-if --kill: what is lost, who takes over, what travels, light and heavy recovery', async () => {
  const kill = ['what-if', ...flags, '--batch', '64', '--planner', 'straight', '--kill', 'nano-2'];
  const found = await json<LossPrediction>(...kill, '--detection', '0.5');
  assert.deepEqual(
    found.losses.map(({ device, stage, restoredFrom, holders }) => ({ device, stage, restoredFrom, holders })),
    [{ device: 'nano-2', stage: 1, restoredFrom: 'copy', holders: ['tx2'] }],
  );
  assert.deepEqual(
    found.light.plan.stages.map(({ devices }) => devices),
    [['nano-1'], ['tx2']],
  );
  assert.deepEqual([found.light.detectionMs, found.light.planningMs], [500, 0]);
  assert.equal(found.light.totalMs, 500 + found.light.migrationMs);
  assert.ok(found.heavy.planningMs > 0 && found.heavy.bytes > found.light.bytes && found.speedup > 1);
  const { stdout } = await host.run({ args: kill, cwd });
  assert.match(
    stdout,
    /^Before {5}.*samples\/s .*\nLost {7}nano-2, stage 1, .*copied on tx2\nCopies {5}.* after every round/m,
  );
  assert.match(stdout, /\nLight {6}.*: seen in 3\.0 s, planned before, .*\n {11}layers 0–\d+: nano-1\n/);
  assert.match(
    stdout,
    /\nHeavy {6}.*planned in .*, planned on tx2\nLight {6}recovers [\d.]+x as fast as heavy, with \d+ % of its /,
  );
});

test('a change or a cluster that is wrong is one sentence', async () => {
  const whatIf = ['what-if', ...flags, '--batch', '64'];
  assert.match(await refused(...whatIf), /Nothing changes: give --join, --leave, --kill, --slow or --link\./);
  assert.match(
    await refused(...whatIf, '--kill', 'tx2', '--slow', 'tx2=0.5'),
    /--kill cannot be given with --join, --leave, --slow or --link: /,
  );
  assert.match(
    await refused(...whatIf, '--kill', 'tx3'),
    /The cluster has no device "tx3"; name one of nano-1, nano-2, tx2\./,
  );
  assert.match(
    await refused(...whatIf, '--slow', 'tx2'),
    /--slow tx2 is not of the form NAME=SHARE, such as pi-2=0\.5: write it so\./,
  );
  assert.match(await refused(...whatIf, '--link', 'fast'), /--link fast: "fast" is not a number; give one\./);
  assert.match(await refused(...whatIf, '--join', 'x=toaster'), /the memory of a "toaster" is not known/);
  assert.match(
    await refused(...whatIf, '--join', 'x=toaster:100'),
    /Device "x" of the cluster has the kind "toaster", which has no performance model/,
  );
  await writeFile(at('broken.yaml'), nanos.replace('bandwidthMbps: 100', 'bandwidthMbps: -100'));
  assert.match(
    await refused('plan', '--model', 'digits', '--cluster', 'broken.yaml', '--batch', '64'),
    /broken\.yaml, line 6: links\.default\.bandwidthMbps is -100; give a number above 0 \(megabits a second\)\./,
  );
});

test('plan --mode async: a stream that simulate and what-if take; its events carry rounds', async () => {
  const asked = [...flags, '--batch', '64', '--planner', 'asteroid', '--mode', 'async', '--optimizer', 'adam'];
  const { plan } = await json<{ plan: Plan }>('plan', ...asked, '-o', 'stream.json');
  assert.equal(plan.schedule, 'async');
  const given = [...flags, '--plan', 'stream.json', '--optimizer', 'adam'];
  const simulated = await json<Simulation>(
    'simulate',
    ...given,
    '--gantt',
    'stream.svg',
    '--trace',
    'stream-trace.json',
  );
  assert.equal(simulated.roundMs, plan.predicted.roundMs);
  assert.equal(simulated.stream?.isExact, true);
  assert.ok((simulated.stream?.drainMs ?? 0) > 0);
  assert.match(await readFile(at('stream-trace.json'), 'utf8'), /"name":"forward 1\.0"/);
  const { before, after } = await json<WhatIf>('what-if', ...given, '--leave', 'tx2');
  assert.deepEqual([before.schedule, after.schedule], ['async', 'async']);
  assert.deepEqual(peaksOf(simulated), plan.predicted.peakMemoryMiB);
  assert.deepEqual(before.predicted.peakMemoryMiB, plan.predicted.peakMemoryMiB);
  // A device that has too little memory for its part, versions included, is named.
  const [name = ''] = plan.stages[0]?.devices ?? [];
  const neededMiB = simulated.devices[name]?.peakMemoryMiB ?? 0;
  const own = new RegExp(`(${name}, .*memoryMiB: )\\d+`);
  await writeFile(at('tight.yaml'), nanos.replace(own, `$1${neededMiB / 2}`));
  for (const args of [['simulate'], ['what-if', '--leave', 'tx2'], ['what-if', '--kill', 'tx2']])
    assert.match(
      await refused(...args, '--model', 'digits', '--cluster', 'tight.yaml', '--plan', 'stream.json'),
      new RegExp(`stream\\.json does not fit: device "${name}" has \\d+ MiB, and its part takes \\d+; raise`),
    );
  const loss = await json<LossPrediction>('what-if', ...given, '--kill', 'tx2', '--planner', 'ftpipehd');
  assert.deepEqual([loss.light.plan.schedule, loss.heavy.plan.schedule], ['async', 'async']);
});

test('copies for the case of a loss: plan, simulate and what-if count them alike, in refusals too', async () => {
  const asked = [...flags, '--batch', '64', '--planner', 'straight', '--mode', 'async', '--momentum', '0.9'];
  const { plan } = await json<{ plan: Plan }>('plan', ...asked, '-o', 'copied.json');
  const alone = (await json<{ plan: Plan }>('plan', ...asked, '--replicate-every', '0')).plan;
  assert.deepEqual(alone.stages, plan.stages);
  const given = [...flags, '--plan', 'copied.json', '--momentum', '0.9'];
  for (const [copies, { predicted }] of [
    [[], plan],
    [['--replicate-every', '0'], alone],
  ] as const) {
    assert.deepEqual(peaksOf(await json('simulate', ...given, ...copies)), predicted.peakMemoryMiB);
    const { before } = await json<WhatIf>('what-if', ...given, ...copies, '--slow', 'tx2=0.5');
    assert.deepEqual(before.predicted.peakMemoryMiB, predicted.peakMemoryMiB);
  }
  // A device that has room for its part alone.
  const [[name, withCopies], lessMiB] = largestCopies(plan, alone);
  const own = new RegExp(`(${name}, .*memoryMiB: )\\d+`);
  const roomMiB = Math.ceil(withCopies - lessMiB / 2);
  assert.ok(roomMiB < withCopies);
  await writeFile(at('no-copies.yaml'), nanos.replace(own, `$1${roomMiB}`));
  const tight = ['--model', 'digits', '--cluster', 'no-copies.yaml', '--plan', 'copied.json', '--momentum', '0.9'];
  const refusal = new RegExp(`fits?: device "${name}" has ${roomMiB} MiB.*, and its part takes \\d+`);
  assert.match(await refused('simulate', ...tight), refusal);
  assert.match(await refused('what-if', ...tight, '--slow', 'tx2=0.5'), refusal);
  await json('simulate', ...tight, '--replicate-every', '0');
  await json('what-if', ...tight, '--slow', 'tx2=0.5', '--replicate-every', '0');
  assert.match(await refused('simulate', ...tight, '--replicate-every', 'x'), /--replicate-every x must be a whole/);
});

function peaksOf({ devices }: Pick<Simulation, 'devices'>): Readonly<Record<string, number>> {
  const peaks = Object.entries(devices).map(([name, { peakMemoryMiB }]) => [name, peakMemoryMiB] as const);
  return Object.fromEntries(peaks.filter(([, mib]) => mib > 0));
}

/** The device whose copies take the most, what it takes with them, and how much of that they are. */
function largestCopies({ predicted }: Plan, alone: Plan): readonly [readonly [string, number], number] {
  const more = Object.entries(predicted.peakMemoryMiB).map(
    (entry) => [entry, entry[1] - (alone.predicted.peakMemoryMiB[entry[0]] ?? 0)] as const,
  );
  return more.reduce((most, each) => (each[1] > most[1] ? each : most));
}

test('plan --mode auto: what each mode costs, and the choice; what does not go together is refused', async () => {
  const asked = ['plan', ...flags, '--batch', '64', '--planner', 'asteroid', '--mode', 'auto'];
  const found = await json<{ plan: Plan; mode: string; modes: readonly { mode: string; samplesPerS: number }[] }>(
    ...asked,
  );
  assert.deepEqual(
    found.modes.map(({ mode }) => mode),
    ['sync', 'async'],
  );
  assert.equal(found.plan.schedule === 'async', found.mode === 'async');
  const { stdout } = await host.run({ args: asked, cwd });
  assert.match(stdout, /mode +a round +samples\/s +bubbles +staleness +versions +memory at most/);
  assert.match(stdout, /Chosen +(sync|async)/);
  assert.match(await refused(...asked, '--schedule', '1f1b'), /--mode auto and --schedule 1f1b do not go together/);
  const async = ['plan', ...flags, '--batch', '64', '--mode', 'async'];
  assert.match(await refused(...async, '--schedule', 'gpipe'), /--mode async and --schedule gpipe do not go together/);
  const { plan } = await json<{ plan: Plan }>(
    ...async,
    '--planner',
    'straight',
    '--micro-batch',
    '8',
    '--max-staleness',
    '1',
  );
  assert.equal(plan.stages[0]?.inFlight, plan.stages.length);
  assert.match(await refused('plan', ...flags, '--batch', '64', '--max-staleness', '1'), /needs --mode async or auto/);
});
