// Real labs: what a link carries, what a device computes, a training run over all devices, and that nothing stays
// behind, whatever was killed. Needs root, control groups and iproute2; elsewhere it is skipped and says so.

import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, test } from 'node:test';
import type { Cluster } from '../cluster/cluster.ts';
import { processMiB } from '../cluster/memory.ts';
import { jsonLines, runCommand, startCommand, temporaryFolder, until } from '../testing/command.ts';
import { missingNamespaces } from '../testing/network-namespaces.ts';
import { fixtureFolder } from '../testing/pytorch-fixtures.ts';
import { findCgroups } from './cgroups.ts';
import { commandOn, findLab, type Lab, makeLab, removeLab } from './lab.ts';

const cwd = temporaryFolder();
const state = join(cwd, '.state');
const timeout = 180_000;

const skip = missingNamespaces();
const name = (test: string): string => `t${process.pid}-${test}`;
const labs = ['links', 'switch', 'train', 'kill'].map(name);

after(async () => {
  if (!skip) for (const lab of labs) await removeLab(lab, state);
});

const cluster: Cluster = {
  devices: [
    { name: 'a', memoryMiB: 512, cores: 0.4 },
    { name: 'b', memoryMiB: 512, cores: 0.4 },
    { name: 'c', memoryMiB: 512, cores: 0.25 },
  ],
  links: { default: { bandwidthMbps: 100 }, pairs: [{ between: ['a', 'c'], bandwidthMbps: 20 }] },
};

/** A small model: slow devices measure all its layers before they train. */
const fixture = join(fixtureFolder('pytorch'), 'mlp');
const subject = [
  ...[
    '--model',
    join(fixture, 'opset17-dynamic.onnx'),
    '--data',
    `npy:${join(fixture, 'X.npy')},${join(fixture, 'Y.npy')}`,
  ],
  ...['--batch', '48', '--lr', '0.02'],
];

/** Runs a script of Node on a device; what it prints. */
async function node(
  lab: Lab,
  device: string,
  script: string,
  onLine: (line: string) => void = () => {},
): Promise<string> {
  const [program, ...args] = commandOn(lab, device, [process.execPath, '-e', script]);
  const child = spawn(program, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  let printed = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    printed += text;
    onLine(text);
  });
  const code = await new Promise<number | null>((resolve) => child.once('close', resolve));
  assert.equal(code, 0, `${script} on ${device}`);
  return printed.replace('ready\n', '');
}

/** Mbps of a TCP transfer, as its receiver sees it from the first bytes on. */
async function transferMbps(lab: Lab, from: string, to: string, mebibytes: number): Promise<number> {
  const address = lab.layout.devices.find((device) => device.name === to)?.address;
  const receiver = `
    let bytes = 0, startMs = 0;
    const server = require('node:net').createServer((socket) => {
      socket.on('data', (data) => { if (startMs === 0) startMs = performance.now(); else bytes += data.length; });
      socket.on('end', () => { console.log(bytes * 8 / 1000 / (performance.now() - startMs)); server.close(); });
    });
    server.listen(9000, '${address}', () => console.log('ready'));`;
  const sender = `
    const socket = require('node:net').connect(9000, '${address}');
    socket.end(Buffer.alloc(${mebibytes} * 2 ** 20));`;
  let sent: Promise<string> | undefined;
  const received = await node(lab, to, receiver, () => {
    sent ??= node(lab, from, sender);
  });
  await sent;
  return Number(received);
}

/** Cores that a busy loop gets on a device. */
async function coresOf(lab: Lab, device: string): Promise<number> {
  const loop = `
    const startMs = performance.now();
    const before = process.cpuUsage();
    while (performance.now() - startMs < 1000);
    const { user, system } = process.cpuUsage(before);
    console.log((user + system) / 1000 / (performance.now() - startMs));`;
  return Number(await node(lab, device, loop));
}

/** The cores that a worker on a device would say it may use. */
async function quotaOf(lab: Lab, device: string): Promise<number> {
  const facts = new URL('../engine/node/host-linux.js', import.meta.url).href;
  return Number(
    await node(lab, device, `import('${facts}').then(({ linuxFacts }) => console.log(linuxFacts().cpuQuota?.cores));`),
  );
}

function within(value: number, least: number, most: number, what: string): void {
  assert.ok(value >= least && value <= most, `${what}: ${value} is not within ${least} and ${most}`);
}

/** Everything of this name on the machine. */
async function remains(lab: string): Promise<string[]> {
  const spaces = spawnSync('ip', ['netns', 'list'], { encoding: 'utf8' }).stdout;
  const mounts = findCgroups(await readFile('/proc/mounts', 'utf8'));
  const groups = mounts.version === 1 ? [mounts.cpu, mounts.memory] : [mounts.root];
  const processes: string[] = [];
  for (const id of (await readdir('/proc')).filter((entry) => /^\d+$/.test(entry))) {
    const text = await readFile(`/proc/${id}/cgroup`, 'utf8').catch(() => ''); // ended meanwhile
    if (text.includes(`asteroid-${lab}/`)) processes.push(id);
  }
  return [
    ...spaces.split('\n').filter((line) => line.startsWith(`asteroid-${lab}-`)),
    ...groups.map((group) => `${group}/asteroid-${lab}`).filter((group) => existsSync(group)),
    ...(existsSync(join(state, 'labs', lab)) ? [join(state, 'labs', lab)] : []),
    ...processes,
  ];
}

test('links carry what the cluster says, pair by pair; devices compute what their quota says', {
  timeout,
  skip,
}, async () => {
  const lab = await makeLab(cluster, { name: name('links'), network: 'links', priority: 'high', coreCount: 2 }, state);
  // 1448 of 1514 bytes on the wire are the transfer's: 95.6 of 100 Mbps, and a burst of 64 KiB that is sent at once.
  within(await transferMbps(lab, 'a', 'b', 6), 90, 102, 'a to b');
  within(await transferMbps(lab, 'c', 'a', 4), 18, 20.4, 'c to a');
  within(await coresOf(lab, 'c'), 0.2, 0.275, 'cores of c');
  assert.equal(await quotaOf(lab, 'c'), 0.25, 'what c knows of its quota');
  const again = await findLab(name('links'), state);
  assert.deepEqual(again, lab);
  await assert.rejects(
    makeLab(cluster, { name: name('links'), network: 'links', priority: 'normal', coreCount: 2 }, state),
    /is up already: remove it with asteroid lab down/,
  );
  assert.equal(await removeLab(name('links'), state), true);
  assert.deepEqual(await remains(name('links')), []);
  assert.equal(await removeLab(name('links'), state), false);
});

test('on a switch the links of a device share its port', { timeout, skip }, async () => {
  const equal = { ...cluster, links: { default: { bandwidthMbps: 80 } } };
  const lab = await makeLab(equal, { name: name('switch'), network: 'switch', priority: 'high', coreCount: 2 }, state);
  const addresses = lab.layout.devices.slice(1).map(({ address }) => address);
  const receiver = (address: string): string => `
    const server = require('node:net').createServer((socket) => {
      socket.resume().on('end', () => { socket.end(); server.close(); });
    });
    server.listen(9000, '${address}', () => console.log('ready'));`;
  const sender = `
    const sockets = ${JSON.stringify(addresses)}.map((address) => require('node:net').connect(9000, address));
    let open = sockets.length;
    const startMs = performance.now();
    for (const socket of sockets) {
      socket.end(Buffer.alloc(3 * 2 ** 20));
      socket.resume().on('close', () => {
        if (--open === 0) console.log(6 * 2 ** 20 * 8 / 1000 / (performance.now() - startMs));
      });
    }`;
  const ready = addresses.map((address, index) => {
    let listens: () => void = () => {};
    const listening = new Promise<void>((resolve) => {
      listens = resolve;
    });
    return { listening, ended: node(lab, index === 0 ? 'b' : 'c', receiver(address), () => listens()) };
  });
  await Promise.all(ready.map(({ listening }) => listening));
  const mbps = Number(await node(lab, 'a', sender));
  await Promise.all(ready.map(({ ended }) => ended));
  // Two links of their own would carry 160.
  within(mbps, 60, 82, 'two transfers at once');
});

test('a training run over all devices of a lab made for it; nothing stays', { timeout, skip }, async () => {
  const file = join(cwd, 'cluster.yaml');
  await writeFile(file, JSON.stringify(cluster));
  const flags = [...subject, '--steps', '3', '--planner', 'dp', '--out', 'run', '--json'];
  const words = ['lab', 'run', file, '--name', name('train'), '--priority', 'high', '--', 'train', ...flags];
  const { code, stdout, stderr } = await runCommand(words, { cwd });
  assert.equal(code, 0, stderr);
  const done = stdout.split('\n').find((line) => line.startsWith('{"event":"done"'));
  assert.equal((JSON.parse(done ?? '{}') as { rounds?: number }).rounds, 3);
  const events = await jsonLines(join(cwd, 'run', 'events.jsonl'));
  const joined = events
    .filter(({ event }) => event === 'joined')
    .map(({ device, memoryMiB }) => `${device} ${memoryMiB}`);
  const wholeMiB = 512 + processMiB;
  assert.deepEqual(joined.sort(), [`a ${wholeMiB}`, `b ${wholeMiB}`, `c ${wholeMiB}`]);
  const counted = JSON.parse(await readFile(join(cwd, 'run', 'cluster.json'), 'utf8')) as Cluster;
  const trainingMiB = counted.devices.map(({ memoryMiB }) => memoryMiB);
  assert.deepEqual(trainingMiB, [512, 512, 512], 'what the cluster says is for training');
  assert.deepEqual(await remains(name('train')), []);
});

test('after a kill of everything that could clean up, down does', { timeout, skip }, async () => {
  const file = join(cwd, 'cluster.yaml');
  await writeFile(file, JSON.stringify(cluster));
  const own = ['--name', name('kill')];
  const up = await runCommand(['lab', 'up', file, ...own, '--json'], { cwd });
  assert.equal(up.code, 0, up.stderr);
  const flags = [...subject, '--steps', '100000', '--planner', 'dp', '--out', 'killed', '--json'];
  const run = startCommand(['lab', 'run', ...own, '--', 'train', ...flags], { cwd });
  await run.event('joined');
  run.process.kill('SIGKILL');
  await once(run.process, 'exit'); // its streams stay open: the coordinator has them
  assert.notDeepEqual(await remains(name('kill')), []);
  const down = await runCommand(['lab', 'down', ...own, '--json'], { cwd });
  assert.equal(down.code, 0, down.stderr);
  assert.deepEqual(await remains(name('kill')), []);

  // Ctrl-C in the middle of `up`: whatever was made by then is gone.
  const begun = startCommand(['lab', 'up', file, ...own], { cwd });
  await until(async () => (await remains(name('kill'))).length > 0, 30_000, 'anything of the lab is there');
  begun.process.kill('SIGINT');
  assert.equal((await begun.end).code, 130);
  assert.deepEqual(await remains(name('kill')), []);
});

test('mistakes are one sentence, exit code 2', { timeout }, async () => {
  const file = join(cwd, 'wrong.yaml');
  await writeFile(file, JSON.stringify(cluster));
  const cases: [string[], string][] = [
    [['lab', 'sideways'], 'asteroid: asteroid lab sideways does not exist: use up, run, exec or down.\n'],
    [
      ['lab', 'run', '--', 'plan'],
      'asteroid: asteroid lab run takes train, infer or serve: asteroid lab run -- train --model … --data …; ' +
        'other programs: asteroid lab exec.\n',
    ],
  ];
  if (!skip) {
    cases.push([
      ['lab', 'run', '--', 'train'],
      'asteroid: There is no lab called "lab": make it with asteroid lab up CLUSTER.yaml.\n',
    ]);
  }
  const asRoot = await Promise.all(cases.map(([words]) => runCommand(words, { cwd })));
  for (const [index, { code, stderr }] of asRoot.entries()) {
    assert.equal(stderr, cases[index]?.[1]);
    assert.equal(code, 2);
  }
});

const setpriv = spawnSync('setpriv', ['--version']).status === 0;
const noUser =
  process.platform !== 'linux'
    ? 'needs Linux'
    : process.getuid?.() === 0 && !setpriv
      ? 'needs setpriv, to be no root'
      : false;

test('without root it says so in one line', { timeout, skip: noUser }, async () => {
  const through = process.getuid?.() === 0 ? ['setpriv', '--reuid=65534', '--clear-groups'] : [];
  const file = join(cwd, 'rights.yaml');
  await writeFile(file, JSON.stringify(cluster), { mode: 0o644 });
  spawnSync('chmod', ['a+rx', cwd]);
  const { code, stderr } = await runCommand(['lab', 'up', file], { cwd, through });
  assert.equal(
    stderr,
    'asteroid: A lab makes network namespaces and control groups, which needs root: run it with sudo.\n',
  );
  assert.equal(code, 2);
});
