// What moving tensors costs the processor: core-milliseconds (all threads, user and system) per MB at each end, of bare
// TCP and TLS sockets (the floor), of our links with the hand-over to the compute thread, and of a ring AllReduce. One
// process an end; started by bench/transport.ts --section cpu.

import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import net from 'node:net';
import tls from 'node:tls';
import { fileURLToPath } from 'node:url';
import { defined } from '../../dist/assert.js';
import type { Link } from '../../dist/transport/link.js';
import type { Identity } from '../../dist/transport/node/tls/identity.js';
import { loadFrom } from '../common/build.ts';
import { at, cpuMs, sum } from '../common/numbers.ts';
import { tableHead } from '../common/table.ts';

type WebSockets = Pick<typeof import('../../dist/transport/node/websocket.js'), 'connect'> &
  Pick<typeof import('../../dist/transport/node/websocket-server.js'), 'listen'>;

const mb = 1e6;
const sizes = [
  ['64 KiB', 65_536],
  ['1 MiB', 2 ** 20],
  ['4 MiB', 2 ** 22],
] as const;
const carriers = ['tcp', 'tls', 'link', 'link-tls'] as const;
type Carrier = (typeof carriers)[number];
const names: Readonly<Record<Carrier, string>> = {
  tcp: 'bare TCP',
  tls: 'bare TLS',
  link: 'our link, plain',
  'link-tls': 'our link, TLS',
};

/** What an end is started with. */
interface PairSettings {
  readonly role: 'serve' | 'call';
  readonly dist: string;
  readonly carrier: Carrier;
  readonly identity: Identity;
  readonly address?: string | number;
}

interface RingSettings {
  readonly role: 'ring';
  readonly dist: string;
  readonly carrier: Carrier;
  readonly identities: readonly Identity[];
  readonly index: number;
  readonly memberCount: number;
  readonly elementCount: number;
}

/** What an end says of itself; each message has one of the fields. */
interface Answer {
  /** Where it can be called: a port or a URL. */
  readonly ready?: string | number;
  /** Its processor time so far, in milliseconds. */
  readonly cpu?: number;
  readonly received?: boolean;
  readonly linked?: boolean;
  readonly summed?: boolean;
}

/** What an end is asked for; each message has one of the first fields. */
interface Request {
  readonly cpu?: boolean;
  readonly expect?: number;
  readonly load?: number;
  readonly byteCount?: number;
  readonly sums?: number;
  readonly urls?: readonly string[];
}

interface End {
  readonly child: ChildProcess;
  readonly address: string | number;
}

/** Waits for the next message of a child that has this key. */
function next<Key extends keyof Answer>(child: ChildProcess, key: Key): Promise<NonNullable<Answer[Key]>> {
  return new Promise((done, fail) => {
    const onMessage = (message: Answer) => {
      const value = message[key];
      if (value === undefined || value === null) return;
      child.off('message', onMessage);
      child.off('exit', onExit);
      done(value);
    };
    const onExit = (code: number | null) => fail(new Error(`an end exited with ${code} before it said "${key}"`));
    child.on('message', onMessage);
    child.on('exit', onExit);
  });
}

/** In the environment of a worker, whose allocator keeps pages. */
async function startEnd(settings: PairSettings | RingSettings): Promise<End> {
  const { allocatorEnvironment } = await loadFrom(settings.dist)('engine/node/host-node.js');
  const child = fork(fileURLToPath(import.meta.url), [], {
    serialization: 'advanced',
    env: { ...process.env, ...allocatorEnvironment() },
  });
  child.send(settings);
  const address = await next(child, 'ready');
  return { child, address };
}

async function ask<Key extends keyof Answer>(end: End, request: Request, key: Key): Promise<NonNullable<Answer[Key]>> {
  const answer = next(end.child, key);
  end.child.send(request);
  return answer;
}

/**
 * One row: `totalMb` one way and then both ways, after a tenth of it as warm-up. Returns core-ms a MB: sender,
 * receiver, and an end both ways.
 */
async function measurePair(ends: readonly [End, End], byteCount: number, totalMb: number) {
  const count = Math.ceil((totalMb * mb) / byteCount);
  const movedMb = (count * byteCount) / mb;
  const go = async (senders: readonly number[], frames: number): Promise<[number, number]> => {
    const before = await Promise.all(ends.map((end) => ask(end, { cpu: true }, 'cpu')));
    const received = ends.map((end, index) => (senders.includes(1 - index) ? next(end.child, 'received') : undefined));
    for (const [index, end] of ends.entries())
      end.child.send({ expect: senders.includes(1 - index) ? frames : 0, byteCount });
    for (const index of senders) at(ends, index).child.send({ load: frames, byteCount });
    await Promise.all(received);
    const after = await Promise.all(ends.map((end) => ask(end, { cpu: true }, 'cpu')));
    return [at(after, 0) - at(before, 0), at(after, 1) - at(before, 1)];
  };
  await go([0, 1], Math.ceil(count / 4));
  const [sender, receiver] = await go([0], count);
  const both = await go([0, 1], count);
  return { sender: sender / movedMb, receiver: receiver / movedMb, both: (both[0] + both[1]) / 4 / movedMb };
}

async function measureRing(settings: Omit<RingSettings, 'role' | 'index'>, roundCount: number) {
  const { memberCount } = settings;
  const ends: End[] = [];
  for (let index = 0; index < memberCount; index++) ends.push(await startEnd({ ...settings, role: 'ring', index }));
  const urls = ends.map(({ address }) => String(address));
  await Promise.all(ends.map((end) => ask(end, { urls }, 'linked')));
  await Promise.all(ends.map((end) => ask(end, { sums: 15 }, 'summed')));
  const before = await Promise.all(ends.map((end) => ask(end, { cpu: true }, 'cpu')));
  await Promise.all(ends.map((end) => ask(end, { sums: roundCount }, 'summed')));
  const after = await Promise.all(ends.map((end) => ask(end, { cpu: true }, 'cpu')));
  for (const { child } of ends) child.disconnect();
  const totalMs = sum(after) - sum(before);
  // Each member sends, and receives, 2(n−1)/n of the vector (Asteroid, eq. 5).
  const movedMb = (((2 * (memberCount - 1)) / memberCount) * settings.elementCount * 4 * roundCount * 2) / mb;
  return { perMb: totalMs / memberCount / movedMb, perRoundMs: totalMs / memberCount / roundCount };
}

/** Prints the tables. `dist`: the built code; `only`: carriers or 'ring', separated by commas. */
export async function cpu(
  dist: string,
  { only, totalMb = 300 }: { readonly only?: string | undefined; readonly totalMb?: number } = {},
): Promise<void> {
  const { createAuthorityMaterial, createIdentity, openAuthority } = await import(
    `${dist}/transport/node/tls/authority.js`
  );
  const authority = await openAuthority(await createAuthorityMaterial(Date.now()), Date.now);
  const identities: Identity[] = [];
  for (let index = 0; index < 5; index++)
    identities.push(await createIdentity(authority, { role: 'worker', name: `end-${index}` }));
  const wanted: readonly string[] = only?.split(',') ?? [...carriers, 'ring'];
  console.log(
    '| carrier | tensors of | sender | receiver | both ways at once, an end |\n| --- | --- | --- | --- | --- |',
  );
  for (const carrier of carriers.filter((name) => wanted.includes(name))) {
    const server = await startEnd({ role: 'serve', dist, carrier, identity: at(identities, 0) });
    const caller = await startEnd({
      role: 'call',
      dist,
      carrier,
      identity: at(identities, 1),
      address: server.address,
    });
    for (const [name, byteCount] of sizes) {
      const { sender, receiver, both } = await measurePair([caller, server], byteCount, totalMb);
      console.log(
        `| ${names[carrier]} | ${name} | ${sender.toFixed(2)} | ${receiver.toFixed(2)} | ${both.toFixed(2)} |`,
      );
    }
    for (const { child } of [server, caller]) child.disconnect();
  }
  if (!wanted.includes('ring')) return;
  console.log(`\n${tableHead(['AllReduce of 9 MB', 'core-ms a MB sent or received', 'core-ms a member and sum'])}`);
  for (const carrier of ['link', 'link-tls'] as const)
    for (const memberCount of [2, 5]) {
      const { perMb, perRoundMs } = await measureRing(
        { dist, carrier, identities, memberCount, elementCount: 2_250_000 },
        30,
      );
      console.log(
        `| ${memberCount} members, ${carrier === 'link' ? 'plain' : 'TLS'} ` +
          `| ${perMb.toFixed(2)} | ${perRoundMs.toFixed(1)} |`,
      );
    }
}

// ---- An end ----

/** Sends to the process that started this one. */
function answer(message: Answer): void {
  process.send?.(message);
}

/** Counts what comes and says so when all of it is there. */
interface Sink {
  /** Says how many bytes are to come. */
  expect(byteCount: number): void;
  take(byteCount: number): void;
}

function createSink(): Sink {
  let [left, got] = [0, 0];
  const check = () => {
    if (left > 0 && got >= left) {
      got -= left;
      left = 0;
      answer({ received: true });
    }
  };
  return {
    expect: (byteCount) => {
      left = byteCount;
      check();
    },
    take: (byteCount) => {
      got += byteCount;
      check();
    },
  };
}

type Send = (count: number, byteCount: number) => Promise<void>;

function bareSender(socket: net.Socket): Send {
  return async (count, byteCount) => {
    const data = Buffer.alloc(byteCount, 1);
    for (let index = 0; index < count; index++) {
      if (!socket.write(data)) await once(socket, 'drain');
    }
  };
}

function linkSender(link: Link): Send {
  return async (count, byteCount) => {
    const tensors = [{ type: 'uint8' as const, shape: [byteCount], data: new Uint8Array(byteCount).fill(1) }];
    let left = count;
    await Promise.all(
      [1, 2, 3, 4].map(async () => {
        while (left-- > 0) await link.send({ kind: 'load', epoch: 1, round: 0, microBatch: 0, tensors });
      }),
    );
  };
}

const hello = (name: string) => ({ protocol: 1, purpose: 'peer', name, credential: '' }) as const;
const tlsOf = ({ key, certificate, authority }: Identity) => ({ key, cert: certificate, ca: authority });

async function webSockets(dist: string): Promise<WebSockets> {
  const load = loadFrom(dist);
  const { connect } = await load('transport/node/websocket.js');
  const { listen } = await load('transport/node/websocket-server.js');
  return { connect, listen };
}

function listenLink({ listen }: WebSockets, carrier: Carrier, identity: Identity, onLink: (link: Link) => void) {
  return listen({
    host: '127.0.0.1',
    port: 0,
    name: 'server',
    authenticate: ({ name }) => ({ kind: 'accepted', name }),
    onLink,
    ...(carrier === 'link-tls' && { tls: tlsOf(identity) }),
  });
}

async function callLink(
  { connect }: WebSockets,
  { carrier, identity, url, name }: { carrier: Carrier; identity: Identity; url: string; name: string },
): Promise<Link> {
  const options = {
    hello: hello(name),
    ...(carrier === 'link-tls' && { tls: { ...tlsOf(identity), checkServerIdentity: () => undefined } }),
  };
  return (await connect(url, options)).link;
}

/** A pair's end: resolves with what sends tensors. `sink` takes what arrives. */
async function openPair({ role, dist, carrier, identity, address }: PairSettings, sink: Sink): Promise<Send> {
  const own = { ...tlsOf(identity), minVersion: 'TLSv1.3' as const, checkServerIdentity: () => undefined };
  const attend = (socket: net.Socket) => {
    socket.setNoDelay(true);
    socket.on('data', (chunk) => sink.take(chunk.length));
    return bareSender(socket);
  };
  if (carrier === 'tcp' || carrier === 'tls') {
    if (role === 'serve') {
      return new Promise((done) => {
        const server =
          carrier === 'tcp'
            ? net.createServer((socket) => done(attend(socket)))
            : tls.createServer(own, (socket) => done(attend(socket)));
        server.listen(0, '127.0.0.1', () => answer({ ready: (server.address() as net.AddressInfo).port }));
      });
    }
    const socket =
      carrier === 'tcp'
        ? net.connect(Number(address), '127.0.0.1')
        : tls.connect({ port: Number(address), host: '127.0.0.1', ...own });
    await once(socket, carrier === 'tcp' ? 'connect' : 'secureConnect');
    answer({ ready: 'connected' });
    return attend(socket);
  }
  const transport = await webSockets(dist);
  const { createComputeThread } = await loadFrom(dist)('engine/node/compute-thread.js');
  const engine = await createComputeThread({ engine: 'reference' });
  const receive = (link: Link) => {
    link.receive(({ tensors }) => {
      for (const tensor of tensors ?? []) {
        sink.take(tensor.data.byteLength);
        engine.release(engine.upload(tensor));
      }
    });
    return linkSender(link);
  };
  if (role === 'serve') {
    return new Promise((done) => {
      void listenLink(transport, carrier, identity, (link) => done(receive(link))).then(({ url }) =>
        answer({ ready: url }),
      );
    });
  }
  const link = await callLink(transport, { carrier, identity, url: String(address), name: 'caller' });
  answer({ ready: 'connected' });
  return receive(link);
}

async function pairEnd(settings: PairSettings): Promise<void> {
  const sink = createSink();
  let send: Send | undefined;
  process.on('message', (message: Request) => {
    if (message.cpu) answer({ cpu: cpuMs() });
    if (message.expect !== undefined) sink.expect(message.expect * (message.byteCount ?? 0));
    if (message.load) void send?.(message.load, message.byteCount ?? 0);
  });
  send = await openPair(settings, sink);
}

/** A member of a ring: it calls the next one and is called by the one before. */
async function ringEnd(settings: RingSettings): Promise<void> {
  const { dist, carrier, identities, index, memberCount, elementCount } = settings;
  const transport = await webSockets(dist);
  const { ringAllReduce } = await loadFrom(dist)('runtime/device/all-reduce.js');
  const { SegmentedVector } = await loadFrom(dist)('runtime/device/segmented-vector.js');
  const { pieceCodec } = await loadFrom(dist)('runtime/device/codec.js');
  const { Mailbox } = await loadFrom(dist)('runtime/device/mailbox.js');
  const pieces = new Mailbox(2 ** 30);
  const from = 'before';
  const server = await listenLink(transport, carrier, at(identities, index), (link) =>
    link.receive((frame) =>
      pieces.put({ kind: 'all-reduce', round: frame.round, microBatch: frame.microBatch, from }, frame),
    ),
  );
  let nextLink: Link | undefined;
  let round = 0;
  const values = new Float32Array(elementCount);
  const sums = async (count: number) => {
    for (const end = round + count; round < end; round++) {
      values.fill(index + 1);
      const current = round;
      await ringAllReduce(
        new SegmentedVector([values]),
        { memberCount, memberIndex: index, codec: pieceCodec(undefined) },
        {
          send: (microBatch, tensors) =>
            defined(nextLink, 'a link').send({ kind: 'all-reduce', epoch: 1, round: current, microBatch, tensors }),
          receive: (microBatch) => pieces.take({ kind: 'all-reduce', round: current, microBatch, from }),
        },
      );
      const expected = (memberCount * (memberCount + 1)) / 2;
      if (values[0] !== expected || values[elementCount - 1] !== expected)
        throw new Error(`the sum is ${values[0]}, not ${expected}`);
    }
    answer({ summed: true });
  };
  process.on('message', (message: Request) => {
    if (message.cpu) answer({ cpu: cpuMs() });
    if (message.sums) void sums(message.sums);
    if (message.urls) {
      void callLink(transport, {
        carrier,
        identity: at(identities, index),
        url: at(message.urls, (index + 1) % memberCount),
        name: `end-${index}`,
      }).then((link) => {
        link.receive(() => {});
        nextLink = link;
        answer({ linked: true });
      });
    }
  });
  answer({ ready: server.url });
}

if (process.send !== undefined && process.argv[1] === fileURLToPath(import.meta.url)) {
  process.once('message', async (settings: PairSettings | RingSettings) => {
    (await loadFrom(settings.dist)('engine/node/host-node.js')).searchForGarbageLess();
    await (settings.role === 'ring' ? ringEnd(settings) : pairEnd(settings));
  });
  process.on('disconnect', () => process.exit());
}
