// The window is closed to strangers: every way in without a link, from another page, or with what is no command.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type IncomingHttpHeaders, request } from 'node:http';
import { after, before, test } from 'node:test';
import { WebSocket } from 'ws';
import { systemClock } from '../../clock.ts';
import type { RunEvent } from '../../runtime/protocol/events.ts';
import type { ServerMessage } from '../messages.ts';
import { serveAlone } from './own-server.ts';
import { RunWindow } from './run-window.ts';

interface Answer {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly body: string;
}

interface Asked {
  readonly method?: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string;
}

const recorded: RunEvent[] = [];
let window: RunWindow;
let server: Awaited<ReturnType<typeof serveAlone>>;
let link: () => string = () => '';
let base = new URL('http://127.0.0.1');

const start = async (): Promise<void> => {
  recorded.length = 0;
  window = new RunWindow({
    ...{ model: 'net', clock: systemClock, record: (event) => recorded.push(event), stop: () => {} },
    onOpen: (opened) => {
      link = opened.link;
    },
  });
  server = await serveAlone(
    window,
    { host: '127.0.0.1', port: 0, clock: systemClock, insecure: false },
    { drain: () => {}, scaleLearningRate: () => {} },
  );
  base = new URL(link());
};
before(start);
after(() => server.close('the test is over'));

/** Asks for a path as it is written, which URL would tidy. */
function ask(path: string, { method = 'GET', headers = {}, body }: Asked = {}): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const sent = request({ host: base.hostname, port: base.port, path, method, headers, agent: false }, (response) => {
      let text = '';
      response.setEncoding('utf8').on('data', (piece: string) => {
        text += piece;
      });
      response.on('end', () => resolve({ status: response.statusCode ?? 0, headers: response.headers, body: text }));
    });
    sent.on('error', reject);
    sent.end(body);
  });
}

const tokenOf = (url: string): string => url.slice(url.indexOf('#') + 1);
const post = (token: string, headers: Readonly<Record<string, string>> = { origin: base.origin }): Promise<Answer> =>
  ask('/session', { method: 'POST', headers, body: token });

async function session(): Promise<string> {
  const { headers } = await post(tokenOf(link()));
  return headers['set-cookie']?.[0]?.split(';')[0] ?? '';
}

/** What sockets have heard and nobody has looked at. */
const messages = new WeakMap<WebSocket, ServerMessage[]>();

/** Opens the WebSocket: it, or the status with which it is refused. */
function dial(headers: Readonly<Record<string, string>>): Promise<WebSocket | number> {
  const socket = new WebSocket(`ws://${base.host}/events`, { headers });
  const heard: ServerMessage[] = [];
  messages.set(socket, heard);
  socket.on('message', (data) => {
    heard.push(JSON.parse(String(data)) as ServerMessage);
    socket.emit('heard');
  });
  return new Promise((resolve, reject) => {
    socket.once('open', () => resolve(socket));
    socket.once('unexpected-response', (_request, response) => {
      response.resume();
      resolve(response.statusCode ?? 0);
    });
    socket.on('error', reject);
  });
}

async function opened(): Promise<WebSocket> {
  const socket = await dial({ origin: base.origin, cookie: await session() });
  assert(socket instanceof WebSocket);
  return socket;
}

async function nextMessage(socket: WebSocket): Promise<ServerMessage> {
  const heard = messages.get(socket) ?? [];
  while (heard.length === 0) await once(socket, 'heard');
  return heard.shift() as ServerMessage;
}

const closeCode = (socket: WebSocket): Promise<number> => new Promise((resolve) => socket.once('close', resolve));

test('the page is served with a policy that lets it reach nobody else', async () => {
  const { status, headers, body } = await ask('/');
  assert.equal(status, 200);
  assert.match(body, /<script type="module" src="\/page.js">/);
  assert.match(String(headers['content-security-policy']), /default-src 'none'; script-src 'self'; style-src 'self'/);
  assert.match(String(headers['content-security-policy']), /frame-ancestors 'none'/);
  assert.equal(headers['cache-control'], 'no-store');
  assert.equal(headers['x-content-type-options'], 'nosniff');
});

test('nothing but the files of the page is served', async () => {
  const paths = [
    '/../package.json',
    '/%2e%2e/package.json',
    '/page.css/../../messages.js',
    '//etc/passwd',
    '/index.html',
  ];
  for (const path of [...paths, '/page.js?x', '/events', '/\\..\\x'])
    assert.deepEqual([path, (await ask(path)).status], [path, 404]);
  assert.equal((await ask('/', { method: 'POST' })).status, 405);
  assert.equal((await ask('/session', { method: 'PUT' })).status, 405);
});

test('who has no session sees nothing of the run', async () => {
  assert.equal((await ask('/session')).status, 401);
  assert.equal(await dial({ origin: base.origin }), 401);
  assert.equal(await dial({ origin: base.origin, cookie: `asteroid-${base.port}=${'a'.repeat(32)}` }), 401);
});

test('a name of DNS that leads here is refused', async () => {
  for (const host of [`evil.example:${base.port}`, 'evil.example', '127.0.0.1', '127.0.0.1:1', '10.0.0.1:80'])
    assert.deepEqual([host, (await ask('/', { headers: { host } })).status], [host, 403]);
  assert.equal((await ask('/', { headers: { host: `localhost:${base.port}` } })).status, 200);
  const cookie = await session();
  assert.equal(await dial({ origin: base.origin, cookie, host: `evil.example:${base.port}` }), 403);
});

test('pages of other servers can neither show a token nor open the WebSocket', async () => {
  const token = tokenOf(link());
  for (const origin of ['http://evil.example', `https://${base.host}`, 'null', ''])
    assert.deepEqual([origin, (await post(token, { origin })).status], [origin, 403]);
  assert.equal((await post(token, {})).status, 403);
  assert.equal((await post(token, { origin: base.origin, 'sec-fetch-site': 'cross-site' })).status, 403);
  assert.equal(await dial({ origin: 'http://evil.example', cookie: await session() }), 403);
  assert.equal((await post(token)).status, 204, 'the token was not used up by others');
});

test('a link lets one browser in, by a cookie that scripts cannot read', async () => {
  const token = tokenOf(link());
  const { status, headers } = await post(token);
  assert.equal(status, 204);
  assert.match(headers['set-cookie']?.[0] ?? '', /^asteroid-\d+=[\w-]{32}; Path=\/; HttpOnly; SameSite=Strict$/);
  assert.equal((await post(token)).status, 401, 'a replayed token');
  const cookie = headers['set-cookie']?.[0]?.split(';')[0] ?? '';
  assert.equal((await ask('/session', { headers: { cookie } })).status, 204);
});

test('viewers see the run, and what they ask for is on record', async () => {
  const socket = await opened();
  const first = await nextMessage(socket);
  assert.equal(first.kind === 'view' && first.view.model, 'net');
  window.observe({ kind: 'listening', url: 'ws://x', joinCode: 'SECRET', remoteCount: 1 });
  window.observe({ kind: 'warning', message: 'hot' });
  const news = await nextMessage(socket);
  assert(news.kind === 'events');
  assert.deepEqual(
    news.events.map(([, event]) => event),
    [{ kind: 'warning', message: 'hot' }],
  );
  socket.send(JSON.stringify({ id: 7, command: 'learning-rate', factor: 0.5 }));
  const answer = await nextMessage(socket);
  assert.deepEqual([answer.kind, 'id' in answer && answer.id], ['answer', 7]);
  assert.deepEqual(recorded, [{ kind: 'asked', what: 'learning-rate', factor: 0.5 }]);
  socket.send(JSON.stringify({ id: 8, command: 'drain', device: 'nobody' }));
  assert.equal((await nextMessage(socket)).kind, 'refused');
  assert.equal(recorded.length, 1);
  socket.close();
  await closeCode(socket);
});

test('what is no command, or too long, or too often, ends the connection', async () => {
  const wrong: readonly (readonly [string | Buffer, number])[] = [
    ['{', 1008],
    ['{"id":1,"command":"format"}', 1008],
    ['{"id":1,"command":"stop","more":1}', 1008],
    [Buffer.from('{"id":1,"command":"stop"}'), 1008],
    [' '.repeat(5000), 1009],
    [Buffer.alloc(1 << 20), 1009],
  ];
  for (const [message, code] of wrong) {
    const socket = await opened();
    const closed = closeCode(socket);
    socket.send(message);
    assert.equal(await closed, code);
  }
  const socket = await opened();
  const closed = closeCode(socket);
  for (let id = 0; id < 40; id++) socket.send(JSON.stringify({ id, command: 'drain', device: 'nobody' }));
  assert.equal(await closed, 1008);
  assert.equal(
    recorded.some((event) => event.kind === 'asked' && event.what === 'stop'),
    false,
  );
});

test('viewers see what a run came to, and may ask it for nothing more; then the server closes', async () => {
  const socket = await opened();
  await nextMessage(socket);
  recorded.length = 0;
  let closeCount = 0;
  window.end(async () => {
    closeCount++;
  });
  window.observe({ kind: 'evaluated', round: 9, accuracy: 0.5, loss: 1, sampleCount: 4 });
  const heard: string[] = [];
  while (!heard.includes('evaluated')) {
    const message = await nextMessage(socket);
    if (message.kind === 'events') heard.push(...message.events.map(([, event]) => event.kind));
  }
  assert.deepEqual(heard, ['phase', 'evaluated']);
  socket.send(JSON.stringify({ id: 1, command: 'learning-rate', factor: 2 }));
  assert.deepEqual(await nextMessage(socket), { kind: 'refused', id: 1, text: 'The run is over.' });
  assert.deepEqual([recorded, closeCount], [[], 0]);
  window.observe({ kind: 'failed', message: 'the disk is full' });
  const closed = closeCode(socket);
  await window.close();
  await closed;
  const last = await nextMessage(socket);
  assert.deepEqual(last.kind === 'events' && last.events.map(([, event]) => event), [
    { kind: 'failed', message: 'the disk is full' },
  ]);
  assert.equal(closeCount, 1);
});

test('a token of a mebibyte is not read, and whoever guesses has to wait', async () => {
  await server.close('again');
  await start();
  const huge = { method: 'POST', headers: { origin: base.origin }, body: 'a'.repeat(1 << 20) };
  await assert.rejects(ask('/session', huge), /ECONNRESET|EPIPE|socket hang up/);
  for (let guess = 0; guess < 10; guess++) assert.equal((await post(`guess ${guess}`)).status, 401);
  assert.equal((await post(tokenOf(link()))).status, 429);
  assert.equal((await ask('/')).status, 429);
});
