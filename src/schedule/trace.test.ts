import assert from 'node:assert/strict';
import { test } from 'node:test';
import { traceJson } from './trace.ts';

test('a process for each device, a row for computing and one for each link it sends on', () => {
  const json = traceJson(
    [
      { device: 'a', kind: 'forward', stage: 0, microBatch: 0, startMs: 0, endMs: 1.5 },
      {
        device: 'a',
        kind: 'transfer',
        stage: 0,
        microBatch: 0,
        payload: 'activation',
        to: 'b',
        bytes: 4096,
        startMs: 1.5,
        endMs: 2.0000004,
      },
      { device: 'b', kind: 'all-reduce', stage: 1, startMs: 2.5, endMs: 3 },
    ],
    ['b', 'a'],
  );
  assert.deepEqual(JSON.parse(json), {
    displayTimeUnit: 'ms',
    traceEvents: [
      { name: 'process_name', ph: 'M', pid: 0, tid: 0, args: { name: 'b' } },
      { name: 'thread_name', ph: 'M', pid: 0, tid: 0, args: { name: 'compute' } },
      { name: 'process_name', ph: 'M', pid: 1, tid: 0, args: { name: 'a' } },
      { name: 'thread_name', ph: 'M', pid: 1, tid: 0, args: { name: 'compute' } },
      { name: 'thread_name', ph: 'M', pid: 1, tid: 1, args: { name: 'to b' } },
      {
        name: 'forward 0',
        ph: 'X',
        ts: 0,
        dur: 1500,
        pid: 1,
        tid: 0,
        cat: 'forward',
        args: { stage: 0, microBatch: 0 },
      },
      {
        name: 'activation 0',
        ph: 'X',
        ts: 1500,
        dur: 500,
        pid: 1,
        tid: 1,
        cat: 'transfer',
        args: { stage: 0, microBatch: 0, bytes: 4096 },
      },
      { name: 'all-reduce', ph: 'X', ts: 2500, dur: 500, pid: 0, tid: 0, cat: 'all-reduce', args: { stage: 1 } },
    ],
  });
});

test('a device that only sends data gets a process too', () => {
  const json = traceJson(
    [
      {
        device: 'holder',
        kind: 'transfer',
        stage: 0,
        microBatch: 3,
        payload: 'input',
        to: 'a',
        bytes: 1,
        startMs: 0,
        endMs: 1,
      },
    ],
    ['a'],
  );
  const names = (
    JSON.parse(json) as { traceEvents: { ph: string; pid: number; args: { name?: string } }[] }
  ).traceEvents.filter((event) => event.ph === 'M');
  assert.deepEqual(
    names.map((event) => `${event.pid} ${event.args.name}`),
    ['0 a', '0 compute', '1 holder', '1 compute', '1 to a'],
  );
});

test('of a stream, names carry the round', () => {
  const event = { device: 'a', kind: 'forward', stage: 0, round: 2, microBatch: 1, startMs: 0, endMs: 1 } as const;
  const { traceEvents } = JSON.parse(traceJson([event], ['a'])) as { traceEvents: { name: string; args: unknown }[] };
  assert.deepEqual(traceEvents.at(-1)?.args, { stage: 0, round: 2, microBatch: 1 });
  assert.equal(traceEvents.at(-1)?.name, 'forward 2.1');
});
