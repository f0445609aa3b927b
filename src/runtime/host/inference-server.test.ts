// The server over real sockets: what a KServe client says and gets, word for word, and what becomes of requests that
// are malformed, too large, too slow, too many, or from strangers.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { after, test } from 'node:test';
import { type Tensor, tensor, viewBytes } from '../../graph/tensor.ts';
import type { ServedModel } from '../run/open-inference.ts';
import { Overloaded } from '../run/request-batcher.ts';
import { type InferenceServer, type InferenceServerOptions, startInferenceServer } from './inference-server.ts';

const input = { name: 'x', type: 'float32', shape: ['N', 2], batchAxis: 0, differentiable: false } as const;
const model: ServedModel = { name: 'sum', inputs: [input], outputs: [{ ...input, name: 'y', shape: ['N', 1] }] };
const token = 'a-token-of-a-test';

/** Adds up each sample's numbers. */
async function sums([x]: readonly Tensor[]): Promise<readonly Tensor[]> {
  const data = Array.from(x?.data as Float32Array);
  return [
    tensor(
      'float32',
      [data.length / 2, 1],
      data.flatMap((value, at) => (at % 2 === 0 ? [value + (data[at + 1] ?? 0)] : [])),
    ),
  ];
}

const servers: InferenceServer[] = [];
after(() => Promise.all(servers.map((server) => server.drain())));

async function start(more: Partial<InferenceServerOptions> = {}): Promise<InferenceServer> {
  const server = await startInferenceServer({
    ...{ host: '127.0.0.1', port: 0, model, version: '1.2.3', mostBytes: 1000, mostSamples: 8, timeoutMs: 2000 },
    ...{ isReady: () => true, infer: sums, metrics: () => 'asteroid_ready 1\n', onAnswered: () => {} },
    ...more,
  });
  servers.push(server);
  return server;
}

const body = (values: unknown, shape = [1, 2]): string =>
  JSON.stringify({ id: '7', inputs: [{ name: 'x', shape, datatype: 'FP32', data: values }] });

interface Exchange {
  readonly method: string;
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
  readonly answer: Omit<Exchange, 'method' | 'path' | 'answer'> & { readonly status: number };
}

test('a KServe client of PyPI says what it said, and gets what it got', async () => {
  const file = new URL('../../../test/fixtures/kserve/tritonclient.json', import.meta.url);
  const { exchanges } = JSON.parse(await readFile(file, 'utf8')) as { readonly exchanges: readonly Exchange[] };
  const image = { ...input, name: 'image', shape: ['N', 1, 28, 28] } as const;
  const output = { ...input, name: 'Gemm_2', shape: ['N', 10] } as const;
  const binary = exchanges.find(({ answer }) => answer.headers['inference-header-content-length'] !== undefined);
  const bytes = Buffer.from(binary?.answer.body ?? '', 'base64');
  const head = Number(binary?.answer.headers['inference-header-content-length']);
  const seen: Tensor[] = [];
  const { url } = await start({
    model: { name: 'digits', inputs: [image], outputs: [output] },
    version: '0.1.0',
    mostBytes: 100_000,
    async infer([x]) {
      seen.push(x as Tensor);
      return [{ type: 'float32', shape: [2, 10], data: viewBytes('float32', bytes.subarray(head)) }];
    },
  });
  for (const { method, path, headers, body: sent, answer } of exchanges) {
    const given = Buffer.from(sent, 'base64');
    const found = await fetch(url + path, { method, headers, ...(given.length > 0 ? { body: given } : {}) });
    assert.equal(found.status, answer.status, path);
    for (const [name, value] of Object.entries(answer.headers)) assert.equal(found.headers.get(name), value, path);
    assert.deepEqual(Buffer.from(await found.arrayBuffer()), Buffer.from(answer.body, 'base64'), path);
  }
  assert.equal(seen.length, 3);
  for (const x of seen) assert.deepEqual(x, seen[0], 'the same pictures as JSON and as bytes');
});

const refusals: readonly (readonly [string, RequestInit & { readonly path?: string }, number, RegExp])[] = [
  ['no JSON', { body: '{"inputs": [' }, 400, /not JSON/],
  ['nothing', { body: '' }, 400, /not JSON/],
  ['another input', { body: body([1, 2]).replace('"x"', '"z"') }, 400, /no input z/],
  ['another type', { body: body([1, 2]).replace('FP32', 'INT64') }, 400, /is FP32, not INT64/],
  ['another shape', { body: body([1, 2, 3], [1, 3]) }, 400, /shape \[N, 2\], not \[1, 3\]/],
  ['too few numbers', { body: body([1]) }, 400, /has 1 elements, and its shape 2/],
  ['text for numbers', { body: body(['1', 2]) }, 400, /holds "1"/],
  [
    'too many samples',
    {
      body: body(
        Array.from({ length: 18 }, () => 0),
        [9, 2],
      ),
    },
    400,
    /send 1 to 8/,
  ],
  ['no samples', { body: body([], [0, 2]) }, 400, /send 1 to 8/],
  [
    'a length beyond the body',
    { body: body([1, 2]), headers: { 'Inference-Header-Content-Length': '999' } },
    400,
    /"999": give the JSON.s length in bytes, at most the body/,
  ],
  ['a body beyond the limit', { body: body([1, 2]).padEnd(1001) }, 413, /at most 1000 bytes/],
  ['a compressed body', { body: 'x', headers: { 'content-encoding': 'gzip' } }, 415, /uncompressed/],
  ['another model', { body: body([1, 2]), path: '/v2/models/other/infer' }, 404, /no such model/],
  ['another version', { body: body([1, 2]), path: '/v2/models/sum/versions/2/infer' }, 404, /no such model or version/],
  ['another path', { path: '/v3', method: 'GET' }, 404, /nothing at \/v3/],
  ['a wrong escape', { path: '/v2/models/%ff/infer', body: body([1, 2]) }, 404, /no such model/],
  ['GET for inference', { method: 'GET' }, 405, /by POST/],
  ['POST for metadata', { path: '/v2', body: '{}' }, 405, /by GET/],
];
test('what cannot be answered is refused with the right status and a reason', async () => {
  const answered: number[] = [];
  const { url } = await start({ onAnswered: (status) => answered.push(status) });
  for (const [name, { path = '/v2/models/sum/infer', ...request }, status, reason] of refusals) {
    const found = await fetch(url + path, { method: 'POST', ...request });
    assert.equal(found.status, status, name);
    assert.match(((await found.json()) as { error: string }).error, reason, name);
  }
  const right = await fetch(`${url}/v2/models/sum/infer`, { method: 'POST', body: body([[1, 2]]) });
  const { outputs, id } = (await right.json()) as { outputs: unknown; id: string };
  assert.deepEqual([id, outputs], ['7', [{ name: 'y', datatype: 'FP32', shape: [1, 1], data: [3] }]]);
  assert.equal(answered.at(-1), 200);
});

test('a body without an announced length is cut off at the limit', async () => {
  const { url } = await start();
  const { port } = new URL(url);
  const socket = connect(Number(port), '127.0.0.1');
  const chunk = 'x'.repeat(600);
  socket.write('POST /v2/models/sum/infer HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n');
  for (let count = 0; count < 3; count++) socket.write(`258\r\n${chunk}\r\n`);
  const [first] = await socket.setEncoding('utf8').take(1).toArray();
  assert.match(String(first), /^HTTP\/1\.1 413 /);
  socket.destroy();
});

test('a body that does not come in time is 408, and nothing of it is left', async () => {
  const server = await start({ timeoutMs: 200 });
  const socket = connect(Number(new URL(server.url).port), '127.0.0.1');
  socket.write('POST /v2/models/sum/infer HTTP/1.1\r\nhost: a\r\ncontent-length: 900\r\n\r\n{"inputs": [');
  const answer = (await socket.setEncoding('utf8').toArray()).join('');
  assert.match(answer, /^HTTP\/1\.1 408 .*\r\n\r\n$/s);
  await server.drain();
});

test('strangers learn whether the server lives, and nothing else', async () => {
  const { url } = await start({ token });
  const status = async (path: string, authorization?: string): Promise<number> =>
    (await fetch(url + path, authorization === undefined ? {} : { headers: { authorization } })).status;
  assert.deepEqual([await status('/v2/health/live'), await status('/v2/health/ready')], [200, 200]);
  for (const path of ['/v2', '/metrics', '/v2/models/sum', '/v2/models/other', '/v2/models/sum/infer'])
    assert.deepEqual([path, await status(path), await status(path, 'Bearer other')], [path, 401, 401]);
  assert.deepEqual([await status('/v2', `Bearer ${token}`), await status('/metrics', `bearer ${token}`)], [200, 200]);
});

test('a full queue is 429, a pipeline that fails or is not ready 503, no answer in time 504', async () => {
  const ask = async (more: Partial<InferenceServerOptions>): Promise<number> => {
    const { url } = await start(more);
    return (await fetch(`${url}/v2/models/sum/infer`, { method: 'POST', body: body([1, 2]) })).status;
  };
  const failing = (error: Error): Partial<InferenceServerOptions> => ({ infer: () => Promise.reject(error) });
  assert.equal(await ask(failing(new Overloaded('full'))), 429);
  assert.equal(await ask(failing(new Error('lost'))), 503);
  assert.equal(await ask({ isReady: () => false }), 503);
  const signals: AbortSignal[] = [];
  const never: InferenceServerOptions['infer'] = (_, signal) => {
    signals.push(signal);
    return new Promise(() => {});
  };
  assert.equal(await ask({ infer: never, timeoutMs: 50 }), 504);
  assert.equal(signals[0]?.aborted, true, 'nobody computes for a request that was given up');
  const queued: InferenceServerOptions['infer'] = (_, signal) =>
    new Promise((_resolve, reject) => {
      signal.addEventListener('abort', () => reject(new Error('given up')));
    });
  assert.equal(await ask({ infer: queued, timeoutMs: 50 }), 504, 'also where it leaves a queue');
});

test('a connection without a request outlives the pauses of clients and proxies', async () => {
  const { url } = await start();
  const { headers } = await fetch(`${url}/v2/health/live`);
  // Node's own 5 s are less than a client on a busy machine may need for its next request, which the close would cross.
  assert.equal(headers.get('keep-alive'), 'timeout=75');
});

test('a drain answers what has come, and takes no more', async () => {
  let proceed = (): void => {};
  const begun = new Promise<void>((resolve) => {
    proceed = resolve;
  });
  let finish = (): void => {};
  const server = await start({
    infer: (inputs) =>
      new Promise((resolve) => {
        finish = () => resolve(sums(inputs));
        proceed();
      }),
  });
  const asked = fetch(`${server.url}/v2/models/sum/infer`, { method: 'POST', body: body([1, 2]) });
  await begun;
  const drained = server.drain();
  await assert.rejects(fetch(`${server.url}/v2/health/live`));
  finish();
  assert.equal((await asked).status, 200);
  await drained;
});

test('a request that crosses the end on its way is answered, and its connection ends', async () => {
  const server = await start();
  const socket = connect(Number(new URL(server.url).port), '127.0.0.1').setEncoding('utf8');
  const sent = body([1, 2]);
  const request = `POST /v2/models/sum/infer HTTP/1.1\r\nhost: a\r\ncontent-length: ${sent.length}\r\n\r\n${sent}`;
  let text = '';
  socket.on('data', (piece: string) => {
    text += piece;
  });
  socket.write(request);
  const answers = (): string[] => text.split('HTTP/1.1 ').slice(1);
  while (answers().length < 1) await once(socket, 'data');
  assert.match(answers()[0] ?? '', /^200 .*connection: keep-alive/is);
  const drained = server.drain();
  await assert.rejects(fetch(`${server.url}/v2/health/live`));
  socket.write(request);
  await once(socket, 'end');
  assert.match(answers()[1] ?? '', /^200 .*connection: close.*"data":\[3\]/is);
  await drained;
});
