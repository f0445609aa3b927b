// Fine-tuning as it is typed: frozen layers over workers, a new head through training, testing and going on, tests
// while training and the curve of them.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, test } from 'node:test';
import type { Plan, Profile } from '../cluster/cluster.ts';
import { importModel } from '../graph/onnx/import.ts';
import { jsonLines, temporaryFolder, words } from '../testing/command.ts';
import { type HostedEnd, startCommandHost } from '../testing/command-host.ts';
import { fixtureFolder } from '../testing/pytorch-fixtures.ts';

const cwd = temporaryFolder();
const at = (...names: readonly string[]): string => join(cwd, ...names);
const timeout = 120_000;

/** `asteroid train` and the model and data of a fixture, whose labels are 0 to 4. */
function train(fixture: string): readonly string[] {
  const folder = join(fixtureFolder('pytorch'), fixture);
  return [
    'train',
    '--model',
    join(folder, 'opset17-dynamic.onnx'),
    '--data',
    `npy:${join(folder, 'X.npy')},${join(folder, 'Y.npy')}`,
  ];
}

const host = startCommandHost(cwd);
after(() => host.close());

async function run(...args: readonly string[]): Promise<HostedEnd> {
  const end = await host.run({ args, cwd });
  assert.equal(end.code, 0, end.stderr);
  return end;
}

async function weights(file: string): Promise<ReadonlyMap<string, Float32Array>> {
  const { graph } = importModel(await readFile(file));
  return new Map([...graph.initializers].map(([name, { data }]) => [name, data as Float32Array]));
}

test('over workers: frozen weights stay to the bit, the plan and the profile know which layers only run forward', {
  timeout,
}, async () => {
  const [, , model = ''] = train('mlp');
  const flags = [
    ...words('--freeze layers.0.* --freeze layers.1.* --freeze layers.4.bias --workers 2 --planner straight'),
  ];
  const { stdout } = await run(...train('mlp'), ...flags, ...words('--batch 8 --steps 3 --lr 0.1 --out frozen'));
  assert.match(
    stdout,
    /^Note {7}\d+ of \d+ layers are frozen before all others: they only run forward, and keep nothing\.$/m,
  );
  assert.match(stdout, /\(5 of 9 tensors frozen\)/);
  const [before, after] = [await weights(model), await weights(at('frozen', 'model.onnx'))];
  const changed = [...before.keys()].filter(
    (name) => Buffer.compare(bytes(before.get(name)), bytes(after.get(name))) !== 0,
  );
  assert.deepEqual(changed, ['layers.3.weight', 'layers.4.weight', 'layers.6.weight', 'layers.6.bias']);
  const plan = JSON.parse(await readFile(at('frozen', 'plan.json'), 'utf8')) as Plan;
  const profile = JSON.parse(await readFile(at('frozen', 'profile.json'), 'utf8')) as Profile;
  const forwardOnly = plan.forwardOnlyLayers ?? 0;
  assert.ok(forwardOnly > 0 && forwardOnly < profile.layers.length);
  for (const [index, { savedBytes, weightBytes, frozenBytes = 0 }] of profile.layers.entries()) {
    assert.equal(savedBytes === 0, index < forwardOnly);
    if (index < forwardOnly) assert.equal(frozenBytes, weightBytes);
    for (const { backwardMs } of Object.values(profile.devices)) {
      for (const row of backwardMs) assert.equal(row[index] === 0, index < forwardOnly, `layer ${index}`);
    }
  }
});

function bytes(data: Float32Array | undefined): Uint8Array {
  return data === undefined ? new Uint8Array() : new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
}

test('a new head goes with the run: trained, resumed, tested by its folder and exported', { timeout }, async () => {
  const flags = ['--head-classes', '7', '--batch', '8', '--seed', '3', '--lr', '0.1'];
  const { stdout } = await run(...train('mlp'), ...flags, '--steps', '2', '--out', 'head');
  assert.match(
    stdout,
    /^Note {7}.* new: layers\.6\.weight and layers\.6\.bias have fresh weights for 7 classes instead of 5\.$/m,
  );
  assert.equal((await weights(at('head', 'model.onnx'))).get('layers.6.bias')?.length, 7);
  await run('train', '--resume', 'head', '--steps', '4');
  const data = train('mlp')[4] as string;
  const [byRun, byFile] = [
    await run('eval', '--run', 'head', '--data', data, '--json'),
    await run('eval', '--model', at('head', 'model.onnx'), '--data', data, '--json'),
  ];
  assert.deepEqual(JSON.parse(byRun.stdout), JSON.parse(byFile.stdout));
  await run('export', '--run', 'head', '-o', 'exported.onnx');
  assert.deepEqual(await weights(at('exported.onnx')), await weights(at('head', 'model.onnx')));
  const other = await host.run({ args: ['train', '--resume', 'head', '--head-classes', '5', '--steps', '6'], cwd });
  assert.deepEqual(
    [other.code, other.stderr],
    [2, 'asteroid: --head-classes cannot change when a run is resumed: leave it out, or start a new run.\n'],
  );
});

test('tests while training: after every epoch, every few updates, or at the end only; here and over workers', {
  timeout,
}, async () => {
  const data = train('mlp')[4] as string;
  const tested = async (out: string, ...flags: readonly string[]): Promise<readonly unknown[]> => {
    await run(...train('mlp'), '--eval-data', data, '--batch', '8', '--lr', '0.1', ...flags, '--out', out);
    const events = await jsonLines(at(out, 'events.jsonl'));
    const checkpoints = events.filter(({ event }) => event === 'checkpoint').map(({ round }) => round);
    const rounds = events.filter(({ event }) => event === 'evaluated').map(({ round }) => round);
    assert.ok(rounds.every((round) => checkpoints.includes(round)));
    return rounds;
  };
  const [first, second] = (await tested('epochs', '--epochs', '2')) as [number, number];
  const training = (await jsonLines(at('epochs', 'events.jsonl'))).find(({ event }) => event === 'training');
  const perEpoch = Number(training?.['roundsPerEpoch']);
  assert.deepEqual([first, second], [perEpoch, 2 * perEpoch]);
  assert.equal((await tested('many', '--epochs', '41')).length, 14); // every third
  assert.deepEqual(await tested('every', '--steps', '5', '--eval-every', '2'), [2, 4, 5]);
  assert.deepEqual(
    await tested('workers', '--steps', '5', '--eval-every', '2', '--workers', '2', '--use-all'),
    [2, 4, 5],
  );
  assert.deepEqual(await tested('end', '--steps', '5', '--eval-every', '0'), [5]);
  // A test changes nothing.
  assert.deepEqual(await weights(at('every', 'model.onnx')), await weights(at('end', 'model.onnx')));
  const { stdout } = await run('curve', 'every', '--json');
  const { loss, picture } = JSON.parse(stdout) as { loss: { test: { x: number }[] }; picture: string };
  assert.deepEqual(
    loss.test.map(({ x }) => x),
    [2, 4, 5].map((round) => (5 >= perEpoch ? round / perEpoch : round)),
  );
  assert.match(await readFile(at(picture), 'utf8'), /^<svg /);
});
