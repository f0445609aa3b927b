import assert from 'node:assert/strict';
import { test } from 'node:test';
import { RunError } from '../../errors.ts';
import { createMemoryDisk } from '../../storage/memory-disk.ts';
import type { RunFolder } from '../../storage/run-folder.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import type { RunEvent } from '../protocol/events.ts';
import { recordRun } from './record.ts';

/** A run folder in memory. */
function createFolder(write?: RunFolder['write']): {
  folder: RunFolder;
  files: Map<string, string>;
  metrics: Record<string, unknown>[];
  events: Record<string, unknown>[];
  closed(): boolean;
} {
  const files = new Map<string, string>();
  const metrics: Record<string, unknown>[] = [];
  const events: Record<string, unknown>[] = [];
  let isClosed = false;
  const log = (into: object[]) => ({
    path: '',
    append: (record: object) => void into.push(record),
    flush: async () => {},
    close: async () => {},
  });
  const folder: RunFolder = {
    path: 'runs/1',
    disk: createMemoryDisk(),
    checkpointsPath: 'runs/1/checkpoints',
    metrics: log(metrics),
    events: log(events),
    write: write ?? (async (name, contents) => void files.set(name, String(contents))),
    close: async () => {
      isClosed = true;
    },
  };
  return { folder, files, metrics, events, closed: () => isClosed };
}

const plan = {
  ...handPlan({ schedule: '1f1b', cuts: [1], shares: [[2], [2]], microBatchCount: 1 }, 2),
  predicted: { roundMs: 1, samplesPerS: 1, peakMemoryMiB: {} },
};
const cluster = { devices: [{ name: 'a', memoryMiB: 1 }], links: { default: { bandwidthMbps: 1 } } };
const profile = { model: 'm', inputBytes: 1, labelBytes: 1, layers: [], batchSizes: [1], devices: {} };
const metrics = { round: 0, epoch: 0, loss: 1.5, samplesPerS: 10, lr: 0.1, accuracy: 0.5 };

test('rounds go to the metrics, documents to files, all else to the events, and the join code nowhere', async () => {
  const { folder, files, metrics: lines, events, closed } = createFolder();
  const recorder = recordRun(folder);
  const stream: readonly RunEvent[] = [
    { kind: 'listening', url: 'ws://x', joinCode: 'SECRET', remoteCount: 1 },
    { kind: 'joined', device: 'a', cores: 2, memoryMiB: 100, engine: 'reference' },
    { kind: 'profile-progress', device: 'a', done: 1, total: 2 },
    { kind: 'cluster', cluster },
    { kind: 'profile', profile },
    { kind: 'deployment', plan },
    { kind: 'round', metrics, endRound: 2, busyFraction: { a: 1 }, work: {} },
    { kind: 'checkpoint', round: 1, path: 'runs/1/checkpoints/1' },
    { kind: 'failed', message: 'b left' },
  ];
  for (const event of stream) recorder.observe(event);
  await recorder.finish();
  assert.deepEqual(
    lines.map(({ atMs, ...line }) => [typeof atMs, line]),
    [['number', metrics]],
  );
  assert.deepEqual([...files.keys()].sort(), ['cluster.json', 'plan.json', 'profile.json', 'trace.json']);
  assert.deepEqual(JSON.parse(files.get('cluster.json') ?? ''), cluster);
  assert.deepEqual(JSON.parse(files.get('profile.json') ?? ''), profile);
  assert.deepEqual(JSON.parse(files.get('plan.json') ?? ''), plan);
  assert.deepEqual(
    events.map(({ atMs, ...rest }) => {
      assert.ok(Number.isInteger(atMs) && (atMs as number) >= 0);
      return rest;
    }),
    [
      { event: 'joined', device: 'a', cores: 2, memoryMiB: 100, engine: 'reference' },
      { event: 'deployment', plan },
      { event: 'checkpoint', round: 1, path: 'runs/1/checkpoints/1' },
      { event: 'failed', message: 'b left' },
    ],
  );
  assert.equal(JSON.stringify([...files.values(), ...lines, ...events]).includes('SECRET'), false);
  assert.equal(closed(), true);
});

/** Slices of trace.json as "device name start–end", in milliseconds. */
function slices(text: string | undefined): string[] {
  const { traceEvents } = JSON.parse(text ?? '') as {
    traceEvents: readonly { ph: string; name: string; pid: number; ts: number; dur: number }[];
  };
  return traceEvents
    .filter(({ ph }) => ph === 'X')
    .map(({ name, pid, ts, dur }) => `${pid} ${name} ${ts / 1000}–${(ts + dur) / 1000}`);
}

test('the trace puts each round behind the one before, with the instructions of the plan', async () => {
  const { folder, files } = createFolder();
  const recorder = recordRun(folder);
  recorder.observe({ kind: 'deployment', plan });
  // a: receive input, forward, send, receive gradient, backward, update; b: receive label, receive activation, forward,
  // backward, send.
  const trace = (device: string, round: number, times: readonly (readonly [number, number, number])[]): RunEvent => ({
    kind: 'trace',
    device,
    round,
    times: times.map(([instruction, startMs, endMs]) => ({ instruction, startMs, endMs })),
  });
  recorder.observe(
    trace('a', 0, [
      [1, 0, 2],
      [4, 5, 7],
    ]),
  );
  recorder.observe(
    trace('b', 0, [
      [2, 2, 3],
      [3, 3, 5],
    ]),
  );
  recorder.observe(
    trace('a', 1, [
      [1, 0, 1],
      [99, 1, 2],
    ]),
  );
  recorder.observe(trace('nobody', 1, [[1, 0, 1]]));
  await recorder.finish();
  assert.deepEqual(slices(files.get('trace.json')), [
    '0 forward 0 0–2',
    '0 backward 0 5–7',
    '1 forward 0 2–3',
    '1 backward 0 3–5',
    '0 forward 0 7–8',
  ]);
});

test('the trace shows pieces on their links, and no waiting', async () => {
  const { folder, files } = createFolder();
  const recorder = recordRun(folder);
  recorder.observe({ kind: 'deployment', plan });
  // a: receive input, forward, send, receive gradient, backward, update.
  const times = [
    { instruction: 0, startMs: 0, endMs: 1 },
    { instruction: 1, startMs: 1, endMs: 3 },
    { instruction: 2, startMs: 3, endMs: 4 },
    { instruction: 3, startMs: 1, endMs: 9 },
  ];
  recorder.observe({ kind: 'trace', device: 'a', round: 0, times });
  await recorder.finish();
  assert.deepEqual(slices(files.get('trace.json')), ['0 forward 0 1–3', '0 activation 0 3–4']);
  const { traceEvents } = JSON.parse(files.get('trace.json') ?? '') as {
    traceEvents: { ph: string; pid: number; args: object }[];
  };
  const rows = traceEvents
    .filter(({ ph, pid }) => ph === 'M' && pid === 0)
    .map(({ args }) => (args as { name: string }).name);
  assert.deepEqual(rows, ['a', 'compute', 'to b']);
});

test('the trace of a stream: ticks overlap as they did, names carry rounds, later ticks stand behind', async () => {
  const { folder, files } = createFolder();
  const recorder = recordRun(folder);
  const stages = plan.stages.map((stage, index) => ({ ...stage, inFlight: 2 - index }));
  recorder.observe({ kind: 'deployment', plan: { ...plan, schedule: 'async', stages } });
  // a: receive input, forward of the next round, send, receive gradient, backward, update.
  const trace = (round: number, forward: readonly [number, number], backward?: readonly [number, number]): RunEvent => {
    const times = [[1, ...forward] as const, ...(backward === undefined ? [] : [[4, ...backward] as const])];
    return {
      ...{ kind: 'trace', device: 'a', round },
      times: times.map(([instruction, startMs, endMs]) => ({ instruction, startMs, endMs })),
    };
  };
  recorder.observe(trace(0, [0, 1]));
  recorder.observe(trace(1, [1, 2], [2, 4]));
  recorder.observe(trace(50, [1000, 1001], [1002, 1004]));
  recorder.observe(trace(2, [3, 5], [6, 8]));
  await recorder.finish();
  assert.deepEqual(slices(files.get('trace.json')), [
    '0 forward 0.0 0–1',
    '0 forward 1.0 1–2',
    '0 backward 0.0 2–4',
    '0 forward 2.0 3–5',
    '0 backward 1.0 6–8',
    '0 forward 50.0 8–9',
    '0 backward 49.0 10–12',
  ]);
});

test('the trace keeps the first twenty rounds', async () => {
  const { folder, files } = createFolder();
  const recorder = recordRun(folder);
  recorder.observe({ kind: 'deployment', plan });
  for (let round = 0; round < 30; round++)
    recorder.observe({ kind: 'trace', device: 'a', round, times: [{ instruction: 1, startMs: 0, endMs: 1 }] });
  await recorder.finish();
  assert.equal(slices(files.get('trace.json')).length, 20);
  assert.equal(slices(files.get('trace.json')).at(-1), '0 forward 0 19–20');
});

test('a run without a plan has no trace; a document that cannot be written is reported at the end', async () => {
  const { folder, files } = createFolder();
  await recordRun(folder).finish();
  assert.equal(files.size, 0);
  const full = createFolder(() => Promise.reject(new RunError('the disk is full')));
  const recorder = recordRun(full.folder);
  recorder.observe({ kind: 'cluster', cluster });
  await new Promise(setImmediate);
  await assert.rejects(recorder.finish(), /the disk is full/);
  assert.equal(full.closed(), true);
});

test('the newest of a repeated document stays, even if the one before was slow or could not be written', async () => {
  const written: unknown[] = [];
  const { folder } = createFolder(async (_, contents) => {
    const { model } = JSON.parse(String(contents)) as { model: string };
    if (model === 'first') await new Promise((resolve) => setImmediate(resolve));
    if (model === 'second') throw new RunError('profile.json cannot be written (the disk is full).');
    written.push(model);
  });
  const recorder = recordRun(folder);
  for (const model of ['first', 'second', 'third'])
    recorder.observe({ kind: 'profile', profile: { ...profile, model } });
  await recorder.finish();
  assert.deepEqual(written, ['first', 'third']);
});
