// The commands in README.md and docs/start.md are run as they stand there, but for the network's addresses and, over
// the network, the number of rounds.

import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { copyFile, cp, readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { before, test } from 'node:test';
import { defined } from '../assert.ts';
import { ownAddresses } from '../runtime/host/addresses.ts';
import { runCommand, startCommand, temporaryFolder } from '../testing/command.ts';
import { missingNamespaces } from '../testing/network-namespaces.ts';
import { writePictures } from '../testing/picture-folders.ts';
import { fixtureFolder } from '../testing/pytorch-fixtures.ts';

const cwd = temporaryFolder();
const repository = folderOf('README.md');
const timeout = 120_000;

/** The folder above this file that holds `name`. */
function folderOf(name: string, below: string = import.meta.dirname): string {
  if (existsSync(join(below, name))) return below;
  assert.notEqual(below, dirname(below), `${name} is nowhere above`);
  return folderOf(name, dirname(below));
}

/** The lines of their shell blocks, without comments, lines that end in \ joined. */
async function shellLines(): Promise<string[]> {
  const texts = ['README.md', join('docs', 'start.md')].map((path) => readFile(join(repository, path), 'utf8'));
  const text = (await Promise.all(texts)).join('\n');
  const blocks = [...text.matchAll(/```sh\n([\s\S]*?)```/g)].map((match) => match[1] ?? '');
  return blocks
    .join('\n')
    .replace(/\\\n\s*/g, '')
    .split('\n')
    .map((line) => line.replace(/\s+#.*$/, '').trim())
    .filter((line) => line !== '');
}

/** The arguments of the line with this beginning, without `npx asteroid`. */
async function args(beginning: string): Promise<string[]> {
  const [line] = await lines(beginning);
  return defined(line, `a line "npx asteroid ${beginning}" in the README`);
}

/** The arguments of all lines with this beginning, without `npx asteroid`. */
async function lines(beginning: string): Promise<string[][]> {
  const found = (await shellLines()).filter((candidate) => candidate.startsWith(`npx asteroid ${beginning}`));
  return found.map((line) => line.split(/\s+/).slice(2));
}

before(async () => {
  const fixture = join(fixtureFolder('pytorch'), 'mlp');
  await copyFile(join(fixture, 'opset17-dynamic.onnx'), join(cwd, 'net.onnx'));
  for (const prefix of ['', 'test-']) {
    await copyFile(join(fixture, 'X.npy'), join(cwd, `${prefix}inputs.npy`));
    await copyFile(join(fixture, 'Y.npy'), join(cwd, `${prefix}labels.npy`));
  }
  await cp(join(repository, 'clusters'), join(cwd, 'clusters'), { recursive: true });
});

test('the README and the page after it hold these commands and no others', async () => {
  const commands = (await shellLines()).map((line) =>
    line
      .split(/\s+/)
      .slice(0, line.startsWith('npx') ? 3 : 2)
      .join(' '),
  );
  assert.deepEqual(commands, [
    'npm ci',
    'npm start',
    'npx asteroid train',
    'npx asteroid worker',
    'npx asteroid drain',
    'npx asteroid train',
    'npx asteroid train',
    'npx asteroid predict',
    'npx asteroid inspect',
    'npx asteroid train',
    'npx asteroid eval',
    'npx asteroid verify',
    'npx asteroid plan',
    'npx asteroid simulate',
    'npx asteroid what-if',
    'npx asteroid what-if',
  ]);
  const { scripts, bin } = JSON.parse(await readFile(join(repository, 'package.json'), 'utf8')) as {
    scripts: Record<string, string>;
    bin: Record<string, string>;
  };
  assert.equal(scripts['start'], 'node dist/cli/main.js quickstart');
  assert.match(defined(bin['asteroid'], 'the command'), /dist\/cli\/main\.js$/);
});

/** Why this machine is not made its own second one. */
function missingSecondMachine(): string | false {
  if (ownAddresses().length === 0) return 'this machine has no address on a network';
  return missingNamespaces() === false && 'second-machine.long.test runs these lines over two namespaces';
}

test('a second machine, which is this one, reached over its own address', {
  timeout,
  skip: missingSecondMachine(),
}, async () => {
  const address = defined(ownAddresses()[0], 'an address');
  const here = (await args('train --model digits')).map((word) =>
    word.replace('192.168.1.20', address).replace(/^7700$/, '0'),
  );
  const epochs = here.indexOf('--epochs');
  const run = startCommand([...here.toSpliced(epochs, 2, '--steps', '3'), '--use-all', '--out', 'second', '--json'], {
    cwd,
    environment: { ASTEROID_STATE: join(cwd, 'here') },
  });
  const { url, joinCode } = await run.event('listening');
  const there = (await args('worker')).map((word) => word.replace('wss://192.168.1.20:7700', String(url)));
  const worker = await runCommand(there, {
    cwd,
    environment: { ASTEROID_JOIN_CODE: String(joinCode), ASTEROID_STATE: join(cwd, 'there') },
  });
  const end = await run.end;
  assert.equal(end.code, 0, end.stderr);
  assert.equal(worker.code, 0, worker.stderr);
  assert.match(String(url), new RegExp(`^wss://${address.replaceAll('.', '\\.')}:\\d+$`));
});

test('a model of your own: train, eval, verify', { timeout }, async () => {
  const trained = await runCommand(await args('train --model net.onnx'), { cwd });
  assert.equal(trained.code, 0, trained.stderr);
  assert.match(trained.stdout, /\nDone {7}after 20 rounds, .*\nFolder {5}runs\/net /);
  const tested = await runCommand(await args('eval'), { cwd });
  assert.equal(tested.code, 0, tested.stderr);
  assert.match(tested.stdout, /^Accuracy {3}\d+\.\d\d %\nLoss /);
  const verified = await runCommand(await args('verify'), { cwd });
  assert.equal(verified.code, 0, verified.stderr);
  assert.match(verified.stdout, /\nEqual {6}within 0\.00001: 3 devices trained as one does\n$/);
});

test('a cluster that one does not have: plan, simulate, what-if', { timeout }, async () => {
  const planned = await runCommand(await args('plan'), { cwd });
  assert.equal(planned.code, 0, planned.stderr);
  assert.match(planned.stdout, /\nPlan {7}by planner "best" in [\s\S]* samples\/s\n$/);
  const simulated = await runCommand(await args('simulate'), { cwd });
  assert.equal(simulated.code, 0, simulated.stderr);
  assert.match(await readFile(join(cwd, 'round.svg'), 'utf8'), /^<svg /);
  const says = [
    /the plan cannot run: one of its devices has left\n.* by a new plan\n/,
    /\nLight {6}recovers [\d.]+x as fast as heavy/,
  ];
  const questions = await lines('what-if');
  assert.equal(questions.length, says.length);
  for (const [index, question] of questions.entries()) {
    const answered = await runCommand(question, { cwd });
    assert.equal(answered.code, 0, answered.stderr);
    assert.match(answered.stdout, defined(says[index], 'what it says'));
  }
});

test('pictures: training and predicting, on small pictures in this process', { timeout }, async () => {
  await writePictures(join(cwd, 'photos'), ['cat', 'dog'], 10);
  await copyFile(join(cwd, 'photos', 'cat', '0.png'), join(cwd, 'new.jpg'));
  const short = (await args('train --model mobilenet-v3-small')).map((word) =>
    word === 'mobilenet-v3-small' ? 'conv-s:channels=3' : word === '3' ? '0' : word,
  );
  const trained = await runCommand([...short, '--batch', '6', '--steps', '2'], { cwd });
  assert.equal(trained.code, 0, trained.stderr);
  const predicted = await runCommand(await args('predict'), { cwd });
  assert.equal(predicted.code, 0, predicted.stderr);
  assert.match(predicted.stdout, /^new\.jpg {2}(cat|dog) [\d.]+ %, (cat|dog) [\d.]+ %$/m);
});
