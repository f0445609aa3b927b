// A tab at a coordinator's server, without a browser: how it meets other workers, and what a hostile one gets.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { request as httpRequest, type IncomingMessage } from 'node:http';
import { request as httpsRequest } from 'node:https';
import { after, before, test } from 'node:test';
import { WebSocket } from 'ws';
import { defined } from '../assert.ts';
import { systemClock } from '../clock.ts';
import { wrap } from '../graph/tensor.ts';
import { createRandom } from '../random.ts';
import type { PeerNetwork } from '../runtime/worker/peers.ts';
import { type Cleanup, type Member, peerToken, relayedCluster } from '../testing/relayed-cluster.ts';
import { type Hello, protocolVersion } from '../transport/handshake.ts';
import type { Frame, Link } from '../transport/link.ts';
import { RunWindow } from '../window/server/run-window.ts';
import { type BrowserSocket, dial, type OpenSocket, socketLink } from './browser-socket.ts';
import { createPageNetwork } from './page-network.ts';

const keepAlive = setInterval(() => {}, 1000);
after(() => clearInterval(keepAlive));
const facts = { memoryMiB: 1024, cores: 2, engine: 'none', machine: 'page 1' };

/** A coordinator's server with its window, over TLS or not, and what joins it. */
async function cluster(cleanup: Cleanup, isEncrypted: boolean) {
  let link: () => string = () => '';
  const window = new RunWindow({
    ...{ model: 'net', clock: systemClock, record: () => {} },
    onOpen: (opened) => {
      link = opened.link;
    },
  });
  const pages: PeerNetwork[] = [];
  cleanup.after(async () => {
    await Promise.all(pages.map((network) => network.close()));
    await window.close();
  });
  const at = await relayedCluster(cleanup, { isEncrypted, guests: window.guests({ isEncrypted }) });
  const { server, door, members } = at;
  const origin = server.url.replace(/^ws/, 'http');
  window.begin({ url: origin, isFar: false, joinCode: door.joinCode });
  const open: OpenSocket = (target) =>
    new WebSocket(target, { origin, rejectUnauthorized: false }) as unknown as BrowserSocket;
  const url = `${server.url}/device`;
  const hello = (more: Partial<Hello> = {}): Hello => ({
    ...{ protocol: protocolVersion, purpose: 'worker', name: 'tab', credential: door.joinCode, facts },
    ...more,
  });
  /** A tab that has joined. */
  const page = async (
    wanted: string,
  ): Promise<Member & { readonly coordinator: Link; readonly relaySecret: string }> => {
    const dialled = await dial(open, url, hello({ name: wanted }));
    const { name } = dialled.welcome;
    const relaySecret = String(dialled.welcome.facts?.['relaySecret']);
    const links: Link[] = [];
    const onLink = (other: Link): void => void links.push(other);
    const network = createPageNetwork({ name, url, open, token: peerToken, relaySecret, clock: systemClock, onLink });
    members.set(name, { network, links });
    pages.push(network);
    return { network, links, coordinator: socketLink(dialled, isEncrypted), relaySecret };
  };
  return { ...at, window, origin, open, url, hello, page, link: (): string => link() };
}

type Cluster = Awaited<ReturnType<typeof cluster>>;

const frame = (bytes: number): Frame => ({
  ...{ kind: 'activation', epoch: 1, round: 2, microBatch: 3 },
  tensors: [
    wrap(
      'uint8',
      [bytes],
      Uint8Array.from({ length: bytes }, (_, index) => index % 251),
    ),
  ],
});

async function until(look: () => boolean): Promise<void> {
  while (!look()) await new Promise((resolve) => setImmediate(resolve));
}

/** Sends a frame over a link and holds it against what comes out at the other end. */
async function passes(link: Link, other: Link): Promise<void> {
  const sent = frame(1_500_000);
  const [got] = await Promise.all([new Promise<Frame>((resolve) => other.receive(resolve)), link.send(sent)]);
  assert.deepEqual(got.tensors, sent.tensors);
}

for (const isEncrypted of [true, false])
  test(`${isEncrypted ? 'over TLS' : 'plain'}: tabs and a worker are met over the relay, whoever calls`, async (t) => {
    const at = await cluster(t, isEncrypted);
    const [first, second, worker] = [await at.page('first'), await at.page('second'), await at.enter('worker', true)];
    const met = async (caller: Member, callee: Member, name: string): Promise<Link> => {
      const link = await caller.network.connect({ name, url: callee.network.url });
      await until(() => callee.links.length > 0);
      await passes(link, defined(callee.links.pop(), 'the link at the other end'));
      return link;
    };
    await met(first, worker, 'worker');
    await met(worker, second, 'second');
    const link = await met(first, second, 'second');
    await link.close('done');
  });

/** What an upgrade is answered with: a status, or 101 for a socket that is open. */
function upgrade(at: Cluster, headers: Readonly<Record<string, string>>): Promise<number> {
  const socket = new WebSocket(at.url, { headers });
  return new Promise((resolve, reject) => {
    socket.once('open', () => {
      socket.terminate();
      resolve(101);
    });
    socket.once('unexpected-response', (_request, response) => {
      response.resume();
      resolve(response.statusCode ?? 0);
    });
    socket.on('error', reject);
  });
}

let plain: Cluster;
const closing: (() => Promise<void>)[] = [];
before(async () => {
  plain = await cluster({ after: (close) => void closing.push(close) }, false);
});
after(async () => {
  for (const close of closing) await close();
});

test('pages of other servers, and names of DNS that lead here, are refused', async () => {
  const { origin, server } = plain;
  assert.equal(await upgrade(plain, { origin }), 101);
  for (const foreign of ['http://evil.example', `https://127.0.0.1:${server.port}`, 'http://127.0.0.1:1', 'null'])
    assert.deepEqual([foreign, await upgrade(plain, { origin: foreign })], [foreign, 403]);
  const host = `evil.example:${server.port}`;
  assert.equal(await upgrade(plain, { origin: `http://${host}`, host }), 403);
  assert.equal(await upgrade(plain, { origin, 'sec-fetch-site': 'cross-site' }), 403);
});

test('neither a link of the window, nor its session, nor a secret of others makes a device', async () => {
  const token = plain.link().split('#')[1] ?? '';
  const answer = await fetch(`${plain.origin}/session`, {
    ...{ method: 'POST', body: token, headers: { origin: plain.origin } },
  });
  const session = /=([\w-]+);/.exec(answer.headers.get('set-cookie') ?? '')?.[1] ?? '';
  const count = plain.joined.length;
  for (const credential of [token, session, peerToken, '', 'x'.repeat(1000)])
    await assert.rejects(dial(plain.open, plain.url, plain.hello({ credential })), /the join code is wrong/);
  await assert.rejects(dial(plain.open, plain.url, plain.hello({ purpose: 'enrol' })), /only workers join here/);
  await assert.rejects(dial(plain.open, plain.url, plain.hello({ facts: {} })), /did not describe itself/);
  assert.equal(plain.joined.length, count);
});

test("a tab gets no way under another's name, nor by a ticket that was used", async (t) => {
  const at = await cluster(t, false);
  const [victim, thief] = [await at.page('victim'), await at.page('thief')];
  const relay = (name: string, credential: string, wish: Readonly<Record<string, string>>): Promise<unknown> =>
    dial(at.open, at.url, at.hello({ purpose: 'relay', name, credential, facts: wish }));
  const refused = /only this run's workers are relayed/;
  await assert.rejects(relay('victim', thief.relaySecret, { to: 'thief' }), refused);
  await assert.rejects(relay('victim', peerToken, { to: 'thief' }), refused);
  await assert.rejects(relay('nobody', '', { to: 'thief' }), refused);
  await assert.rejects(relay('thief', thief.relaySecret, { to: 'victim', ticket: 'x'.repeat(20) }), refused);
  let ticket = '';
  const { called } = victim.network;
  Object.assign(victim.network, {
    called(peer: { name: string; url: string }, given: string): void {
      ticket = given;
      called?.call(victim.network, peer, given);
    },
  });
  const link = await thief.network.connect({ name: 'victim', url: victim.network.url });
  for (const [name, secret] of [
    ['thief', thief.relaySecret],
    ['victim', victim.relaySecret],
  ] as const) {
    const { socket } = (await relay(name, secret, { ticket })) as Awaited<ReturnType<typeof dial>>;
    await new Promise<void>((resolve) => socket.listen({ message: () => {}, closed: () => resolve() }));
  }
  await passes(link, defined(victim.links[0], 'the link'));
});

test('before it has shown the code, a tab may send 4 KiB; after it, no message of a gibibyte', async () => {
  const { origin } = plain;
  const stranger = new WebSocket(plain.url, { origin });
  await once(stranger, 'open');
  stranger.on('error', () => {});
  stranger.send(Buffer.alloc(100_000));
  await once(stranger, 'close');
  const before = process.memoryUsage().rss;
  const { coordinator, ...tab } = await plain.page('huge');
  const [server] = plain.joined.slice(-1);
  const raw = new WebSocket(plain.url, { origin });
  raw.on('error', () => {});
  await once(raw, 'open');
  raw.send(JSON.stringify(plain.hello({ name: 'gibibyte' })));
  await once(raw, 'message');
  const link = defined(plain.joined.at(-1), 'its link at the coordinator');
  // A header that announces a gibibyte, and the first of it.
  const header = Buffer.from([0x82, 0xff, 0, 0, 0, 0, 0x40, 0, 0, 0, 1, 2, 3, 4]);
  const { _socket: socket } = raw as unknown as { readonly _socket: { write(bytes: Buffer): void } };
  socket.write(header);
  socket.write(Buffer.alloc(1 << 20));
  assert.match((await link.ended).reason, /Max payload size exceeded|connection was lost/);
  assert.ok(process.memoryUsage().rss - before < 200 * 2 ** 20);
  await passes(coordinator, defined(server, 'the link of the other tab'));
  await tab.network.close();
});

test('frames of a tab that are wrong end its link with a sentence, and nobody else hears of it', async () => {
  const good = await plain.page('good');
  const goodLink = defined(plain.joined.at(-1), 'the link of the good tab');
  const random = createRandom(48);
  for (let trial = 0; trial < 40; trial++) {
    const { socket } = await dial(plain.open, plain.url, plain.hello({ name: `bad-${trial}` }));
    const link = defined(plain.joined.at(-1), 'the link of the bad tab');
    const heard: Frame[] = [];
    link.receive((got) => heard.push(got));
    const bytes = Uint8Array.from({ length: 1 + random.integer(2000) }, () => random.integer(256));
    if (trial % 4 === 0) socket.raw.send('a text');
    else socket.send(bytes);
    const { clean, reason } = await link.ended;
    assert.equal(clean, false);
    assert.match(reason, /^(a message|message \d|the checksum)/);
    assert.deepEqual(heard, []);
  }
  await passes(good.coordinator, goodLink);
});

test('what a tab sends to a peer over the relay ends that link alone where it is wrong', async (t) => {
  const at = await cluster(t, false);
  const [first, worker] = [await at.page('first'), await at.enter('worker', true)];
  const good = await first.network.connect({ name: 'worker', url: worker.network.url });
  await until(() => worker.links.length > 0);
  const bad = await at.page('bad');
  const wish = { purpose: 'relay', name: 'bad', credential: bad.relaySecret, facts: { to: 'worker' } } as const;
  for (const bytes of [
    Uint8Array.of(1, 0x40, 0, 0, 0),
    new Uint8Array(300).fill(1),
    Buffer.from('GET / HTTP/1.1\r\n'),
  ]) {
    const { socket } = await dial(at.open, at.url, at.hello(wish));
    const closed = new Promise<void>((resolve) => socket.listen({ message: () => {}, closed: () => resolve() }));
    socket.send(bytes);
    await closed;
  }
  assert.equal(worker.links.length, 1, 'no link came of it');
  await passes(good, defined(worker.links[0], 'the link at the worker'));
});

/** A page's file, over TLS or not. */
function fetchFile(at: Cluster, path: string): Promise<IncomingMessage> {
  const ask = at.origin.startsWith('https') ? httpsRequest : httpRequest;
  return new Promise((resolve, reject) => {
    ask(at.origin + path, { rejectUnauthorized: false, agent: false }, (response) => {
      response.resume();
      resolve(response);
    })
      .on('error', reject)
      .end();
  });
}

test('only the thread that computes may compile, and the page for devices may start no other', async () => {
  const policyOf = async (path: string): Promise<string> =>
    String((await fetchFile(plain, path)).headers['content-security-policy']);
  assert.doesNotMatch(await policyOf('/'), /worker-src|unsafe/);
  assert.match(await policyOf('/join'), /script-src 'self';.*worker-src 'self';/);
  assert.doesNotMatch(await policyOf('/join'), /unsafe/);
  assert.doesNotMatch(await policyOf('/compute.js'), /unsafe/);
  assert.match(await policyOf('/engine.js'), /default-src 'none'; script-src 'self' 'wasm-unsafe-eval';/);
});

test('the engine is compressed, and loaded once', async () => {
  const url = `${plain.origin}/ort.wasm`;
  const first = await fetch(url);
  assert.deepEqual([first.status, first.headers.get('content-encoding')], [200, 'gzip']);
  assert.equal(first.headers.get('content-type'), 'application/wasm');
  assert.ok(Number(first.headers.get('content-length')) < 5 * 2 ** 20, 'less than 5 MiB travel');
  assert.equal((await first.arrayBuffer()).byteLength > 10 * 2 ** 20, true);
  const again = await fetch(url, { headers: { 'if-none-match': String(first.headers.get('etag')) } });
  assert.equal(again.status, 304);
});
