import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, PlanLayout, Profile } from '../../cluster/cluster.ts';
import { replicationInterval } from './replication.ts';

const layers = ['p', 'q'].map((name) => ({ name, outputBytes: 0, weightBytes: 10_000, savedBytes: 0, flops: 1 }));
const profile: Profile = {
  ...{ model: 'two', inputBytes: 0, labelBytes: 0, layers, batchSizes: [1] },
  devices: { board: { forwardMs: [[1, 1]], backwardMs: [[1, 1]] } },
};
/** One micro-batch: p and q forward, q and p backward, 4 ms. */
const plan: PlanLayout = {
  ...{ planner: 'test', schedule: '1f1b', batchSize: 1, microBatchSize: 1, microBatchCount: 1 },
  stages: [
    { layers: [0, 1], devices: ['a'], samples: [1], inFlight: 1 },
    { layers: [1, 2], devices: ['b'], samples: [1], inFlight: 1 },
  ],
};
/** Links that carry this many bytes a millisecond. */
const cluster = (bytesPerMs: number): Cluster => ({
  devices: ['a', 'b'].map((name) => ({ name, kind: 'board', memoryMiB: 1 })),
  links: { default: { bandwidthMbps: (bytesPerMs * 8) / 1000 } },
});

test('every round if the links have the time; both copies count; the optimizer state travels, too', () => {
  assert.deepEqual(replicationInterval({ plan, profile, cluster: cluster(2500) }), {
    everyRounds: 1,
    bytesPerRound: 20_000,
    predictedCost: 0,
  });
  assert.equal(replicationInterval({ plan, profile, cluster: cluster(2500), optimizerState: 2 }).bytesPerRound, 60_000);
  const frozen = {
    ...profile,
    layers: layers.map((layer, index) => (index === 0 ? { ...layer, frozenBytes: 10_000 } : layer)),
  };
  assert.equal(
    replicationInterval({ plan, profile: frozen, cluster: cluster(2500) }).bytesPerRound,
    10_000,
    'frozen weights do not change',
  );
});

test('if a copy exceeds the idle time of a round: the shortest interval within the limit, and its cost', () => {
  // A copy takes 10 ms; in a round of 4 ms both links are idle; 4 · 1.03 = 4.12 ms a round are allowed: 2.43 rounds,
  // rounded up to 3, which hold 12 ms.
  assert.deepEqual(replicationInterval({ plan, profile, cluster: cluster(1000) }), {
    everyRounds: 3,
    bytesPerRound: 20_000,
    predictedCost: 0,
  });
  // 10 ms in 2 rounds of 4 ms: 2 ms over, a quarter of the 8 ms.
  const { everyRounds, predictedCost } = replicationInterval({ plan, profile, cluster: cluster(1000), limit: 0.25 });
  assert.deepEqual([everyRounds, predictedCost], [2, 0.25]);
});

test('traffic of the pipeline is not idle time', () => {
  // 3,000 bytes forward take 3 ms on a->b and as long back on b->a: the round is 10 ms, of which each link is idle for
  // 7.
  const busy = { ...profile, layers: layers.map((layer) => ({ ...layer, outputBytes: 3000 })) };
  const half = replicationInterval({ plan, profile: busy, cluster: cluster(1000), limit: 0.001 });
  assert.deepEqual(half, { everyRounds: 2, bytesPerRound: 20_000, predictedCost: 0 });
  assert.equal(replicationInterval({ plan, profile: busy, cluster: cluster(1000), limit: 0.3 }).everyRounds, 1);
});

test('no copies cost nothing; a limit of 0 is refused', () => {
  const alone: PlanLayout = { ...plan, stages: [{ layers: [0, 2], devices: ['a'], samples: [1], inFlight: 1 }] };
  assert.deepEqual(replicationInterval({ plan: alone, profile, cluster: cluster(1) }), {
    everyRounds: 1,
    bytesPerRound: 0,
    predictedCost: 0,
  });
  assert.throws(() => replicationInterval({ plan, profile, cluster: cluster(1), limit: 0 }), {
    name: 'InputError',
    message: "The limit of replication's cost is 0; give a fraction above 0, such as 0.03.",
  });
});
