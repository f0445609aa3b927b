// How long a peer may be silent before its link is given up: links follow the coordinator's rule. Who reads a model or
// compiles gets 30 s, everybody else 10 (transport/link.ts), on the links between workers as on the coordinator's.

import assert from 'node:assert/strict';
import { mock, test } from 'node:test';
import { handPlan } from '../../testing/hand-plans.ts';
import { startCluster } from '../../testing/memory-cluster.ts';
import { batches, dropoutNet, subjectOf } from '../../testing/training-subjects.ts';
import { createVirtualClock } from '../../testing/virtual-clock.ts';
import { WireLink } from '../../transport/wire-link.ts';
import { sliceSamples } from '../device/samples.ts';

test('silence is expected up to the first round and in a smaller one, of workers and at the coordinator', async () => {
  const net = dropoutNet();
  const subject = subjectOf(net, 4);
  const plan = handPlan(
    { schedule: '1f1b', cuts: [2], shares: [[4], [4]], microBatchCount: 1 },
    subject.sequence.layers.length,
  );
  const said = new Map<WireLink, boolean[]>();
  mock.method(WireLink.prototype, 'expectSilence', function (this: WireLink, isExpected: boolean): void {
    const all = said.get(this) ?? [];
    if (all.at(-1) !== isExpected) said.set(this, [...all, isExpected]);
  });
  const clock = createVirtualClock();
  const batch = batches(net, subject);
  const countAt = (round: number): number => (round === 2 ? 3 : 4);
  const cluster = await startCluster({
    ...{ subject, plan, clock, links: { clock, latencyMs: 200 } },
    batch: (round) => {
      const { inputs, labels } = batch(round);
      const cut = (value: typeof labels): typeof labels => sliceSamples(value, 0, 0, countAt(round));
      return { inputs: inputs.map(cut), labels: cut(labels) };
    },
    machine: {
      endRound: 6,
      batchAt: (round) => ({ sampleCount: countAt(round), factor: 4 / countAt(round) }),
    },
  });
  await clock.runUntil(cluster.reached('training'));
  const links = [...(cluster.peerLink('a', 'b') ?? []), cluster.workers.get('a')?.coordinatorLink] as WireLink[];
  await clock.runUntil(cluster.outcome());
  mock.restoreAll();
  assert.deepEqual(
    links.map((link) => said.get(link)),
    links.map(() => [true, false, true, false]),
  );
});
