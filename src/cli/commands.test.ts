// The commands by hand: help, devices, doctor, profile, plan and simulate, as they are typed and as the next one reads
// them.

import assert from 'node:assert/strict';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { defined } from '../assert.ts';
import type { Plan, Profile } from '../cluster/cluster.ts';
import { parsePlan, parseProfile } from '../cluster/validate.ts';
import { createRegistry } from '../runtime/host/security/registry.ts';
import { type CommandEnd, runCommand, temporaryFolder, words } from '../testing/command.ts';
import { type HostedEnd, startCommandHost } from '../testing/command-host.ts';
import { createProgram } from './program.ts';

const cwd = temporaryFolder();
const at = (name: string): string => join(cwd, name);
const timeout = 120_000;

/** Two layers of 1 + 2 ms a sample; between them 12,500 bytes a sample, so that 4 samples take 4 ms over 100 Mbps. */
const profile: Profile = {
  model: 'two',
  inputBytes: 16,
  labelBytes: 8,
  layers: ['first', 'second'].map((name) => ({
    name,
    outputBytes: 12_500,
    weightBytes: 2 ** 20,
    savedBytes: 16,
    flops: 24,
  })),
  batchSizes: [1, 4],
  devices: Object.fromEntries(
    ['a', 'b'].map((name) => [
      name,
      {
        forwardMs: [
          [1, 1],
          [4, 4],
        ],
        backwardMs: [
          [2, 2],
          [8, 8],
        ],
      },
    ]),
  ),
};
const cluster = {
  devices: [
    { name: 'a', memoryMiB: 64 },
    { name: 'b', memoryMiB: 64 },
  ],
  links: { default: { bandwidthMbps: 100 } },
};

const host = startCommandHost(cwd);
after(() => host.close());

async function run(...args: readonly string[]): Promise<HostedEnd> {
  const end = await host.run({ args, cwd });
  assert.equal(end.code, 0, end.stderr);
  return end;
}

async function json<T>(...args: readonly string[]): Promise<T> {
  const { stdout } = await run(...args, '--json');
  assert.equal(stdout.split('\n').length, 2, 'one document on one line');
  return JSON.parse(stdout) as T;
}

async function document<T>(name: string): Promise<T> {
  return JSON.parse(await readFile(at(name), 'utf8')) as T;
}

before(async () => {
  await writeFile(at('profile.json'), JSON.stringify(profile));
  // JSON or YAML, independent of the name.
  await writeFile(
    at('cluster.yaml'),
    'devices:\n  - { name: a, memoryMiB: 64 }\n  - { name: b, memoryMiB: 64 }\n' +
      'links: { default: { bandwidthMbps: 100 } }\n',
  );
  await writeFile(at('cluster.json'), JSON.stringify(cluster));
});

/** All commands, in the order of the help. */
const names = [
  'quickstart',
  'train',
  'worker',
  'doctor',
  'devices',
  'inspect',
  'profile',
  'plan',
  'simulate',
  'what-if',
  'infer',
  'serve',
  'report',
  'curve',
  'show',
  'drain',
  'eval',
  'predict',
  'export',
  'verify',
  'lab',
  'completion',
];

test('every command has help with an example, and every example parses', async () => {
  let help = '';
  const output = {
    writeOut: (text: string): void => {
      help += text;
    },
  };
  const program = await createProgram();
  const seen: string[] = [];
  for (const command of program.commands) {
    if (command.name() === 'help') continue;
    command.configureOutput(output);
    help = '';
    command.outputHelp();
    const examples = [...help.matchAll(/^ {2}\$ asteroid (.*)$/gm)].map((match) =>
      defined(match[1], 'a line').split(' > ', 1).join().split(' '),
    );
    assert.ok(examples.length > 0, `${command.name()} has no example`);
    for (const option of ['--json', '--help']) assert.ok(help.includes(option), `${command.name()} has no ${option}`);
    command.action(() => void seen.push(command.name()));
    for (const example of examples) await program.parseAsync(example, { from: 'user' });
  }
  assert.deepEqual([...new Set(seen)], names);
  // A named command is loaded alone, with the same help; but for the one that completes all of them.
  for (const name of names.filter((name) => name !== 'completion')) {
    const [only, ...others] = (await createProgram(name)).commands;
    assert.deepEqual([only?.name(), others.length], [name, 0]);
    assert.equal(
      only?.helpInformation(),
      program.commands.find((command) => command.name() === name)?.helpInformation(),
    );
  }
  assert.deepEqual(
    (await createProgram('magic')).commands.map((command) => command.name()),
    names,
    'an unknown name loads all commands, to suggest the one that was meant',
  );
});

test('--version and -V: the package’s, without loading any command', async () => {
  const { version } = JSON.parse(await readFile(join(import.meta.dirname, '..', '..', 'package.json'), 'utf8')) as {
    version: string;
  };
  for (const flag of ['--version', '-V']) {
    assert.deepEqual((await createProgram(flag)).commands, []);
    const { code, stdout, stderr } = await runCommand([flag], { cwd });
    assert.deepEqual({ code, stdout, stderr }, { code: 0, stdout: `${version}\n`, stderr: '' });
  }
});

test('devices: lists who has a certificate, and revokes by name or key', async () => {
  const folder = at('state');
  const registry = createRegistry(folder);
  const expiresAtMs = Date.now() + 30 * 86_400_000;
  const keys = ['a', 'b', 'c'].map((letter) => letter.repeat(64));
  for (const [index, name] of ['board', 'laptop', 'laptop'].entries())
    await registry.noteDevice({ name, key: keys[index] as string, issuedAtMs: Date.now(), expiresAtMs });
  await registry.noteCode({ id: '1f', madeAtMs: Date.now(), expiresAtMs: Date.now() + 3_600_000 });
  const run = async (...args: string[]): Promise<CommandEnd> =>
    runCommand(['devices', ...args], { cwd, environment: { ASTEROID_STATE: folder } });
  const listed = await run();
  assert.equal(listed.code, 0, listed.stderr);
  assert.match(listed.stdout, /^board +aaaaaaaaaaaa {2}until \d{4}-\d\d-\d\d$/m);
  assert.match(listed.stdout, /^A join code of \d\d:\d\d is valid until \d\d:\d\d, or until its run ends\.$/m);
  const parsed = async (...args: string[]) => {
    const { devices, codes, revoked } = JSON.parse((await run(...args, '--json')).stdout) as Record<
      'devices' | 'codes' | 'revoked',
      { key: string }[]
    >;
    return [devices, codes, revoked].map((entries) => entries.map(({ key }) => key?.slice(0, 1)));
  };
  assert.deepEqual(await parsed('--revoke', 'bbbbbbbb', '--revoke-codes'), [['a', 'c'], [], ['b']]);
  assert.deepEqual(await parsed('--revoke', 'laptop'), [['a'], [], ['c']]);
  const unknown = await run('--revoke', 'tablet');
  assert.equal(unknown.code, 2);
  assert.match(unknown.stderr, /--revoke tablet names no device of this cluster: asteroid devices lists them\./);
});

test('doctor: one finding for each check', async () => {
  const { fine, findings } = await json<{ fine: boolean; findings: { check: string; state: string; text: string }[] }>(
    'doctor',
  );
  assert.equal(fine, true);
  const checks = ['node', 'engine', 'memory', 'processor', 'interfaces', 'port', 'mdns', 'certificates', 'clock'];
  assert.deepEqual(
    findings.map(({ check }) => check).filter((check) => check !== 'power'), // there are machines without a battery
    checks,
  );
  for (const { check, text } of findings) assert.ok(text.length > 0 && !text.includes('\n'), check);
});

test('plan: two stages of one device each, by hand 32 ms a round', async () => {
  const flags = [
    ...words('plan --profile profile.json --cluster cluster.yaml --batch 4 --micro-batch 4 --planner straight'),
  ];
  const printed = await json<{ plan: Plan; planningMs: number }>(...flags, '-o', 'plan.json');
  assert.deepEqual(printed.plan.stages, [
    { layers: [0, 1], devices: ['a'], samples: [4], inFlight: 1 },
    { layers: [1, 2], devices: ['b'], samples: [4], inFlight: 1 },
  ]);
  const { predicted, stages, ...rest } = printed.plan;
  assert.deepEqual(rest, {
    planner: 'straight',
    schedule: '1f1b',
    batchSize: 4,
    microBatchSize: 4,
    microBatchCount: 1,
  });
  // forward 4, transfer 4, forward 4, backward 8, transfer 4, backward 8
  assert.ok(Math.abs(predicted.roundMs - 32) < 1e-9);
  assert.ok(Math.abs(predicted.samplesPerS - 125) < 1e-9);
  assert.deepEqual(Object.keys(predicted.peakMemoryMiB), ['a', 'b']);
  assert.ok(printed.planningMs > 0);
  assert.deepEqual(await document('plan.json'), printed);
  const { stdout } = await run(...flags);
  assert.match(stdout, /^Plan {7}by planner "straight" in \d+ ms\n {11}┌ stage 0 ─+┐ {4}┌ stage 1 ─+┐\n/);
  assert.match(stdout, /predicted: 32\.0 ms a round, 125 samples\/s\n$/);
});

test('simulate: the time that plan predicted, from a bare plan or what plan wrote; devices and links', async () => {
  const { plan } = await document<{ plan: Plan }>('plan.json');
  const { predicted, ...written } = plan;
  await writeFile(at('bare.json'), JSON.stringify(written));
  const flags = ['simulate', '--cluster', 'cluster.json', '--profile', 'profile.json'];
  const result = await json<Record<string, unknown>>(
    ...flags,
    ...words('--plan bare.json --trace trace.json -o simulated.json'),
  );
  assert.deepEqual(Object.keys(result), ['roundMs', 'samplesPerS', 'devices', 'links']);
  assert.equal(result['roundMs'], predicted.roundMs);
  assert.equal(result['samplesPerS'], predicted.samplesPerS);
  const { a, b } = predicted.peakMemoryMiB;
  assert.deepEqual(result['devices'], {
    a: { busyMs: 12, idleFraction: 0.625, peakMemoryMiB: a },
    b: { busyMs: 12, idleFraction: 0.625, peakMemoryMiB: b },
  });
  assert.deepEqual(result['links'], { 'a->b': { bytes: 50_000, busyMs: 4 }, 'b->a': { bytes: 50_000, busyMs: 4 } });
  assert.deepEqual(await document('simulated.json'), result);
  assert.deepEqual(await json(...flags, '--plan', 'plan.json'), result);
  const trace = await document<{ traceEvents: { name: string }[] }>('trace.json');
  assert.ok(trace.traceEvents.length > 6);
  const { stdout } = await run(...flags, '--plan', 'plan.json');
  assert.deepEqual(stdout.split('\n').slice(0, 5), [
    'Round      32.000 ms, 125.0 samples/s',
    `Devices    a  ███████████▎░░░░░░░░░░░░░░░░░░  38 % busy  ${a?.toFixed(2)} MiB`,
    `           b  ███████████▎░░░░░░░░░░░░░░░░░░  38 % busy  ${b?.toFixed(2)} MiB`,
    'Links      a->b  0.05 MiB, busy 4.00 ms',
    '           b->a  0.05 MiB, busy 4.00 ms',
  ]);
});

test('profile: the layers of the built-in net, a document that plan and simulate take', { timeout }, async () => {
  const measured = await json<Profile>(...words('profile --model digits --batch 4 --device board -o digits.json'));
  assert.deepEqual(await document('digits.json'), measured);
  parseProfile(measured);
  assert.deepEqual(
    measured.layers.map(({ name, weightBytes, outputBytes }) => [name, weightBytes, outputBytes]),
    [
      ['conv1', 960, 24 * 28 * 28 * 4],
      ['maxpool_1', 0, 24 * 14 * 14 * 4],
      ['conv2', 41_664, 48 * 14 * 14 * 4],
      ['maxpool_2', 0, 48 * 7 * 7 * 4],
      ['hidden', 903_552, 96 * 4],
      ['classifier', 3880, 40],
    ],
  );
  assert.deepEqual(Object.keys(measured.devices), ['board']);
  assert.equal(measured.inputBytes, 28 * 28 * 4);
});

test('plan and simulate agree on a measured profile; plan measures a model by itself', { timeout }, async () => {
  await writeFile(
    at('boards.json'),
    JSON.stringify({ ...cluster, devices: ['x', 'y'].map((name) => ({ name, kind: 'board', memoryMiB: 1000 })) }),
  );
  const { plan } = await json<{ plan: Plan }>(
    ...words('plan --profile digits.json --cluster boards.json --batch 16 -o digits-plan.json'),
  );
  parsePlan(plan);
  const { roundMs } = await json<{ roundMs: number }>(
    ...words('simulate --profile digits.json --cluster boards.json --plan digits-plan.json'),
  );
  assert.equal(roundMs, plan.predicted.roundMs);
  const direct = await json<{ plan: Plan }>(
    ...words('plan --model digits --cluster boards.json --batch 4 --planner single'),
  );
  assert.equal(direct.plan.stages.length, 1);
});
