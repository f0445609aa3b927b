import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer as createHttpServer } from 'node:http';
import { type AddressInfo, connect as connectSocket, createServer, type Socket } from 'node:net';
import { test } from 'node:test';
import { WebSocket } from 'ws';
import { InputError, ProtocolError, RunError } from '../../errors.ts';
import { linkSuite } from '../../testing/link-suite.ts';
import { startRelay } from '../../testing/relay.ts';
import { createSelfSigned } from '../../testing/self-signed.ts';
import { createVirtualClock } from '../../testing/virtual-clock.ts';
import type { Hello } from '../handshake.ts';
import type { Frame, Link } from '../link.ts';
import { type ConnectOptions, connect, type TlsOptions } from './websocket.ts';
import { type Accepted, type LinkServer, type ListenOptions, listen } from './websocket-server.ts';

const secret = '7K2M-Q0ZD-XW4R-9TBC';
const hello: Hello = { protocol: 1, purpose: 'worker', name: 'b', credential: secret };
const frame: Frame = { kind: 'ping', epoch: 0, round: -1, microBatch: 0 };

function authenticate({ credential, name }: Hello): Accepted | { kind: 'refused'; reason: string; retry: boolean } {
  return credential === secret
    ? { kind: 'accepted', name }
    : { kind: 'refused', reason: 'the join code is wrong: copy it from the first terminal again', retry: false };
}

/** A server with what it accepted and refused. */
async function serve(
  options: Partial<ListenOptions> = {},
): Promise<{ server: LinkServer; links: Link[]; refusals: string[]; refused(count: number): Promise<void> }> {
  const links: Link[] = [];
  const refusals: string[] = [];
  let check = (): void => {};
  const server = await listen({
    host: '127.0.0.1',
    port: 0,
    name: 'a',
    authenticate,
    onLink: (link) => links.push(link),
    onRefused: (_address, reason) => {
      refusals.push(reason);
      check();
    },
    ...options,
  });
  const refused = (count: number): Promise<void> =>
    new Promise((resolve) => {
      check = () => refusals.length >= count && resolve();
      check();
    });
  return { server, links, refusals, refused };
}

/** A good client gets in and gets an answer. */
async function checkServed(url: string, links: readonly Link[]): Promise<void> {
  const { link } = await connect(url, { hello });
  const accepted = links.at(-1) as Link;
  const received = new Promise<Frame>((resolve) => accepted.receive(resolve));
  await link.send(frame);
  assert.deepEqual(await received, frame);
  await link.close('served');
}

async function socketTo(port: number): Promise<Socket> {
  const socket = connectSocket(port, '127.0.0.1');
  socket.on('error', () => {});
  await once(socket, 'connect');
  return socket;
}

/** A bare WebSocket that was welcomed. */
async function rawCaller(url: string, options: { readonly autoPong?: boolean } = {}): Promise<WebSocket> {
  const socket = new WebSocket(url, options);
  socket.on('error', () => {});
  await once(socket, 'open');
  socket.send(JSON.stringify(hello));
  await once(socket, 'message');
  return socket;
}

function upgradeRequest(headers: Readonly<Record<string, string>> = {}): string {
  const all = {
    Host: 'localhost',
    Connection: 'Upgrade',
    Upgrade: 'websocket',
    'Sec-WebSocket-Version': '13',
    'Sec-WebSocket-Key': 'dGhlIHNhbXBsZSBub25jZQ==',
    ...headers,
  };
  return `GET / HTTP/1.1\r\n${Object.entries(all)
    .map(([key, value]) => `${key}: ${value}\r\n`)
    .join('')}\r\n`;
}

/** Everything that the server sends until it closes. */
async function readAll(socket: Socket): Promise<string> {
  const chunks: Buffer[] = [];
  socket.on('data', (chunk: Buffer) => chunks.push(chunk));
  if (!socket.closed) await once(socket, 'close');
  return Buffer.concat(chunks).toString('latin1');
}

linkSuite('WebSocket links, seen from the caller', async (options) => {
  const { server, links } = await serve({
    ...options,
    authenticate: () => ({ kind: 'accepted', name: 'a' }),
    name: 'b',
  });
  const relay = await startRelay({ port: server.port, seed: 1 });
  const { link: a } = await connect(`ws://127.0.0.1:${relay.port}`, { ...options, hello });
  const release = async (): Promise<void> => {
    await server.close('released');
    await a.ended;
    await relay.close();
  };
  return { a, b: links[0] as Link, corrupt: () => relay.damage('toServer', 'flip-middle'), release };
});

test('both ends learn names and facts; frames flow both ways', async () => {
  const hellos: Hello[] = [];
  const { server, links } = await serve({
    authenticate: (given, address) => {
      assert.equal(address, '127.0.0.1');
      return { kind: 'accepted', name: `${given.name}-2`, facts: { run: 7 } };
    },
    onLink: (link, given) => {
      links.push(link);
      hellos.push(given);
    },
  });
  const greeting: Hello = { ...hello, purpose: 'peer', name: 'Jetson NX', facts: { memoryMiB: 8192 } };
  const { link, welcome } = await connect(server.url, { hello: greeting });
  assert.deepEqual(welcome, { kind: 'welcome', name: 'Jetson NX-2', server: 'a', facts: { run: 7 } });
  assert.deepEqual(hellos, [greeting]);
  assert.equal(link.peer, 'a');
  assert.equal(links[0]?.peer, 'Jetson NX-2');
  await server.close('done');
  assert.deepEqual(await link.ended, { clean: true, reason: 'done' });
  await assert.rejects(connect(server.url, { hello }), /nothing listens at ws:/);
});

test('a wrong credential is the caller’s input error, and no message shows it', async () => {
  const { server, links, refusals } = await serve();
  const wrong = { ...hello, credential: 'very-secret-guess' };
  await assert.rejects(connect(server.url, { hello: wrong }), (error) => {
    assert.ok(error instanceof InputError);
    assert.equal(error.message, 'the join code is wrong: copy it from the first terminal again');
    return true;
  });
  assert.deepEqual(refusals, ['the join code is wrong: copy it from the first terminal again']);
  await checkServed(server.url, links);
  await server.close('done');
});

test('after ten wrong credentials an address has to wait', async () => {
  let nowMs = 0;
  const clock = { now: () => nowMs, after: () => () => {} };
  const { server, links } = await serve({ clock });
  const wrong = { ...hello, credential: 'guess' };
  for (let attempt = 0; attempt < 10; attempt++)
    await assert.rejects(connect(server.url, { hello: wrong }), InputError);
  for (const given of [wrong, hello]) {
    await assert.rejects(
      connect(server.url, { hello: given }),
      (error) =>
        error instanceof RunError &&
        /refuses this connection: too many wrong codes: try again in a minute$/.test(error.message),
    );
  }
  nowMs = 60_000;
  await checkServed(server.url, links);
  await server.close('done');
});

test('a refusal may ask to try again; a check that fails is no fault of the caller', async () => {
  const verdicts: ListenOptions['authenticate'][] = [
    () => ({ kind: 'refused', reason: 'the run is full', retry: true }),
    () => {
      throw new Error('disk on fire');
    },
    () => Promise.reject(new Error('disk on fire')),
  ];
  const { server, refusals } = await serve({
    authenticate: (...given) => (verdicts.shift() as ListenOptions['authenticate'])(...given),
  });
  await assert.rejects(
    connect(server.url, { hello }),
    (error) => error instanceof RunError && error.message === 'the run is full',
  );
  for (let run = 0; run < 2; run++) {
    await assert.rejects(
      connect(server.url, { hello }),
      (error) => error instanceof RunError && error.message === 'the server could not check the hello',
    );
  }
  assert.equal(refusals.filter((reason) => reason === 'checking a hello failed: Error: disk on fire').length, 2);
  await server.close('done');
});

test('facts that the server cannot use close the link with the reason', async () => {
  const { server } = await serve({
    onLink: () => {
      throw new ProtocolError('the worker did not say how much memory it has');
    },
  });
  const { link } = await connect(server.url, { hello });
  assert.deepEqual(await link.ended, { clean: true, reason: 'the worker did not say how much memory it has' });
  await server.close('done');
});

test('frames sent right after the welcome are not lost', async () => {
  const { server } = await serve({ onLink: (link) => void link.send(frame) });
  const { link } = await connect(server.url, { hello });
  assert.deepEqual(await new Promise<Frame>((resolve) => link.receive(resolve)), frame);
  await server.close('done');
});

test('addresses that cannot be listened on differ from those that cannot be reached', async () => {
  const { server } = await serve();
  const options: ListenOptions = { host: '127.0.0.1', port: server.port, name: 'a', authenticate, onLink: () => {} };
  const isInput = (message: RegExp) => (error: unknown) => error instanceof InputError && message.test(error.message);
  const isRun = (message: RegExp) => (error: unknown) => error instanceof RunError && message.test(error.message);
  await assert.rejects(listen(options), isInput(/^port \d+ of 127\.0\.0\.1 is taken: choose another with --port$/));
  await assert.rejects(
    listen({ ...options, host: '192.0.2.1' }),
    isInput(/^192\.0\.2\.1 is not an address of this machine/),
  );
  await server.close('done');
  await assert.rejects(
    connect(server.url, { hello }),
    isRun(/^nothing listens at ws:\/\/127\.0\.0\.1:\d+: start it there first/),
  );
  for (const url of ['', '127.0.0.1:7700', 'http://127.0.0.1:7700', 'ws://', 'ws://a#b'])
    await assert.rejects(
      connect(url, { hello }),
      isInput(/is not an address to connect to: write it as ws:\/\/HOST:PORT$/),
      url,
    );
});

test('other programs, silence and an abort end the attempt', async () => {
  const http = createHttpServer((_request, response) => response.end('hello'));
  const silent = createServer((socket) => socket.on('error', () => {}).resume());
  const rude = createServer((socket) =>
    socket
      .on('error', () => {})
      .resume()
      .end('SSH-2.0-x\r\n'),
  );
  for (const server of [http, silent, rude]) {
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
  }
  const at = (server: { address(): unknown }): string => `ws://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const attempt = (server: { address(): unknown }, message: RegExp, options: Partial<ConnectOptions> = {}) =>
    assert.rejects(
      connect(at(server), { hello, ...options }),
      (error) => error instanceof RunError && message.test(error.message),
    );
  await attempt(http, /answers with HTTP status 200: another program seems to listen there$/);
  await attempt(rude, /cannot be reached \(HPE_INVALID_CONSTANT\)/);
  await attempt(silent, /did not answer within 0\.02 s$/, { timeoutMs: 20 });
  const controller = new AbortController();
  const aborted = attempt(silent, /^connecting to .* was cancelled$/, { abortSignal: controller.signal });
  controller.abort();
  await aborted;
  await attempt(silent, /was cancelled$/, { abortSignal: AbortSignal.abort() });
  http.closeAllConnections();
  for (const server of [http, silent, rude]) {
    server.close();
    await once(server, 'close');
  }
});

test('wrong hosts, browsers and plain requests are refused before the upgrade', async () => {
  const { server, links, refusals } = await serve({ allowedHosts: ['Desk.local'] });
  const answer = async (text: string): Promise<string> => {
    const socket = await socketTo(server.port);
    socket.write(text);
    return (await readAll(socket)).split('\r\n')[0] ?? '';
  };
  assert.equal(await answer(upgradeRequest({ Host: 'evil.example' })), 'HTTP/1.1 403 Forbidden');
  assert.equal(await answer(upgradeRequest({ Origin: 'http://localhost' })), 'HTTP/1.1 403 Forbidden');
  assert.equal(await answer('GET / HTTP/1.1\r\nHost: localhost\r\n\r\n'), 'HTTP/1.1 426 Upgrade Required');
  assert.equal(await answer(upgradeRequest({ 'Sec-WebSocket-Version': '7' })), 'HTTP/1.1 400 Bad Request');
  assert.deepEqual(refusals, [
    'this server does not go by that host name: use its address',
    'browsers cannot connect to this server',
  ]);
  await checkServed(server.url.replace('127.0.0.1', 'localhost'), links);
  const named = new WebSocket(server.url, { headers: { host: 'desk.local:1' } });
  await once(named, 'open');
  named.terminate();
  await server.close('done');
});

test('garbage, cut and oversized hellos, and second messages cost the caller its connection only', async () => {
  const { server, links } = await serve({
    authenticationMs: 2_000,
    authenticate: (given) => (given.name === 'slow' ? new Promise(() => {}) : authenticate(given)),
  });
  const raw = async (send: (socket: Socket) => void): Promise<void> => {
    const socket = await socketTo(server.port);
    send(socket);
    await readAll(socket);
  };
  await raw((socket) => socket.write(Buffer.from('16030100'.repeat(50), 'hex')));
  await raw((socket) => socket.write(`GET / HTTP/1.1\r\nHost: localhost\r\nX: ${'x'.repeat(20_000)}\r\n`));
  // A message of 2^32 − 1 bytes, of which only some come.
  await raw((socket) =>
    socket.write(
      Buffer.concat([
        Buffer.from(upgradeRequest()),
        Buffer.from('82ff00000000ffffffff00000000', 'hex'),
        Buffer.alloc(10_000),
      ]),
    ),
  );
  // One of 1 MiB, which frames may have, but no hello.
  await raw((socket) =>
    socket.write(
      Buffer.concat([
        Buffer.from(upgradeRequest()),
        Buffer.from('82ff000000000010000000000000', 'hex'),
        Buffer.alloc(10_000),
      ]),
    ),
  );

  const closeCode = async (...messages: (string | Buffer)[]): Promise<number> => {
    const socket = new WebSocket(server.url);
    socket.on('error', () => {});
    await once(socket, 'open');
    for (const message of messages) socket.send(message);
    const [code] = (await once(socket, 'close')) as [number];
    return code;
  };
  assert.equal(await closeCode('x'.repeat(4097)), 4401);
  assert.equal(await closeCode('x'.repeat(5000)), 1006);
  assert.equal(await closeCode('{'), 4401);
  assert.equal(await closeCode(Buffer.from([0xff, 0xfe])), 4401);
  assert.equal(await closeCode(JSON.stringify({ ...hello, protocol: 2 })), 4401);
  assert.equal(await closeCode(JSON.stringify({ ...hello, extra: 1 })), 4401);
  assert.equal(await closeCode(JSON.stringify({ ...hello, name: 'a\nb' })), 4401);
  assert.equal(await closeCode(`{"facts":${'['.repeat(2000)}`), 4401);
  assert.equal(await closeCode(JSON.stringify({ ...hello, name: 'slow' }), 'second'), 1006);
  assert.equal(links.length, 0);
  await checkServed(server.url, links);
  await server.close('done');
});

test('slow callers lose their place in time', async () => {
  const { server, links, refusals, refused } = await serve({ authenticationMs: 400 });
  const texts = ['', 'G', upgradeRequest(), `${upgradeRequest()}\x82`];
  const sockets = await Promise.all(texts.map(() => socketTo(server.port)));
  for (const [index, text] of texts.entries()) if (text !== '') sockets[index]?.write(text, 'latin1');
  await Promise.all(sockets.map(readAll));
  await refused(4);
  assert.deepEqual(new Set(refusals), new Set(['no valid hello within 0.4 s']));
  await checkServed(server.url, links);
  await server.close('done');
});

test('200 idle connections do not keep a good caller out', async () => {
  const { server, links } = await serve({ unauthenticatedCount: 16 });
  const sockets = await Promise.all(Array.from({ length: 200 }, () => socketTo(server.port)));
  const closed = sockets.map((socket) => readAll(socket));
  await Promise.all(closed.slice(0, 100));
  await checkServed(server.url, links);
  await server.close('done');
  await Promise.all(closed);
});

test('when its links are closed a server has no place for devices, and guests stay', async () => {
  const { server, links } = await serve({
    guests: {
      request: (_request, response) => void response.end('still here'),
      upgrade: (_request, stream) => void stream.destroy(),
    },
  });
  await checkServed(server.url, links);
  const { link } = await connect(server.url, { hello });
  await server.closeLinks('the run is over');
  assert.deepEqual(await link.ended, { clean: true, reason: 'the run is over' });
  await assert.rejects(connect(server.url, { hello }), (error: Error) => {
    assert.ok(error instanceof RunError);
    return /the run is over/.test(error.message);
  });
  const page = server.url.replace('ws:', 'http:');
  assert.equal(await (await fetch(page)).text(), 'still here');
  await server.close('done');
  await assert.rejects(fetch(page));
});

test('after a valid hello, a text, an oversized or a malformed message ends that link alone', async () => {
  const { server, links } = await serve();
  const cases: readonly (readonly [RegExp, (socket: WebSocket) => void])[] = [
    [/^a message of 0 bytes is shorter than its header$/, (socket) => socket.send('hello again')],
    [/^a message does not begin with the header/, (socket) => socket.send(Buffer.alloc(100))],
    [/Max payload size exceeded/, (socket) => socket.send(Buffer.alloc(2 ** 20 + 1))],
    [/^the connection was lost$/, (socket) => socket.terminate()],
    [/^no status|^the connection was lost/, (socket) => socket.close()],
  ];
  for (const [reason, misbehave] of cases) {
    misbehave(await rawCaller(server.url));
    const end = await (links.at(-1) as Link).ended;
    assert.equal(end.clean, false);
    assert.match(end.reason, reason);
  }
  await checkServed(server.url, links);
  await server.close('done');
});

test('a peer that gives no sign of life is given up; one that only answers pings is not', async () => {
  const { server, links } = await serve({ heartbeat: { intervalMs: 10, deadAfterMs: 200 } });
  await rawCaller(server.url, { autoPong: false });
  const alive = await rawCaller(server.url);
  let pingCount = 0;
  alive.on('ping', () => pingCount++);
  const [first, second] = links as [Link, Link];
  const end = await first.ended;
  assert.equal(end.clean, false);
  assert.match(end.reason, /^no sign of life from b for 0\.\d s$/);
  assert.ok(pingCount >= 3);
  alive.close(1000, 'goodbye');
  assert.deepEqual(await second.ended, { clean: true, reason: 'goodbye' });
  await server.close('done');
});

test('a frozen process gives its peers the time to be heard again', async () => {
  // The clock jumps as after SIGSTOP and SIGCONT: the timer that was due is late, and what the peer sent is still
  // unread.
  let nowMs = 0;
  let timers: { atMs: number; callback: () => void }[] = [];
  const clock = {
    now: () => nowMs,
    after: (delayMs: number, callback: () => void) => {
      const timer = { atMs: nowMs + delayMs, callback };
      timers.push(timer);
      return () => {
        timers = timers.filter((other) => other !== timer);
      };
    },
  };
  const advance = (milliseconds: number): void => {
    nowMs += milliseconds;
    for (const timer of timers.filter(({ atMs }) => atMs <= nowMs)) {
      timers = timers.filter((other) => other !== timer);
      timer.callback();
    }
  };
  const { server, links } = await serve({ clock });
  const { link } = await connect(server.url, { hello });
  advance(60_000);
  const received = new Promise<Frame>((resolve) => (links[0] as Link).receive(resolve));
  await link.send(frame);
  assert.deepEqual(await received, frame);
  // Silence while this process runs is another matter: ticks on time, nothing heard in between.
  for (let tick = 0; tick < 6; tick++) advance(2_000);
  assert.match((await (links[0] as Link).ended).reason, /^no sign of life from b for 1[02]\.0 s$/);
  await server.close('done');
});

test('a peer of which silence is expected is given up after 30 s; when it is free, after 10 s again', async () => {
  const clock = createVirtualClock();
  const { server, links } = await serve({ clock });
  const callers = [await rawCaller(server.url, { autoPong: false }), await rawCaller(server.url, { autoPong: false })];
  const [busy, freed] = links as [Link, Link];
  let endedCount = 0;
  for (const link of links) void link.ended.then(() => endedCount++);
  for (const link of links) link.expectSilence?.(true);
  await clock.runUntil(new Promise<void>((resolve) => clock.after(28_000, resolve)));
  assert.equal(endedCount, 0);
  freed.expectSilence?.(false);
  assert.match((await clock.runUntil(busy.ended)).reason, /^no sign of life from b for 30\.0 s$/);
  assert.match((await clock.runUntil(freed.ended)).reason, /^no sign of life from b for 10\.0 s$/);
  for (const caller of callers) caller.terminate();
  await server.close('done');
});

test('over TLS 1.3 frames arrive; who is not trusted, speaks plainly or has no certificate is refused', async () => {
  const [own, other] = [createSelfSigned(), createSelfSigned()];
  const { server, links } = await serve({ tls: own });
  assert.match(server.url, /^wss:\/\/127\.0\.0\.1:\d+$/);
  const { link } = await connect(server.url, { hello, tls: { ca: own.cert } });
  const value = {
    type: 'float32',
    shape: [2 ** 20],
    data: new Float32Array(2 ** 20).map((_, index) => index),
  } as const;
  for (const [from, to] of [
    [link, links[0] as Link],
    [links[0] as Link, link],
  ] as const) {
    const received = new Promise<Frame>((resolve) => to.receive(resolve));
    await from.send({ ...frame, tensors: [value] });
    assert.deepEqual(await received, { ...frame, tensors: [value] });
  }
  const refused = (url: string, tls: TlsOptions, message: RegExp) =>
    assert.rejects(connect(url, { hello, tls }), (error) => error instanceof RunError && message.test(error.message));
  await refused(server.url, {}, /^the certificate of wss:.* is not trusted \(DEPTH_ZERO_SELF_SIGNED_CERT\)$/);
  await refused(server.url, { ca: other.cert }, /is not trusted/);
  await refused(server.url.replace('wss:', 'ws:'), {}, /cannot be reached/);
  await server.close('done');

  const mutual = await serve({ tls: { ...own, ca: other.cert } });
  const { link: known } = await connect(mutual.server.url, { hello, tls: { ...other, ca: own.cert } });
  await known.close('done');
  await refused(
    mutual.server.url,
    { ca: own.cert },
    /does not accept the certificate of this device \(.*CERTIFICATE_REQUIRED\)$/,
  );
  await refused(
    mutual.server.url,
    { ...own, ca: own.cert },
    /does not accept the certificate of this device|cannot be reached \(ECONNRESET\)/,
  );
  assert.equal(mutual.links.length, 1);
  await mutual.server.close('done');
});
