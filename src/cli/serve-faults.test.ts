// A worker of asteroid serve is stopped like a board that hangs (SIGSTOP): what was asked meanwhile is answered by the
// others, and it is taken in again when it goes on.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { defined } from '../assert.ts';
import { type RunningCommand, startCommand, temporaryFolder } from '../testing/command.ts';

const cwd = temporaryFolder();
const [timeout, askedMeanwhile] = [120_000, 8];

interface Answer {
  readonly outputs: readonly { readonly data: readonly number[] }[];
}

test('a frozen worker: requests are answered without it, and it comes back', { timeout }, async (context) => {
  const args = ['serve', '--model', 'digits', '--planner', 'unmeasured', '--listen', '127.0.0.1:0', '--json'];
  // Requests of one sample share rounds of 1 to 8: a device that still has to compile for one of these is given longer.
  const server = startCommand([...args, '--workers', '0', '--remote', '3'], { cwd });
  const all: RunningCommand[] = [server];
  context.after(() => {
    for (const { process: child } of all) child.kill('SIGKILL');
  });
  const { url: coordinator, joinCode } = await server.event('listening');
  const start = (name: string): RunningCommand => {
    const environment = { ASTEROID_JOIN_CODE: String(joinCode), ASTEROID_STATE: join(cwd, name) };
    return startCommand(['worker', '--join', String(coordinator), '--name', name, '--json'], { cwd, environment });
  };
  all.push(...['a', 'b', 'c'].map(start));
  const { url } = await server.event('serving');
  await server.event('ready');
  const ask = async (level: number): Promise<readonly number[]> => {
    const data = Array.from({ length: 784 }, (_, pixel) => (level * pixel) / 784);
    const inputs = [{ name: 'image', shape: [1, 1, 28, 28], datatype: 'FP32', data }];
    const answer = await fetch(`${url}/v2/models/digits/infer`, { method: 'POST', body: JSON.stringify({ inputs }) });
    assert.equal(answer.status, 200);
    return defined(((await answer.json()) as Answer).outputs[0], 'an output').data;
  };
  const levels = Array.from({ length: askedMeanwhile }, (_, index) => 1 + index);
  const before = await Promise.all(levels.map(ask));
  assert.equal(new Set(before.map(String)).size, levels.length);

  const frozen = defined(all[2], 'b');
  frozen.process.kill('SIGSTOP');
  const meanwhile = Promise.all(levels.map(ask));
  const { reason } = await server.event('left', ({ device }) => device === 'b');
  const [, allowed] = /^no sign of life for \d+\.\d s, with (\d+\.\d) s allowed$/.exec(String(reason)) ?? [];
  // Requests have 30 s.
  assert.ok(Number(allowed) <= 10, String(reason));
  assertClose(await meanwhile, before);
  const [change] = server.events('recovering');
  assert.deepEqual([change?.['lost'], change?.['source']], [['b'], 'devices']);

  frozen.process.kill('SIGCONT');
  await frozen.event('lost');
  const { name } = await frozen.event('joined', (event) => event['name'] !== 'b');
  await server.event('recovered', ({ cause }) => String(cause).startsWith('all devices of the given plan'));
  const layouts = server.events('deployment').map(({ plan }) => plan as { stages: readonly { devices: string[] }[] });
  assert.ok(layouts.at(-1)?.stages.some(({ devices }) => devices.includes(String(name))));
  assertClose(await Promise.all(levels.map(ask)), before);
  server.process.kill('SIGTERM');
  assert.equal((await server.end).code, 0);
});

function assertClose(found: readonly (readonly number[])[], wanted: readonly (readonly number[])[]): void {
  for (const [request, values] of wanted.entries()) {
    const scale = Math.max(...values.map(Math.abs));
    for (const [at, value] of values.entries())
      assert.ok(Math.abs((found[request]?.[at] ?? Number.NaN) - value) <= 1e-5 * scale, `request ${request}, ${at}`);
  }
}
