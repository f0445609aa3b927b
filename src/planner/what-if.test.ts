import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, PlanLayout, Profile } from '../cluster/cluster.ts';
import { changedCluster, weightsToMove, whatIf } from './what-if.ts';

const times = { forwardMs: [[1, 1, 1, 1]], backwardMs: [[2, 2, 2, 2]] };
const profile: Profile = {
  model: 'four',
  inputBytes: 0,
  labelBytes: 0,
  layers: ['a', 'b', 'c', 'd'].map((name) => ({ name, outputBytes: 10, weightBytes: 1000, savedBytes: 10, flops: 1 })),
  batchSizes: [1],
  devices: { board: times },
};
const cluster: Cluster = {
  devices: ['x', 'y', 'z'].map((name) => ({ name, kind: 'board', memoryMiB: 100 })),
  links: { default: { bandwidthMbps: 8, latencyMs: 1 }, pairs: [{ between: ['x', 'z'], bandwidthMbps: 80 }] },
};

function layout(
  ...stages: readonly (readonly [layers: readonly [number, number], devices: readonly string[]])[]
): PlanLayout {
  return {
    planner: 'test',
    schedule: '1f1b',
    batchSize: 8,
    microBatchSize: 2,
    microBatchCount: 4,
    stages: stages.map(([layers, devices], stage) => ({
      layers,
      devices,
      samples: devices.length === 2 ? [1, 1] : [2],
      inFlight: 2 * (stages.length - stage) - 1,
    })),
  };
}

test('each device fetches missing layers from the holder whose link is done first', () => {
  const before = layout(
    [
      [0, 2],
      ['x', 'y'],
    ],
    [[2, 4], ['z']],
  );
  const after = layout(
    [
      [0, 3],
      ['x', 'z'],
    ],
    [[3, 4], ['y']],
  );
  // x lacks c (z has it, 80 Mbps: 0.1 ms); z lacks a and b (x at 80 Mbps: 0.1 ms each); y lacks d (z at 8 Mbps: 1 ms
  // and 1 ms of latency).
  const move = weightsToMove(before, after, profile, cluster, 0);
  assert.deepEqual(move.transfers, [
    { from: 'z', to: 'x', bytes: 1000 },
    { from: 'x', to: 'z', bytes: 2000 },
    { from: 'z', to: 'y', bytes: 1000 },
  ]);
  assert.deepEqual([move.bytes, move.lostBytes, move.moveMs], [4000, 0, 2]);
  assert.equal(weightsToMove(before, after, profile, cluster, 2).bytes, 12_000, 'Adam keeps two copies more');
  assert.equal(weightsToMove(before, before, profile, cluster, 0).bytes, 0);
});

test('layers whose only holder left the cluster are lost', () => {
  const changed = changedCluster(cluster, [{ kind: 'leave', device: 'z' }]);
  assert.deepEqual(
    changed.devices.map(({ name }) => name),
    ['x', 'y'],
  );
  assert.deepEqual(changed.links.pairs, []);
  const move = weightsToMove(
    layout(
      [
        [0, 2],
        ['x', 'y'],
      ],
      [[2, 4], ['z']],
    ),
    layout([[0, 2], ['x']], [[2, 4], ['y']]),
    profile,
    changed,
    0,
  );
  assert.deepEqual([move.bytes, move.lostBytes, move.transfers.length], [2000, 2000, 0]);
});

test('links change individually or all together; unspecified values stay', () => {
  const pair = changedCluster(cluster, [{ kind: 'link', between: ['z', 'x'], speed: { bandwidthMbps: 1 } }]);
  assert.deepEqual(pair.links.pairs, [{ between: ['z', 'x'], bandwidthMbps: 1 }]);
  const all = changedCluster(cluster, [{ kind: 'link', speed: { bandwidthMbps: 1 } }]);
  assert.deepEqual(all.links.default, { bandwidthMbps: 1, latencyMs: 1 });
});

const input = {
  cluster,
  profileFor: () => profile,
  batchSize: 8,
  microBatchSize: 2,
  optimizerState: 0 as const,
  planner: 'single',
};

test('a slow device: what the plan gives before and after, and the plan that avoids it', () => {
  // One board: 8 samples of 4 layers, 3 ms each: 96 ms; at half speed twice that; the others are unchanged.
  const { before, kept, after, move } = whatIf({ ...input, changes: [{ kind: 'slow', device: 'x', share: 0.5 }] });
  assert.deepEqual([before.predicted.roundMs, kept?.predicted.roundMs, after.predicted.roundMs], [96, 192, 96]);
  assert.deepEqual([before.stages[0]?.devices, after.stages[0]?.devices], [['x'], ['y']]);
  // 4000 bytes at 8 Mbps take 4 ms, and 1 ms of latency.
  assert.deepEqual([move.bytes, move.moveMs], [4000, 5]);
});

test('a device that leaves invalidates the plan; one that joins needs times', () => {
  const { kept, after } = whatIf({ ...input, changes: [{ kind: 'leave', device: 'x' }] });
  assert.equal(kept, undefined);
  assert.deepEqual(after.stages[0]?.devices, ['y']);
  const fast = { name: 'w', kind: 'racer', memoryMiB: 100 };
  const racer = { forwardMs: [[0.5, 0.5, 0.5, 0.5]], backwardMs: [[1, 1, 1, 1]] };
  const joined = whatIf({
    ...input,
    profileFor: () => ({ ...profile, devices: { ...profile.devices, racer } }),
    changes: [{ kind: 'join', device: fast }],
  });
  assert.equal(joined.after.predicted.roundMs, 48);
  assert.equal(joined.kept?.predicted.roundMs, 96);
  assert.throws(() => whatIf({ ...input, changes: [{ kind: 'join', device: fast }] }), /no times for device "w"/);
});

test('an impossible change is one sentence', () => {
  const says = (change: Parameters<typeof changedCluster>[1][number], message: string | RegExp, of = cluster): void =>
    assert.throws(() => whatIf({ ...input, cluster: of, changes: [change] }), { name: 'InputError', message });
  says({ kind: 'leave', device: 'q' }, 'The cluster has no device "q"; name one of x, y, z.');
  says(
    { kind: 'slow', device: 'x', share: 0 },
    'Device "x" at 0 of its speed does no work; give a share above 0, or let it leave.',
  );
  says(
    { kind: 'leave', device: 'x' },
    'Device "x" holds the data and cannot leave; name another dataDevice in the cluster first.',
    {
      ...cluster,
      dataDevice: 'x',
    },
  );
  says(
    { kind: 'link', speed: { bandwidthMbps: -3 } },
    'the changed cluster: links.default.bandwidthMbps is -3; give a number above 0 (megabits a second).',
  );
  says({ kind: 'join', device: { name: 'x', memoryMiB: 1 } }, /^the changed cluster: devices\[3\]\.name repeats "x"/);
  assert.throws(() => whatIf({ ...input, planner: 'hetpipe', changes: [{ kind: 'leave', device: 'x' }] }), {
    name: 'InputError',
    message: /^The plans of planner "hetpipe" are not pipelines/,
  });
});
