// asteroid serve as it is typed: it answers like ONNX Runtime, over workers, encrypted and to whoever shows the token,
// and ends when it is told to, with everything answered.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { request } from 'node:https';
import { test } from 'node:test';
import { startCommand, temporaryFolder } from '../testing/command.ts';

const cwd = temporaryFolder();
const options = { timeout: 120_000 };

const pictures = {
  name: 'image',
  shape: [2, 1, 28, 28],
  datatype: 'FP32',
  data: Array.from({ length: 1568 }, () => 0.5),
};
const body = JSON.stringify({ inputs: [pictures] });

test('two workers answer over HTTP, and SIGTERM ends with what has come', options, async () => {
  const args = ['serve', '--model', 'digits', '--workers', '2', '--planner', 'unmeasured', '--listen', '127.0.0.1:0'];
  const server = startCommand([...args, '--json'], { cwd });
  const { url } = (await server.event('serving')) as { readonly url?: string };
  await server.event('ready');
  const ask = (): Promise<Response> => fetch(`${url}/v2/models/digits/infer`, { method: 'POST', body });
  const answers = await Promise.all(Array.from({ length: 12 }, ask));
  const found = (await Promise.all(answers.map((answer) => answer.json()))) as { outputs: { data: number[] }[] }[];
  for (const { outputs } of found) {
    const { data = [] } = outputs[0] ?? {};
    assert.equal(data.length, 20);
    // Equal pictures, equal answers, whatever they shared a round with.
    assert.deepEqual(data, found[0]?.outputs[0]?.data);
    assert.deepEqual(data.slice(0, 10), data.slice(10));
  }
  const metrics = await (await fetch(`${url}/metrics`)).text();
  assert.match(metrics, /asteroid_requests_total\{code="200"\} 12\n/);
  assert.match(metrics, /asteroid_devices 2\n/);
  server.process.kill('SIGTERM');
  const end = await server.end;
  assert.equal(end.code, 0, end.stderr);
});

test('beyond this machine answers are encrypted, and a token is asked for', options, async () => {
  const environment = { ASTEROID_SERVE_TOKEN: 'a-token-of-sixteen' };
  const args = ['serve', '--model', 'digits', '--planner', 'unmeasured', '--listen', '0.0.0.0:0', '--json'];
  const server = startCommand(args, { cwd, environment });
  const { url = '', authorityFile = '' } = (await server.event('serving')) as { url?: string; authorityFile?: string };
  const ca = await readFile(authorityFile);
  const status = (token: string): Promise<number | undefined> =>
    new Promise((resolve, reject) => {
      const headers = { authorization: `Bearer ${token}` };
      request(`https://127.0.0.1:${new URL(url).port}/v2`, { ca, headers }, (response) => {
        response.resume();
        resolve(response.statusCode);
      })
        .once('error', reject)
        .end();
    });
  assert.deepEqual([await status('a-token-of-sixteen'), await status('another')], [200, 401]);
  server.process.kill('SIGTERM');
  assert.equal((await server.end).code, 0);
});
