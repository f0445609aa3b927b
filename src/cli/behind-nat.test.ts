// Workers and coordinators that others cannot simply dial: behind routers that translate addresses, with and without a
// port that leads inside. Real processes, encrypted links; losses are PyTorch's. Needs root, iproute2 and nftables;
// elsewhere it is skipped and says so.
//
//   hub 203.0.113.1 ── internet ┬─ router a 203.0.113.11 ── inside a 10.0.0.2
//                               └─ router b 203.0.113.12 ── inside b 10.0.0.2 (the same addresses: two homes)

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { defined } from '../assert.ts';
import { layers } from '../graph/layers.ts';
import { importModel } from '../graph/onnx/import.ts';
import { type CommandEvent, type RunningCommand, startCommand, temporaryFolder, words } from '../testing/command.ts';
import { handPlan } from '../testing/hand-plans.ts';
import { ip, missingNamespaces } from '../testing/network-namespaces.ts';
import { pytorchFixtures } from '../testing/pytorch-fixtures.ts';

const cwd = temporaryFolder();
const timeout = 120_000;
type Place = 'hub' | 'internet' | 'router-a' | 'router-b' | 'inside-a' | 'inside-b';
const places: readonly Place[] = ['internet', 'hub', 'router-a', 'router-b', 'inside-a', 'inside-b'];
const spaceOf = (place: Place): string => `ast-nat-${process.pid}-${place}`;
const hub = '203.0.113.1';
const homes = { a: '203.0.113.11', b: '203.0.113.12' } as const;
/** The port of each router that leads inside. */
const mapped = { 'router-a': 7700, 'router-b': 7800 } as const;

const missing = missingNamespaces();
const nft = spawnSync('nft', ['--version']);
const skip = missing || (nft.status === 0 ? false : 'a router that translates addresses needs nftables');

/** Lets out what comes from inside under the router's address, and in only what answers it, or comes to the port. */
const routerRules = (port: number): string => `
table ip nat {
  chain out { type nat hook postrouting priority 100; oifname "wan" masquerade; }
  chain in { type nat hook prerouting priority -100; iifname "wan" tcp dport ${port} dnat to 10.0.0.2:${port}; }
}
table ip filter {
  chain forward {
    type filter hook forward priority 0; policy drop;
    ct state established,related accept
    iifname "lan" accept
    ct status dnat accept
  }
}`;

function run(place: Place, command: string, input?: string): void {
  const [program = '', ...args] = command.split(' ');
  const { status, stderr } = spawnSync('ip', ['netns', 'exec', spaceOf(place), program, ...args], {
    encoding: 'utf8',
    ...(input === undefined ? {} : { input }),
  });
  assert.equal(status, 0, `${place}: ${command}: ${stderr}`);
}

/** A cable with an address at its first end, and at its second or in a bridge there. */
function cable(from: Place, name: string, address: string, to: Place, end: { name: string; address?: string }): void {
  const ends = ['netns', spaceOf(from), 'type', 'veth', 'peer', 'name', end.name, 'netns', spaceOf(to)];
  assert.equal(ip('link', 'add', name, ...ends), undefined);
  run(from, `ip address add ${address}/24 dev ${name}`);
  run(from, `ip link set ${name} up`);
  if (end.address === undefined) run(to, `ip link set ${end.name} master bridge`);
  else run(to, `ip address add ${end.address}/24 dev ${end.name}`);
  run(to, `ip link set ${end.name} up`);
}

before(async () => {
  if (skip) return;
  for (const place of places) {
    assert.equal(ip('netns', 'add', spaceOf(place)), undefined);
    await mkdir(join(cwd, place));
    run(place, 'ip link set lo up');
  }
  run('internet', 'ip link add bridge type bridge');
  run('internet', 'ip link set bridge up');
  cable('hub', 'eth0', hub, 'internet', { name: 'hub' });
  for (const home of ['a', 'b'] as const) {
    cable(`router-${home}`, 'wan', homes[home], 'internet', { name: `home-${home}` });
    cable(`inside-${home}`, 'eth0', '10.0.0.2', `router-${home}`, { name: 'lan', address: '10.0.0.1' });
    run(`inside-${home}`, 'ip route add default via 10.0.0.1');
    run(`router-${home}`, 'sysctl -qw net.ipv4.ip_forward=1');
    run(`router-${home}`, 'nft -f -', routerRules(mapped[`router-${home}`]));
  }
  // What comes to a home's own addresses from outside is lost there: no error comes back.
  run('hub', `ip route add 10.0.0.0/24 via ${homes.a}`);
});

after(() => {
  if (!skip) for (const place of places) ip('netns', 'delete', spaceOf(place));
});

const fixture = defined(
  pytorchFixtures().find(({ name }) => name === 'mlp/opset17-dynamic'),
  'the fixture',
);

function on(place: Place, line: string, environment: Readonly<Record<string, string>> = {}): RunningCommand {
  const home = join(cwd, place);
  const own = { HOME: home, ASTEROID_STATE: '', XDG_STATE_HOME: '' };
  return startCommand([...words(line), '--json'], {
    cwd: home,
    environment: { ...own, ...environment },
    through: ['ip', 'netns', 'exec', spaceOf(place)],
  });
}

/** Starts PyTorch's run over two devices, one stage each. */
async function train(place: Place, devices: readonly string[], line: string): Promise<RunningCommand> {
  const layerCount = layers(importModel(await readFile(fixture.modelPath)).graph).layers.length;
  const shape = { schedule: '1f1b', cuts: [Math.floor(layerCount / 2)], shares: [[8], [8]], microBatchCount: 2 };
  const plan = handPlan(shape, layerCount);
  const stages = plan.stages.map((stage, index) => ({ ...stage, devices: [devices[index]] }));
  await writeFile(join(cwd, place, 'plan.json'), JSON.stringify({ ...plan, stages }));
  const { modelPath, inputsPath, labelsPath, batchSize, stepCount, learningRate, momentum } = fixture;
  const model = `--model ${modelPath} --data npy:${inputsPath},${labelsPath} --batch ${batchSize} --steps ${stepCount}`;
  return on(place, `train ${model} --lr ${learningRate} --momentum ${momentum} --no-shuffle ${line}`);
}

/** Waits for the run's end and holds its losses against PyTorch's. Returns the pairs that were relayed. */
async function finished(run: RunningCommand, ...workers: readonly RunningCommand[]): Promise<unknown[]> {
  const [end, ...ends] = await Promise.all([run.end, ...workers.map((worker) => worker.end)]);
  assert.equal(end?.code, 0, end?.stderr);
  for (const workerEnd of ends) assert.equal(workerEnd.code, 0, workerEnd.stderr);
  const losses = run.events('round').map((event: CommandEvent) => Number(event['loss']));
  assert.equal(losses.length, fixture.losses.length);
  for (const [round, loss] of losses.entries())
    assert.ok(Math.abs(loss - (fixture.losses[round] as number)) < 1e-4, `round ${round}: ${loss}`);
  return run.events('relayed').map((event) => event['between']);
}

test('a worker behind a router is asked to call a worker that cannot call it', { timeout, skip }, async () => {
  const run = await train('hub', ['inside', 'worker-1'], `--plan plan.json --workers 1 --remote 1 --host ${hub}`);
  const { url, joinCode } = await run.event('listening');
  const worker = on('inside-a', `worker --join ${url} --name inside`, { ASTEROID_JOIN_CODE: String(joinCode) });
  const joined = await worker.event('joined');
  assert.deepEqual([joined['host'], joined['seenAs']], ['10.0.0.2', homes.a]);
  assert.deepEqual(await finished(run, worker), [], 'worker-1 is called, and nothing is relayed');
});

test('two workers behind two routers are met over the coordinator, and that way is measured', {
  timeout,
  skip,
}, async () => {
  const run = await train('hub', ['first', 'second'], `--planner straight --use-all --remote 2 --host ${hub}`);
  const { url, joinCode } = await run.event('listening');
  const code = { ASTEROID_JOIN_CODE: String(joinCode) };
  const workers = [
    on('inside-a', `worker --join ${url} --name first`, code),
    on('inside-b', `worker --join ${url} --name second`, code),
  ];
  const { cluster } = (await run.event('cluster')) as unknown as {
    readonly cluster: { readonly links: { readonly pairs: readonly { readonly bandwidthMbps: number }[] } };
  };
  assert.ok((cluster.links.pairs[0]?.bandwidthMbps ?? 0) > 1, JSON.stringify(cluster));
  assert.deepEqual(await finished(run, ...workers), [['second', 'first']]);
});

test('as in a container: the coordinator listens everywhere and announces the address that leads to it', {
  timeout,
  skip,
}, async () => {
  const place = `--host 0.0.0.0 --port ${mapped['router-a']} --advertise ${homes.a}`;
  const run = await train('inside-a', ['board', 'worker-1'], `--plan plan.json --workers 1 --remote 1 ${place}`);
  const { url, joinCode } = await run.event('listening');
  assert.equal(url, `wss://${homes.a}:${mapped['router-a']}`);
  const line = `--host 0.0.0.0 --port ${mapped['router-b']} --advertise ${homes.b}:${mapped['router-b']}`;
  const worker = on('inside-b', `worker --join ${url} --name board ${line}`, {
    ASTEROID_JOIN_CODE: String(joinCode),
  });
  // worker-1, which is not told of any of this, calls the board at its port.
  assert.deepEqual(await finished(run, worker), []);
});

test('the doctor says whether what is advertised leads here', { timeout, skip }, async () => {
  const doctor = async (
    place: Place,
    line: string,
  ): Promise<readonly { check: string; state: string; text: string }[]> =>
    JSON.parse((await on(place, `doctor ${line}`).end).stdout).findings;
  const stateOf = async (place: Place, line: string, check: string): Promise<string> => {
    const finding = (await doctor(place, line)).find((found) => found.check === check);
    return `${finding?.state}: ${finding?.text}`;
  };
  const [right, wrong, unreached] = await Promise.all([
    stateOf('hub', `--port 7700 --advertise ${hub}`, 'advertised'),
    stateOf('hub', `--port 7701 --advertise ${homes.a}:7701`, 'advertised'),
    stateOf('hub', `--join wss://${homes.a}:7702`, 'coordinator'),
  ]);
  assert.equal(right, `fine: port 7700 of ${hub} leads to this device, dialled from here`);
  assert.match(wrong, /^warning: port 7701 of 203\.0\.113\.11 does not lead to this device, dialled from here \(/);
  assert.match(unreached, /^wrong: .*203\.0\.113\.11:7702/);
});
