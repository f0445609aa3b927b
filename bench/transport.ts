// What a WebSocket link costs: throughput by tensor size, time per frame, delays of the event loop, between two
// processes on loopback; and with --shaped, as root on Linux, how much of shaped links between two network namespaces
// it uses; --section cpu: the processor's time for each MB.
// Usage: npm run bench -- transport [--dist FOLDER] [--shaped MBPS,MBPS,…] [--section cpu [--only
// tcp,tls,link,link-tls,ring]]

import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { resolve } from 'node:path';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { createInterface } from 'node:readline';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { WebSocket, WebSocketServer } from 'ws';
import { defined } from '../dist/assert.js';
import { median } from '../dist/statistics.js';
import type { Frame, Link, Priority } from '../dist/transport/link.js';
import { loadFrom } from './common/build.ts';
import { quantile } from './common/numbers.ts';
import { tableHead } from './common/table.ts';
import { cpu } from './transport/cpu.ts';

const { values: flags } = parseArgs({
  options: {
    dist: { type: 'string', default: 'dist' },
    shaped: { type: 'string' },
    section: { type: 'string' },
    only: { type: 'string' },
    serve: { type: 'string' },
    call: { type: 'string' },
  },
});
const load = loadFrom(flags.dist);
const { connect } = await load('transport/node/websocket.js');
const { listen } = await load('transport/node/websocket-server.js');
const { ringAllReduce } = await load('runtime/device/all-reduce.js');
const { SegmentedVector } = await load('runtime/device/segmented-vector.js');
const { pieceCodec } = await load('runtime/device/codec.js');
const { Mailbox } = await load('runtime/device/mailbox.js');
type Pieces = InstanceType<typeof Mailbox>;
const hello = { protocol: 1, purpose: 'peer', name: 'caller', credential: '' } as const;
const say = (line: unknown) => process.stdout.write(`${JSON.stringify(line)}\n`);
const kib = 1024;
const mib = 1024 * kib;

function frame(kind: string, byteCount = 0, control?: Readonly<Record<string, unknown>>): Frame {
  const tensors: Pick<Frame, 'tensors'> =
    byteCount > 0 ? { tensors: [{ type: 'uint8', shape: [byteCount], data: new Uint8Array(byteCount) }] } : {};
  return { kind, epoch: 1, round: 0, microBatch: 0, ...(control && { control }), ...tensors };
}

const pieceKey = (round: number, microBatch: number) => ({ kind: 'all-reduce', round, microBatch, from: '' });

/** Sums a vector with the other end's, a ring of two. */
function sum(
  link: Link,
  pieces: Pieces,
  { memberIndex, elementCount, round }: Record<'memberIndex' | 'elementCount' | 'round', number>,
): Promise<number> {
  return ringAllReduce(
    new SegmentedVector([new Float32Array(elementCount).fill(1)]),
    { memberIndex, memberCount: 2, codec: pieceCodec(undefined) },
    {
      send: (microBatch, tensors) => link.send({ kind: 'all-reduce', epoch: 1, round, microBatch, tensors }),
      receive: (microBatch) => pieces.take(pieceKey(round, microBatch)),
    },
  );
}

/** Answers pings and marks, counts bytes, and sends or sums for a while when asked to. */
/** What a frame's control part asks for, by its kind. */
interface Asked {
  readonly elementCount: number;
  readonly milliseconds: number;
  readonly priority: Priority;
  readonly byteCount: number;
}

function attend(link: Link): void {
  let byteCount = 0;
  const pieces = new Mailbox(2 ** 30);
  link.receive((received) => {
    const { kind, tensors } = received;
    const asked = received.control as Asked;
    if (kind === 'all-reduce') return pieces.put(pieceKey(received.round, received.microBatch), received);
    if (kind === 'start-sum')
      void sum(link, pieces, { memberIndex: 1, elementCount: asked.elementCount, round: received.round });
    for (const { data } of tensors ?? []) byteCount += data.byteLength;
    if (kind === 'ping') void link.send(frame('pong'));
    if (kind === 'urgent') void link.send(frame('pong'), 'control');
    if (kind === 'mark') void link.send(frame('marked', 0, { byteCount }));
    if (kind === 'start-load') void keepSending(link, asked.milliseconds, asked.priority);
  });
}

/** Keeps four frames of 256 KiB waiting for a while. */
async function keepSending(link: Link, milliseconds: number, priority: Priority): Promise<number> {
  const end = performance.now() + milliseconds;
  const sent = frame('load', 256 * kib);
  let byteCount = 0;
  await Promise.all(
    [1, 2, 3, 4].map(async () => {
      while (performance.now() < end) {
        await link.send(sent, priority);
        byteCount += 256 * kib;
      }
    }),
  );
  return byteCount;
}

/** A server in this process: sink, echo, and a bare WebSocket for comparison. */
async function serve(host: string): Promise<void> {
  const delay = monitorEventLoopDelay({ resolution: 1 });
  delay.enable();
  const server = await listen({
    host,
    port: 0,
    name: 'server',
    authenticate: ({ name }) => ({ kind: 'accepted', name }),
    onLink: attend,
  });
  const bare = new WebSocketServer({ host, port: 0, perMessageDeflate: false, maxPayload: 2 ** 30 });
  bare.on('connection', (socket) => {
    socket.on('error', () => {});
    socket.on('message', (data: Buffer) => {
      if (data.length === 1) socket.send(data);
    });
  });
  await once(bare, 'listening');
  say({ url: server.url, bare: `ws://${host}:${(bare.address() as AddressInfo).port}` });
  for await (const _ of createInterface({ input: process.stdin })) {
    const { user, system } = process.cpuUsage();
    say({ delayMs: delay.max / 1e6, cpuUs: user + system });
    delay.reset();
  }
  process.exit();
}

/** Starts this script elsewhere; `ask` writes a line and reads one. */
interface Answer {
  readonly url: string;
  readonly bare: string;
  readonly delayMs: number;
  readonly cpuUs: number;
}

function start(command: string, ...args: readonly string[]) {
  const child = spawn(command, args, { stdio: ['pipe', 'pipe', 'inherit'] });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const read = async () => JSON.parse((await lines.next()).value ?? '') as unknown;
  const ask = async (line: string) => {
    child.stdin.write(`${line}\n`);
    return (await read()) as Answer;
  };
  return { read, ask, end: () => child.stdin.end() };
}

const script = fileURLToPath(import.meta.url);

/** The median of what `times` runs return. */
async function medianOf(times: number, run: () => Promise<number>): Promise<number> {
  const results: number[] = [];
  for (let count = 0; count < times; count++) results.push(await run());
  return median(results);
}

function frameCount(byteCount: number): number {
  return Math.ceil(Math.min(1.5e9, byteCount * 8000) / byteCount);
}

/** MB/s of frames of this size, four at a time, until the last byte has been received. */
async function throughput(link: Link, next: Next, byteCount: number): Promise<number> {
  const count = frameCount(byteCount);
  const sent = frame('load', byteCount);
  const startMs = performance.now();
  let left = count;
  await Promise.all(
    [1, 2, 3, 4].map(async () => {
      while (left-- > 0) await link.send(sent);
    }),
  );
  const marked = next('marked');
  void link.send(frame('mark'));
  await marked;
  return (count * byteCount) / (performance.now() - startMs) / 1e3;
}

/** Throughput over a bare WebSocket with the same mask, one message per frame. */
async function bareThroughput(url: string, byteCount: number, mask: boolean): Promise<number> {
  const socket = new WebSocket(url, {
    perMessageDeflate: false,
    ...(mask && { generateMask: (bytes: Buffer) => void bytes.fill(0) }),
  });
  await once(socket, 'open');
  const count = frameCount(byteCount);
  const data = Buffer.alloc(byteCount);
  const startMs = performance.now();
  for (let index = 0; index < count; index++) {
    const sending = new Promise((done) => socket.send(data, done));
    if (socket.bufferedAmount > 4 * byteCount) await sending;
  }
  const answer = once(socket, 'message');
  socket.send(Buffer.alloc(1));
  await answer;
  const rate = (count * byteCount) / (performance.now() - startMs) / 1e3;
  socket.close();
  return rate;
}

/** Resolves with the next frame of a kind. */
type Next = (kind: string) => Promise<Frame>;

function listenTo(link: Link): {
  readonly counts: { byteCount: number };
  readonly pieces: Pieces;
  readonly next: Next;
} {
  const waiting = new Map<string, (frame: Frame) => void>();
  const counts = { byteCount: 0 };
  const pieces = new Mailbox(2 ** 30);
  link.receive((received) => {
    if (received.kind === 'all-reduce') return pieces.put(pieceKey(received.round, received.microBatch), received);
    for (const { data } of received.tensors ?? []) counts.byteCount += data.byteLength;
    waiting.get(received.kind)?.(received);
  });
  return { counts, pieces, next: (kind) => new Promise((done) => waiting.set(kind, done)) };
}

async function loopback() {
  const server = start(process.execPath, script, '--serve', '127.0.0.1', '--dist', flags.dist);
  const { url, bare } = (await server.read()) as Answer;
  const { link } = await connect(url, { hello });
  const { next } = listenTo(link);

  console.log(
    tableHead([
      'frames of',
      'MB/s, median (best) of 5',
      'CPU of sender, receiver: µs a frame',
      'bare WebSocket, zero mask: MB/s',
      'random mask: MB/s',
    ]),
  );
  await throughput(link, next, mib); // warm-up
  for (const [name, byteCount] of [
    ['64 KiB', 64 * kib],
    ['1 MiB', mib],
    ['16 MiB', 16 * mib],
  ] as const) {
    const rates: number[] = [];
    const before = process.cpuUsage();
    const receiverBefore = await server.ask('cpu');
    for (let count = 0; count < 5; count++) rates.push(await throughput(link, next, byteCount));
    const { user, system } = process.cpuUsage(before);
    const cpuUs = [user + system, (await server.ask('cpu')).cpuUs - receiverBefore.cpuUs].map((time) =>
      (time / frameCount(byteCount) / 5).toFixed(0),
    );
    const [zero, random] = [
      await medianOf(3, () => bareThroughput(bare, byteCount, true)),
      await bareThroughput(bare, byteCount, false),
    ];
    console.log(
      `| ${name} | ${median(rates).toFixed(0)} (${Math.max(...rates).toFixed(0)}) | ${cpuUs.join(', ')} | ` +
        `${zero.toFixed(0)} | ${random.toFixed(0)} |`,
    );
  }

  const trips: number[] = [];
  for (let index = 0; index < 5000; index++) {
    const startMs = performance.now();
    const answered = next('pong');
    void link.send(frame('ping'));
    await answered;
    trips.push((performance.now() - startMs) * 1000);
  }
  console.log(
    `\nround trip of an empty frame: median ${median(trips).toFixed(0)} µs, p99 ${quantile(trips, 0.99).toFixed(0)} µs`,
  );
  for (const byteCount of [0, kib]) {
    const each = await medianOf(5, async () => {
      const startMs = performance.now();
      for (let index = 0; index < 20_000; index++) {
        const sending = link.send(frame('small', byteCount));
        if (index % 100 === 0) await sending;
      }
      const marked = next('marked');
      void link.send(frame('mark'));
      await marked;
      return (performance.now() - startMs) / 20;
    });
    console.log(`frames with ${byteCount} bytes of tensors, one after the other: ${each.toFixed(1)} µs each`);
  }

  const long = frame('load', 100 * mib);
  (defined(long.tensors?.[0], 'a tensor').data as Uint8Array).fill(1); // its pages are there
  await server.ask('delay');
  const delay = monitorEventLoopDelay({ resolution: 1 });
  delay.enable();
  for (let index = 0; index < 5; index++) await link.send(long, 'bulk');
  const marked = next('marked');
  void link.send(frame('mark'), 'bulk');
  await marked;
  console.log(
    `longest delay of the event loop during five frames of 100 MiB: sender ${(delay.max / 1e6).toFixed(1)} ms, ` +
      `receiver ${(await server.ask('delay')).delayMs.toFixed(1)} ms`,
  );
  await link.close('done');
  server.end();
}

/**
 * In a namespace of its own: how much of a link of `mbps` is used in 7.5 s after 3 s, and how long an urgent frame
 * takes meanwhile; then sums.
 */
async function call([url = '', mbps = '']: readonly string[]): Promise<void> {
  const { link } = await connect(url, { hello, heartbeat: { intervalMs: 500, deadAfterMs: 10_000 } });
  const { counts, pieces, next } = listenTo(link);
  const received = async () => {
    const marked = next('marked');
    void link.send(frame('mark'), 'control');
    return ((await marked).control as Asked).byteCount;
  };
  const use = (byteCount: number, milliseconds: number) =>
    `${((byteCount / milliseconds / 125 / Number(mbps)) * 100).toFixed(1)}%`;
  const results: string[] = [];
  const microBatch = frame('urgent', Number(mbps) * 250); // 2 ms of the link
  const cases: readonly (readonly [string, Priority, boolean, Frame, Priority])[] = [
    ['one way, pipeline', 'pipeline', false, frame('urgent'), 'control'],
    ['one way, bulk', 'bulk', false, frame('urgent'), 'control'],
    ['one way, bulk; a micro-batch of 2 ms', 'bulk', false, microBatch, 'pipeline'],
    ['both ways, pipeline', 'pipeline', true, frame('urgent'), 'control'],
  ];
  for (const [name, priority, both, urgent, urgentPriority] of cases) {
    const trips: number[] = [];
    if (both) await link.send(frame('start-load', 0, { milliseconds: 14_000, priority }), 'control');
    const loading = keepSending(link, 14_000, priority);
    await pause(3000);
    const [sentBefore, receivedBefore, startMs] = [await received(), counts.byteCount, performance.now()];
    while (performance.now() - startMs < 7500) {
      const pingMs = performance.now();
      const answered = next('pong');
      void link.send(urgent, urgentPriority);
      await answered;
      trips.push(performance.now() - pingMs);
      await pause(50);
    }
    const [sentAfter, receivedAfter, endMs] = [await received(), counts.byteCount, performance.now()];
    const uses = [
      use(sentAfter - sentBefore, endMs - startMs),
      ...(both ? [use(receivedAfter - receivedBefore, endMs - startMs)] : []),
    ];
    results.push(
      `| ${mbps} Mbps | ${name} | ${uses.join(', ')} ` +
        `| ${median(trips).toFixed(0)} | ${Math.max(...trips).toFixed(0)} |`,
    );
    await loading;
    for (let last = -1; last !== counts.byteCount; ) {
      last = counts.byteCount;
      await received();
      await pause(500);
    }
  }
  const elementCount = Number(mbps) * 20_000; // 0.64 s by eq. 5: each sends as much as the vector has
  const times: number[] = [];
  for (let round = 0; round < 5; round++) {
    const startMs = performance.now();
    void link.send({ ...frame('start-sum', 0, { elementCount }), round }, 'control');
    await sum(link, pieces, { memberIndex: 0, elementCount, round });
    times.push(performance.now() - startMs);
  }
  const expectedMs = (elementCount * 32) / 1e3 / Number(mbps);
  results.push(
    `| ${mbps} Mbps | AllReduce of ${(elementCount * 4) / 1e6} MB, two devices | ` +
      `${((expectedMs / median(times)) * 100).toFixed(1)}% (median of 5 against eq. 5) | | |`,
  );
  await link.close('done');
  say(results);
}

/** Two namespaces with a link of tbf's between them, for each bandwidth. */
async function shaped(bandwidths: readonly string[]): Promise<void> {
  const ip = (...args: readonly string[]) => execFileSync('ip', args);
  const left = `atl${process.pid}`;
  const right = `atr${process.pid}`;
  const inside = (namespace: string, ...args: readonly string[]) =>
    start('ip', 'netns', 'exec', namespace, process.execPath, script, '--dist', flags.dist, ...args);
  ip('netns', 'add', left);
  try {
    ip('netns', 'add', right);
    ip('-n', left, 'link', 'add', 'veth0', 'type', 'veth', 'peer', 'name', 'veth0', 'netns', right);
    for (const [namespace, address] of [
      [left, '10.77.0.1/24'],
      [right, '10.77.0.2/24'],
    ] as const) {
      ip('-n', namespace, 'address', 'add', address, 'dev', 'veth0');
      ip('-n', namespace, 'link', 'set', 'veth0', 'up');
    }
    console.log(
      tableHead(['link', 'load', 'use of the link', 'round trip of an urgent frame, median ms', 'longest ms']),
    );
    for (const mbps of bandwidths) {
      for (const namespace of [left, right]) {
        execFileSync('ip', [
          'netns',
          'exec',
          namespace,
          'tc',
          'qdisc',
          'replace',
          'dev',
          'veth0',
          'root',
          'tbf',
          'rate',
          `${mbps}mbit`,
          'burst',
          '64kb',
          'latency',
          '50ms',
        ]);
      }
      const server = inside(right, '--serve', '10.77.0.2');
      const { url } = (await server.read()) as Answer;
      const caller = inside(left, '--call', `${url},${mbps}`);
      for (const line of (await caller.read()) as string[]) console.log(line);
      server.end();
      caller.end();
    }
  } finally {
    for (const namespace of [left, right]) execFileSync('ip', ['netns', 'delete', namespace]);
  }
}

if (flags.serve !== undefined) await serve(flags.serve);
else if (flags.call !== undefined) await call(flags.call.split(','));
else if (flags.shaped !== undefined) await shaped(flags.shaped.split(','));
else if (flags.section === 'cpu') await cpu(resolve(flags.dist), flags);
else await loopback();
