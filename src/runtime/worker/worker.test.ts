// A worker alone with a coordinator that the test plays: what it answers, and how it ends.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { processMiB } from '../../cluster/memory.ts';
import { createReferenceEngine } from '../../engine/reference.ts';
import { RunError } from '../../errors.ts';
import { tensor } from '../../graph/tensor.ts';
import {
  connectFrame,
  data,
  deployFrame,
  deployPair,
  frame,
  hasty,
  modelFrame,
  peers,
  roundFrame,
  snapshotFrame,
  start,
  startWithPeer,
  state,
  timeout,
  vector,
} from '../../testing/lone-worker.ts';
import { cut } from '../../testing/memory-cluster.ts';
import type { Frame, Link } from '../../transport/link.ts';
import { createMemoryLinks } from '../../transport/memory.ts';
import type { ProfileCache } from '../device/measure/cached-profile.ts';
import type { MeasuredProfile } from '../device/measure/measurement.ts';
import type { StagePort } from '../device/stage.ts';
import type { ProfileJob, ProfileProcess } from './options.ts';
import { runWorker } from './worker.ts';

test('an honest coordinator gets what it asks for, up to the end', { timeout }, async () => {
  const worker = start();
  worker.send(modelFrame);
  assert.deepEqual((await worker.until('ready')).control, { listenUrl: 'memory://a' });
  worker.send(connectFrame, deployFrame, ...state);
  await worker.until('deployed');
  worker.send(roundFrame, ...data);
  const { lossSum, squaredNorm, finite, round } = (await worker.until('prepared')).control as Record<string, number>;
  assert.ok((lossSum ?? 0) > 0 && (squaredNorm ?? 0) > 0);
  assert.deepEqual([finite, round], [true, 0]);
  worker.send(frame('commit', { round: 0, gradientScale: 1 }), snapshotFrame);
  await worker.until('snapshot-end');
  const sent = worker.received.filter(({ kind }) => kind === 'state');
  assert.deepEqual(
    sent.map(({ control }) => (control as { role: string }).role),
    [...new Array(8).fill('parameter'), ...new Array(8).fill('optimizer')],
  );
  worker.send(frame('end', { reason: 'the run is done' }));
  assert.deepEqual(await worker.end, { clean: true, reason: 'the run is done' });
  await worker.coordinator.ended;
});

const never = new Promise<never>(() => {});

/** What a worker sends that is asked for a profile at these sizes, where another process measures `measured`. */
async function profiledBy(
  batchSizes: readonly number[],
  measured: Promise<MeasuredProfile>,
  { profileCache, onJob }: { readonly profileCache: ProfileCache; onJob(job: ProfileJob): ProfileProcess['end'] },
): Promise<readonly Frame[]> {
  const [coordinator, link] = createMemoryLinks('coordinator', 'a');
  const received: Frame[] = [];
  const engine = createReferenceEngine();
  coordinator.receive((sent) => {
    received.push(sent);
    const isOver = sent.kind === 'profiled' || (sent.kind === 'profile-progress' && measured === never);
    if (isOver) void coordinator.send(frame('end', { reason: 'the run is over' }));
  });
  const end = runWorker({
    ...{ name: 'a', coordinator: link, clock: hasty, engine, profileCache },
    memoryBytes: (processMiB + 100) * 2 ** 20,
    createNetwork: async () => ({ url: 'memory://a', connect: () => never, close: async () => {} }),
    startProfile: (job, onProgress) => {
      onProgress(1, 2);
      return { profile: measured, end: onJob(job) };
    },
  });
  for (const sent of [modelFrame, frame('profile', { batchSizes })]) void coordinator.send(sent);
  assert.deepEqual(await end, { clean: true, reason: 'the run is over' });
  await engine.close();
  return received.filter(({ kind }) => kind.startsWith('profile'));
}

test('a model is measured in another process within the memory that is left, once, and no longer than the run', {
  timeout,
}, async () => {
  const known = new Map<string, MeasuredProfile>();
  const jobs: ProfileJob[] = [];
  let endedCount = 0;
  const elsewhere = {
    profileCache: {
      read: async (key: string) => known.get(key),
      write: async (key: string, profile: MeasuredProfile) => void known.set(key, profile),
    },
    onJob(job: ProfileJob) {
      jobs.push(job);
      return () => void endedCount++;
    },
  };
  const found: MeasuredProfile = { layers: [], times: { forwardMs: [], backwardMs: [] }, cached: false };
  const [progress, first] = await profiledBy([1, 4], Promise.resolve(found), elsewhere);
  assert.deepEqual([progress?.control, first?.control], [{ done: 1, total: 2 }, found]);
  assert.deepEqual(
    jobs.map(({ batchSizes, memoryBytes }) => ({ batchSizes, memoryBytes })),
    [{ batchSizes: [1, 4], memoryBytes: 100 * 2 ** 20 }],
  );
  const [again, ...others] = await profiledBy([1, 4], never, elsewhere);
  assert.deepEqual([again?.control, others.length, jobs.length], [{ ...found, cached: true }, 0, 1]);
  await profiledBy([1, 8], never, elsewhere);
  assert.deepEqual([jobs.length, endedCount], [2, 2]);
});

test('a worker whose stage still compiles at the end frees it before its engine goes', { timeout }, async () => {
  const [coordinator, link] = createMemoryLinks('coordinator', 'a');
  const engine = createReferenceEngine();
  let finish: ((stage: StagePort) => void) | undefined;
  coordinator.receive(({ kind }) => {
    if (kind === 'ready') for (const sent of [connectFrame, deployFrame]) void coordinator.send(sent);
  });
  const done: string[] = [];
  const end = runWorker({
    ...{ name: 'a', coordinator: link, clock: hasty, engine },
    createNetwork: async () => ({ url: 'memory://a', connect: () => never, close: async () => {} }),
    createStage: () =>
      new Promise((resolve) => {
        finish = resolve;
        void coordinator.send(frame('end', { reason: 'the run is over' }));
      }),
  }).finally(() => done.push('worker'));
  void coordinator.send(modelFrame);
  assert.match((await coordinator.ended).reason, /the run is over/);
  for (let turn = 0; turn < 20; turn++) await new Promise((resolve) => setImmediate(resolve));
  assert.equal(done.length, 0, 'everything else is closed, and the worker waits');
  finish?.({ dispose: () => done.push('stage') } as Partial<StagePort> as StagePort);
  assert.deepEqual(await end, { clean: true, reason: 'the run is over' });
  assert.deepEqual(done, ['stage', 'worker']);
  await engine.close();
});

test('a link to the coordinator that is lost ends the worker, whatever it is at', { timeout }, async () => {
  for (const frames of [
    [],
    [modelFrame],
    [modelFrame, connectFrame, deployFrame],
    [modelFrame, deployFrame, ...state, roundFrame],
    [modelFrame, deployFrame, ...state, roundFrame, ...data],
  ]) {
    const [coordinator, link] = createMemoryLinks('coordinator', 'a');
    const engine = createReferenceEngine();
    const end = runWorker({
      name: 'a',
      coordinator: link,
      clock: hasty,
      engine,
      createNetwork: async () => ({
        url: '',
        connect: () => Promise.reject(new RunError('no')),
        close: async () => {},
      }),
    });
    coordinator.receive(() => {});
    for (const one of frames) {
      void coordinator.send(one, 'control');
      if (one === modelFrame || one === deployFrame)
        for (let turn = 0; turn < 30; turn++) await new Promise(setImmediate);
    }
    for (let turn = 0; turn < 30; turn++) await new Promise(setImmediate);
    cut(coordinator, link);
    const { clean, reason } = await end;
    assert.equal(clean, false);
    assert.match(reason, /the connection was lost$/);
    await engine.close();
  }
});

test('more data than may wait ends the link', { timeout }, async () => {
  const worker = start();
  worker.send(modelFrame);
  await worker.until('ready');
  worker.send(deployFrame, ...state);
  await worker.until('deployed');
  const quarterMiB = vector(2 ** 16);
  for (let index = 0; index < 8; index++)
    worker.send(frame('input', undefined, [quarterMiB], { epoch: 1, round: 9, microBatch: index }));
  assert.match((await worker.end).reason, /sent more than the \d+ bytes, or 100000 frames, that may wait here/);
});

test('data of another epoch is dropped: it neither fills the mailbox nor stands for the right data', {
  timeout,
}, async () => {
  const worker = start();
  worker.send(modelFrame);
  await worker.until('ready');
  worker.send(deployFrame, ...state);
  await worker.until('deployed');
  const mebibyte = vector(2 ** 18);
  for (const epoch of [0, 2, 4_000_000_000]) {
    for (let index = 0; index < 20; index++)
      worker.send(frame('input', undefined, [mebibyte], { epoch, round: 0, microBatch: index % 2 }));
  }
  worker.send(roundFrame, ...data);
  const late = (await worker.until('prepared')).control as { lossSum: number };
  const other = start();
  other.send(modelFrame);
  await other.until('ready');
  other.send(deployFrame, ...state);
  await other.until('deployed');
  other.send(roundFrame, ...data);
  const honest = (await other.until('prepared')).control as { lossSum: number };
  assert.equal(late.lossSum, honest.lossSum);
  for (const { send, end } of [worker, other]) {
    send(frame('end', { reason: 'done' }));
    assert.equal((await end).clean, true);
  }
});

test('peers that cannot be reached, or do not call, are reported when a plan needs them, and never measured', {
  timeout,
}, async () => {
  for (const list of [peers, [...peers].reverse()]) {
    const worker = start();
    worker.send(modelFrame, frame('connect', { peers: list }), frame('measure', { peers: ['b'] }));
    await worker.until('connected');
    assert.deepEqual((await worker.until('measured')).control, { links: [] });
    worker.send({ ...deployPair, control: { ...(deployPair.control as object), peers: list } }, ...state.slice(0, 4));
    const { peer, isFault } = (await worker.until('lost-peer')).control as Record<string, unknown>;
    assert.deepEqual([peer, isFault], ['b', false]);
    worker.send(frame('end', { reason: 'done' }));
    await worker.end;
  }
});

test('a gradient of another epoch from a peer is dropped', { timeout }, async () => {
  const { worker, peer } = await startWithPeer();
  worker.send(roundFrame, ...data);
  const gradient = tensor('float32', [2, 7], new Array(14).fill(1));
  await peer.send(frame('gradient', undefined, [vector(3)], { epoch: 7, round: 0, microBatch: 0 }));
  for (const microBatch of [0, 1])
    await peer.send(frame('gradient', undefined, [gradient], { epoch: 1, round: 0, microBatch }));
  const { squaredNorm } = (await worker.until('prepared')).control as { squaredNorm: number };
  assert.ok(squaredNorm > 0);
  worker.send(frame('end', { reason: 'done' }));
  assert.deepEqual(await worker.end, { clean: true, reason: 'done' });
  assert.deepEqual(await peer.ended, { clean: true, reason: 'done' });
});

test('a mistake of our own is reported to the coordinator, closes everything, and is not hidden', {
  timeout,
}, async () => {
  let isClosed = false;
  const worker = start({
    connect: () => {
      throw new TypeError('undefined is not a function');
    },
    close: async () => {
      isClosed = true;
    },
  });
  worker.send(
    modelFrame,
    frame('connect', {
      peers: [
        { name: 'z', url: 'x' },
        { name: 'a', url: 'y' },
      ],
    }),
  );
  assert.deepEqual((await worker.until('failed')).control, { message: 'undefined is not a function' });
  await assert.rejects(worker.end, TypeError);
  assert.equal(isClosed, true);
  await worker.coordinator.ended;
});

test('links that are opened after the worker has ended are closed', { timeout }, async () => {
  let accept = (_link: Link): void => {};
  let answer = (_link: Link): void => {};
  const worker = start(
    {
      connect: () =>
        new Promise((resolve) => {
          answer = resolve;
        }),
    },
    (given) => {
      accept = given;
    },
  );
  worker.send(modelFrame);
  await worker.until('ready');
  worker.send(
    frame('connect', {
      peers: [
        { name: 'z', url: 'x' },
        { name: 'a', url: 'y' },
      ],
    }),
  );
  for (let turn = 0; turn < 10; turn++) await new Promise(setImmediate);
  worker.send(frame('end', { reason: 'over' }));
  await worker.end;
  for (const open of [answer, accept]) {
    const [own, other] = createMemoryLinks('a', 'z');
    open(own);
    assert.deepEqual(await other.ended, { clean: true, reason: 'over' });
  }
});
