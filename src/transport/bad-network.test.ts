// Real WebSocket links over a relay that delays, dribbles, damages, swallows and resets: what arrives is right, and
// what cannot be right ends the link.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Clock } from '../clock.ts';
import { createRandom, type Random } from '../random.ts';
import { type Direction, type FrameFault, type Relay, startRelay } from '../testing/relay.ts';
import type { Frame, Link } from './link.ts';
import { connect, type WebSocketOptions } from './node/websocket.ts';
import { type LinkServer, listen } from './node/websocket-server.ts';

/** A server for one caller at a time, and what it accepted last. */
async function serve(options: WebSocketOptions): Promise<{ server: LinkServer; accepted(): Promise<Link> }> {
  const links: Link[] = [];
  let taken = (): void => {};
  const server = await listen({
    host: '127.0.0.1',
    port: 0,
    name: 'b',
    authenticate: ({ name }) => ({ kind: 'accepted', name }),
    authenticationMs: 600_000,
    onLink: (link) => {
      links.push(link);
      taken();
    },
    ...options,
  });
  const accepted = async (): Promise<Link> => {
    while (links.length === 0) {
      await new Promise<void>((resolve) => {
        taken = resolve;
      });
    }
    return links.shift() as Link;
  };
  return { server, accepted };
}

interface Pair {
  readonly relay: Relay;
  readonly caller: Link;
  readonly called: Link;
  close(): Promise<void>;
}

async function openPair(seed: number, options: WebSocketOptions = {}): Promise<Pair> {
  const { server, accepted } = await serve(options);
  const relay = await startRelay({ port: server.port, seed });
  const [{ link: caller }, called] = await Promise.all([
    connect(`ws://127.0.0.1:${relay.port}`, {
      hello: { protocol: 1, purpose: 'worker', name: 'a', credential: '' },
      timeoutMs: 600_000,
      ...options,
    }),
    accepted(),
  ]);
  const close = async (): Promise<void> => {
    await relay.close();
    await server.close('over');
    await Promise.all([caller.ended, called.ended]);
  };
  return { relay, caller, called, close };
}

const random = createRandom(20261121, 73);
const pool = Uint8Array.from({ length: 2 ** 21 }, () => random.integer(256));

/** A frame whose bytes no other has. */
function frameOf(index: number, byteCount: number, seed = 1): Frame {
  const first = (seed * 31 + index * 7) % 1_000;
  const data = pool.slice(first, first + byteCount);
  return {
    kind: 'activation',
    epoch: 1,
    round: 0,
    microBatch: index,
    control: { index },
    tensors: [{ type: 'uint8', shape: [byteCount], data }],
  };
}

/** Resolves with the first `count` frames that come. */
function receive(link: Link, count: number): Promise<Frame[]> {
  const frames: Frame[] = [];
  return new Promise((resolve, reject) => {
    link.receive((frame) => {
      if (frames.push(frame) === count) resolve(frames);
    });
    void link.ended.then(({ reason }) => reject(new Error(`${frames.length} of ${count} frames came: ${reason}`)));
  });
}

for (const [title, conditions] of [
  ['5 ms of delay and up to 40 ms of jitter', { delayMs: 5, jitterMs: 40 }],
  ['300 ms of delay', { delayMs: 300 }],
  ['one to seven bytes at a time', { dribbleBytes: 7 }],
  ['10 Mbps', { bandwidthMbps: 10, delayMs: 2 }],
] as const) {
  test(`over ${title} all frames arrive as they were, in order, both ways`, async () => {
    const { relay, caller, called, close } = await openPair(1);
    Object.assign(relay.conditions.toServer, conditions);
    Object.assign(relay.conditions.toCaller, conditions);
    const frames = [0, 1, 10, 300, 20_000, 5, 3_000].map((byteCount, index) => frameOf(index, byteCount));
    const arrived = [receive(called, frames.length), receive(caller, frames.length)];
    for (const frame of frames) for (const link of [caller, called]) void link.send(frame);
    for (const received of await Promise.all(arrived)) assert.deepEqual(received, frames);
    await close();
  });
}

test('a reset connection ends both ends at once, with a reason', async () => {
  const { relay, caller, called, close } = await openPair(2);
  const frames = [frameOf(0, 100), frameOf(1, 2_000_000)];
  const arriving = receive(called, 1);
  for (const frame of frames) void caller.send(frame);
  const arrived = await arriving;
  assert.deepEqual(arrived, [frames[0]]);
  relay.reset();
  for (const link of [caller, called]) {
    const { clean, reason } = await link.ended;
    assert.equal(clean, false);
    assert.match(reason, /^the connection was lost/);
  }
  await close();
});

test('when a direction swallows bytes, the end that hears nothing gives up, and then the other', async () => {
  for (const [seed, directions] of [
    [3, ['toServer']],
    [4, ['toCaller']],
    [5, ['toServer', 'toCaller']],
  ] as const) {
    const { relay, caller, called, close } = await openPair(seed, {
      heartbeat: { intervalMs: 50, deadAfterMs: 1_000 },
    });
    for (const direction of directions) relay.conditions[direction].silent = true;
    const [atCaller, atServer] = [await caller.ended, await called.ended];
    assert.deepEqual([atCaller.clean, atServer.clean], [false, false]);
    const deaf = directions[0] === 'toServer' ? atServer : atCaller;
    assert.match(deaf.reason, /^no sign of life from [ab] for \d\.\d s$/);
    await close();
  }
});

test('bulk in flight on a slow link stays small: a micro-batch does not wait behind socket buffers', async () => {
  const { relay, caller, called, close } = await openPair(6);
  Object.assign(relay.conditions.toServer, { bandwidthMbps: 100, delayMs: 1 });
  let arrivedBytes = 0;
  const aheadBytes: number[] = [];
  let ask = (): void => {};
  called.receive(({ kind, tensors }) => {
    arrivedBytes += tensors?.[0]?.data.byteLength ?? 0;
    if (kind === 'urgent') ask();
  });
  // Pieces of 64 KiB keep the lane full; what is neither in the queue nor arrived is on its way.
  let sentBytes = 0;
  let isOver = false;
  const load = async (): Promise<void> => {
    while (!isOver) {
      sentBytes += 65_536;
      await caller.send(
        {
          kind: 'bulk',
          epoch: 0,
          round: 0,
          microBatch: 0,
          tensors: [{ type: 'uint8', shape: [65_536], data: new Uint8Array(65_536) }],
        },
        'bulk',
      );
    }
  };
  const loading = Promise.all([load(), load(), load(), load()]);
  for (let trip = 0; trip < 40; trip++) {
    aheadBytes.push(sentBytes - caller.queuedBytes() - arrivedBytes);
    const asked = new Promise<void>((resolve) => {
      ask = resolve;
    });
    void caller.send({ kind: 'urgent', epoch: 0, round: 0, microBatch: trip }, 'pipeline');
    await asked;
    await new Promise((resolve) => setImmediate(resolve));
  }
  isOver = true;
  await loading;
  await close();
  // Frames that have come in part count as on their way: four of 64 KiB at most. Without pacing, sockets hold
  // megabytes.
  assert.ok(Math.max(...aheadBytes.slice(10)) < 4 * 65_536 + 131_072, `${Math.max(...aheadBytes)} bytes were ahead`);
});

/** Sends six frames one way with one fault on the way; what came of it. */
async function runCase(seed: number): Promise<'ended' | 'unharmed'> {
  const random = createRandom(20261121, 72, seed);
  // Time runs 100 times as fast: waiting for a peer that never answers is not what is tested.
  const clock: Clock = {
    now: () => performance.now() * 100,
    after(delayMs, callback) {
      const timer = setTimeout(callback, delayMs / 100);
      return () => clearTimeout(timer);
    },
  };
  const { relay, caller, called, close } = await openPair(seed, {
    clock,
    heartbeat: { intervalMs: 20_000, deadAfterMs: 200_000 },
  });
  try {
    return await damageOnce({ relay, caller, called }, seed, random);
  } finally {
    await close();
  }
}

async function damageOnce(
  { relay, caller, called }: Omit<Pair, 'close'>,
  seed: number,
  random: Random,
): Promise<'ended' | 'unharmed'> {
  const direction: Direction = random.integer(2) === 0 ? 'toServer' : 'toCaller';
  const [sender, receiver] = direction === 'toServer' ? [caller, called] : [called, caller];
  const faults: readonly FrameFault[] = ['flip', 'cut', 'double', 'swap', 'lose'];
  relay.damage(direction, faults[random.integer(faults.length)] as FrameFault, random.integer(8));
  const frames = [0, 50, 20_000, 300, 40_000, 7].map((byteCount, index) => frameOf(index, byteCount, seed));
  const received: Frame[] = [];
  receiver.receive((frame) => received.push(frame));
  for (const frame of frames) void sender.send(frame);
  void sender.close('done');
  const end = await receiver.ended;
  assert.equal(relay.damagedCount(), 1, `case ${seed}: nothing was damaged`);
  assert.deepEqual(received, frames.slice(0, received.length), `case ${seed}`);
  if (end.clean) assert.equal(received.length, frames.length, `case ${seed}: a frame was lost unseen`);
  else assert.match(end.reason, /^[A-Za-z][^\n]{8,200}$/, `case ${seed}`);
  return end.clean ? 'unharmed' : 'ended';
}

test('1,000 connections with a frame flipped, cut, doubled, swapped or lost: no wrong frame arrives', async () => {
  let [next, endedCount] = [0, 0];
  const lane = async (): Promise<void> => {
    for (let seed = next++; seed < 1_000; seed = next++) if ((await runCase(seed)) === 'ended') endedCount++;
  };
  await Promise.all(Array.from({ length: 32 }, lane));
  // A flipped bit of a ping changes nothing.
  assert.ok(endedCount >= 980, `${endedCount} of 1,000`);
});
