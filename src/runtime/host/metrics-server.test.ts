import assert from 'node:assert/strict';
import { request } from 'node:http';
import { test } from 'node:test';
import { InputError } from '../../errors.ts';
import { startMetricsServer } from './metrics-server.ts';

const token = 'a-token-of-sixteen';

/** Status, type and body of an answer. */
async function ask(url: string, init: RequestInit = {}): Promise<readonly [number, string | null, string]> {
  const response = await fetch(url, init);
  return [response.status, response.headers.get('content-type'), await response.text()];
}

test('metrics are read by GET at /metrics, and nothing else is there', async (context) => {
  const server = await startMetricsServer({ host: '127.0.0.1', port: 0, insecure: false, metrics: () => 'x 1\n' });
  context.after(() => server.close());
  assert.equal(server.token, undefined);
  assert.match(server.url, /^http:\/\/127\.0\.0\.1:\d+\/metrics$/);
  assert.deepEqual(await ask(server.url), [200, 'text/plain; version=0.0.4; charset=utf-8', 'x 1\n']);
  assert.deepEqual((await ask(`${server.url}?a=b`))[0], 200);
  assert.deepEqual((await ask(server.url, { method: 'HEAD' }))[2], '');
  assert.equal((await ask(server.url, { method: 'POST', body: 'x' }))[0], 405);
  assert.equal((await ask(server.url.replace('/metrics', '/')))[0], 404);
});

test('who has a token shows it; a short one is refused', async (context) => {
  const options = { host: '127.0.0.1', port: 0, insecure: false, metrics: () => 'x 1\n' };
  const server = await startMetricsServer({ ...options, token });
  context.after(() => server.close());
  const showing = (text: string) => ask(server.url, { headers: { authorization: text } });
  assert.equal((await ask(server.url))[0], 401);
  assert.equal((await showing(`Bearer ${token}x`))[0], 401);
  assert.equal((await showing(token))[0], 401);
  assert.equal((await showing(`Bearer ${token}`))[0], 200);
  await assert.rejects(startMetricsServer({ ...options, token: 'short' }), InputError);
});

test('an address that is taken is an error with the mend', async (context) => {
  const options = { host: '127.0.0.1', insecure: false, metrics: () => '' };
  const server = await startMetricsServer({ ...options, port: 0 });
  context.after(() => server.close());
  const port = Number(new URL(server.url).port);
  await assert.rejects(startMetricsServer({ ...options, port }), {
    message: `Nobody can listen on 127.0.0.1:${port} (EADDRINUSE): choose another --metrics.`,
  });
});

test('a request that does not end holds nothing up', async () => {
  const server = await startMetricsServer({ host: '127.0.0.1', port: 0, insecure: false, metrics: () => 'x 1\n' });
  const open = request(server.url, { method: 'POST', headers: { 'content-length': 100 } });
  const ended = new Promise((resolve) => open.once('close', resolve));
  open.on('error', () => {});
  open.write('x');
  await server.close();
  await ended;
});
