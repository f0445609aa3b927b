// The virtual world keeps the promises of a real one: order, back-pressure, ends that both sides hear of, processes
// that stop and die.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { defined } from '../assert.ts';
import { RunError } from '../errors.ts';
import { wrap } from '../graph/tensor.ts';
import { createRandom } from '../random.ts';
import type { Frame, Link } from '../transport/link.ts';
import { VirtualNetwork } from './virtual-network.ts';
import { VirtualProcess } from './virtual-process.ts';
import { atRest, VirtualTime } from './virtual-time.ts';

interface Pair {
  readonly time: VirtualTime;
  readonly network: VirtualNetwork;
  readonly a: VirtualProcess;
  readonly b: VirtualProcess;
  readonly toB: Link;
  readonly toA: Link;
  /** Numbers of the frames that b received. */
  readonly received: number[];
}

async function runUntil(time: VirtualTime, isDone: () => boolean): Promise<void> {
  await atRest();
  while (!isDone() && time.runNext()) await atRest();
}

const conditions = { latencyMs: 10, jitterMs: 5, bandwidthMbps: 8 };

async function createPair(windowBytes = 2 ** 20): Promise<Pair> {
  const time = new VirtualTime();
  const network = new VirtualNetwork(time, createRandom(7), { conditions, windowBytes });
  const [a, b] = ['a', 'b'].map((name) => new VirtualProcess(time, { name, host: name, clockOriginMs: 0 })) as [
    VirtualProcess,
    VirtualProcess,
  ];
  let toA: Link | undefined;
  network.listen('b', b, (link) => {
    toA = link;
  });
  let toB: Link | undefined;
  void network.dial(a, 'b', { url: 'b' }).then((link) => {
    toB = link;
  });
  await runUntil(time, () => toB !== undefined);
  const received: number[] = [];
  defined(toA, 'the link').receive((frame) => received.push(frame.microBatch));
  return { time, network, a, b, toB: defined(toB, 'the link'), toA: defined(toA, 'the link'), received };
}

function numbered(microBatch: number, elementCount = 0): Frame {
  return {
    kind: 'activation',
    epoch: 1,
    round: 0,
    microBatch,
    ...(elementCount > 0 && {
      tensors: [wrap('float32', [elementCount], new Float32Array(elementCount).fill(microBatch))],
    }),
  };
}

const rest = (time: VirtualTime): Promise<void> => runUntil(time, () => false);

test('events of the same moment keep their order, and a cancelled one does not happen', () => {
  const time = new VirtualTime();
  const happened: string[] = [];
  const add = (atMs: number, name: string): (() => void) =>
    time.at(atMs, () => happened.push(`${name} at ${time.nowMs}`));
  add(5, 'b');
  add(1, 'a');
  add(5, 'c')();
  add(5, 'd');
  add(-3, 'now');
  while (time.runNext());
  assert.deepEqual(happened, ['now at 0', 'a at 1', 'b at 5', 'd at 5']);
});

test('a random heap of 2,000 events comes out in order', () => {
  const [time, random] = [new VirtualTime(), createRandom(11)];
  const happened: number[] = [];
  const expected = Array.from({ length: 2000 }, () => random.integer(500));
  for (const atMs of expected) time.at(atMs, () => happened.push(atMs));
  while (time.runNext());
  assert.deepEqual(
    happened,
    [...expected].sort((x, y) => x - y),
  );
});

test('frames of one lane arrive in order, and control overtakes a long tensor', async () => {
  const { time, toB, received } = await createPair();
  for (let index = 0; index < 50; index++) void toB.send(numbered(index, 1000));
  void toB.send(numbered(100), 'control');
  await rest(time);
  assert.deepEqual(
    received.filter((index) => index < 100),
    Array.from({ length: 50 }, (_, index) => index),
  );
  assert.ok(received.indexOf(100) < 25, `control came after ${received.indexOf(100)} tensors of 4 ms each`);
});

test('a sender waits while the window is full, and what it changes too early arrives changed', async () => {
  const { time, toB, toA } = await createPair(1000);
  const values: number[] = [];
  toA.receive((frame) => values.push(Number(frame.tensors?.[0]?.data[0])));
  const [first, second] = [numbered(1, 400), numbered(2, 400)];
  let isFree = false;
  void toB.send(first);
  void toB.send(second).then(() => {
    isFree = true;
  });
  await atRest();
  assert.equal(isFree, false);
  assert.equal(toB.queuedBytes(), 2 * (1600 + 64));
  (second.tensors?.[0]?.data as Float32Array)[0] = 9;
  await rest(time);
  assert.equal(isFree, true);
  assert.deepEqual(values, [1, 9]);
});

test('a cut path holds everything back, in order, until it is whole', async () => {
  const { time, network, toB, received } = await createPair();
  network.cut('a', 'b');
  for (let index = 0; index < 5; index++) void toB.send(numbered(index));
  await runUntil(time, () => time.nowMs > 3000);
  assert.deepEqual(received, []);
  network.fix('a', 'b');
  void toB.send(numbered(5));
  await rest(time);
  assert.deepEqual(received, [0, 1, 2, 3, 4, 5]);
});

test('an end that receives nothing for 10 s gives up; the other learns of it when the path is whole', async () => {
  const { time, network, toB, toA } = await createPair();
  network.cut('a', 'b');
  const end = toA.ended;
  await rest(time);
  assert.match((await end).reason, /^no sign of life from a for 1[0-2]\.\d s$/);
  assert.deepEqual(await toB.ended, { clean: false, reason: (await end).reason });
});

test('a thawed process reads everything that came meanwhile, in order', async () => {
  const { time, b, toB, received } = await createPair();
  let isTimerRun = false;
  b.after(20, () => {
    isTimerRun = true;
    assert.deepEqual(received, []);
  });
  b.freeze();
  void toB.send(numbered(1, 5000));
  void toB.send(numbered(2));
  time.at(1000, () => b.thaw());
  await runUntil(time, () => time.nowMs >= 999);
  assert.deepEqual([received, isTimerRun], [[], false]);
  await rest(time);
  assert.deepEqual([received, isTimerRun], [[1, 2], true]);
});

test('a killed process is silent for ever, and its peers learn that it has ended', async () => {
  const { time, network, a, toB, toA } = await createPair();
  a.after(1, () => assert.fail('a timer of a dead process'));
  void toB.ended.then(() => assert.fail('a dead process hears nothing'));
  a.end();
  network.ended(a, { isDark: false, isDataLost: true });
  await rest(time);
  assert.deepEqual(await toA.ended, { clean: false, reason: 'the connection was lost' });
  assert.equal(network.connections.size, 0);
});

test('a host without power is known only by its silence', async () => {
  const { time, network, a, toA } = await createPair();
  a.end();
  network.ended(a, { isDark: true, isDataLost: true });
  await rest(time);
  assert.match((await toA.ended).reason, /^no sign of life from a/);
});

test('close waits for frames under way, and both ends learn of it; afterwards sending fails', async () => {
  const { time, toB, toA, received } = await createPair();
  for (let index = 0; index < 3; index++) void toB.send(numbered(index, 2000));
  void toB.close('done');
  await rest(time);
  assert.deepEqual(received, [0, 1, 2]);
  assert.deepEqual(
    [await toB.ended, await toA.ended],
    [
      { clean: true, reason: 'done' },
      { clean: true, reason: 'done' },
    ],
  );
  await assert.rejects(toB.send(numbered(4)), RunError);
});

test('a handler that throws ends the link with its reason', async () => {
  const { time, toB, toA } = await createPair();
  toA.receive(() => {
    throw new Error('what is this?');
  });
  void toB.send(numbered(1));
  await rest(time);
  assert.deepEqual([await toA.ended, await toB.ended], new Array(2).fill({ clean: false, reason: 'what is this?' }));
});

test('a call that nobody answers fails: at once if the host is there, after 10 s if it is not', async () => {
  const { time, network, a } = await createPair();
  const startMs = time.nowMs;
  const refused = assert.rejects(network.dial(a, 'b', { url: 'nobody' }), /nothing listens at nobody/);
  await runUntil(time, () => time.nowMs > startMs + 100);
  await refused;
  network.cut('b', 'a');
  const silent = assert.rejects(network.dial(a, 'b', { url: 'b' }), /b does not answer/);
  await rest(time);
  await silent;
  assert.ok(time.nowMs >= startMs + 10_000);
});
