// Frozen weights never change, and the coordinator has them: no copy holds them, and whoever takes the place of a lost
// device gets them from the coordinator, and the trained ones from the copy. In every mode the losses are those of a
// run in which nothing happened.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { PlanLayout } from '../../cluster/cluster.ts';
import { forwardOnlyCount } from '../../graph/layers.ts';
import { adaptable, addAdapters, isAdapterName } from '../../graph/lora.ts';
import { withStaleness } from '../../schedule/staleness.ts';
import { delayedOracle } from '../../testing/delayed-oracle.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import { difference, type MemoryRun, type Outcome, runAlone, startCluster } from '../../testing/memory-cluster.ts';
import { batches, residualNet, subjectOf, type TestNet, transformerNet } from '../../testing/training-subjects.ts';
import type { TrainingSpec } from '../protocol/training-spec.ts';
import { StreamParts } from './delayed-streams.ts';

const endRound = 6;

/** Every second parameter of the net, first and last layers among them. */
function halfOf({ graph }: TestNet): readonly string[] {
  return graph.parameters.filter((_, index) => index % 2 === 0);
}

/** The net with adapters beside its first three weights that can have any; nothing else is trained. */
function adapted(net: TestNet): readonly [net: TestNet, frozen: readonly string[]] {
  const wanted = adaptable(net.graph).slice(0, 3);
  const options = { rank: 2, scaling: 2, dropout: 0.1 };
  const { graph } = addAdapters(net.graph, new Map(wanted.map((name) => [name, options])), 1);
  return [{ ...net, graph }, graph.parameters.filter((name) => !isAdapterName(name))];
}

const forwardGradient: NonNullable<TrainingSpec['forwardGradient']> = {
  ...{ tangentCount: 2, kind: 'rademacher', scales: {}, roundsPerEpoch: 4 },
};

function runOf(net: TestNet, schedule: string, training: Partial<TrainingSpec>): MemoryRun {
  const subject = subjectOf(net, 8, training);
  const layerCount = subject.sequence.layers.length;
  const cuts = [Math.floor(layerCount / 3), Math.floor((2 * layerCount) / 3)];
  const hand = handPlan({ schedule, cuts, shares: [[4], [4], [4]], microBatchCount: 2 }, layerCount);
  const isStream = schedule !== '1f1b';
  const tangents = training.forwardGradient === undefined ? {} : { tangentCount: 2 };
  const plan: PlanLayout = { ...hand, forwardOnlyLayers: forwardOnlyCount(subject.sequence), ...tangents };
  const rate = training.forwardGradient === undefined ? 0.1 : 1e-3;
  return {
    subject,
    batch: batches(net, subject),
    plan: isStream ? withStaleness(plan, {}) : plan,
    machine: { endRound, checkpointEvery: 100, learningRate: () => rate },
  };
}

/** Trains, and loses a device when the third round's state has been copied. `copied`: what copies held. */
async function withLoss(
  run: MemoryRun,
  device: string,
): Promise<{ outcome: Outcome; copied: Set<string>; parts: StreamParts }> {
  const copied = new Set<string>();
  const tamper = (message: Uint8Array): readonly Uint8Array[] => {
    const [, name] = /replica.*?"role":"\w+","name":"([^"]+)"/s.exec(Buffer.from(message).toString('latin1')) ?? [];
    if (name !== undefined) copied.add(name);
    return [message];
  };
  const parts = new StreamParts();
  const cluster = await startCluster({
    ...run,
    linkBetween: (a, b) => ([a, b].includes('coordinator') ? undefined : { tamper }),
    observe: (event, seen) => {
      parts.observe(event, seen.losses.length);
      if (event.kind === 'replicated' && event.round >= 2 && seen.workers.has(device))
        queueMicrotask(() => seen.kill(device));
    },
  });
  const outcome = await cluster.outcome();
  const recovered = cluster.events.filter((event) => event.kind === 'recovering');
  assert.deepEqual(
    recovered.map((event) => event.kind === 'recovering' && [event.source, event.lost]),
    [['devices', [device]]],
  );
  return { outcome, copied, parts };
}

const [loraNet, loraFrozen] = adapted(transformerNet());
const cases: readonly (readonly [
  title: string,
  net: TestNet,
  schedule: string,
  training: Partial<TrainingSpec>,
  lost: string,
])[] = [
  ['--freeze', residualNet(), '1f1b', { frozen: halfOf(residualNet()) }, 'bc'],
  ['adapters', loraNet, '1f1b', { frozen: loraFrozen }, 'ab'],
  ['adapters, asynchronous', loraNet, 'async', { frozen: loraFrozen }, 'b'],
  [
    '--freeze, forward gradients',
    residualNet(),
    'forward-gradient',
    { frozen: halfOf(residualNet()), forwardGradient },
    'c',
  ],
];

for (const [title, net, schedule, training, lost] of cases)
  for (const device of lost)
    test(`${title}: ${device} is lost; copies had no frozen weights, and losses are as if it were not`, async () => {
      const run = runOf(net, schedule, training);
      const { outcome, copied, parts } = await withLoss(run, device);
      const frozen = new Set(training.frozen);
      const { sequence } = run.subject;
      assert.deepEqual(
        [...copied].filter((name) => frozen.has(name)),
        [],
      );
      const trained = sequence.graph.parameters.filter((name) => !frozen.has(name));
      assert.ok(copied.size >= trained.length, `${copied.size} copied`);
      const alone =
        schedule === '1f1b'
          ? await runAlone({ ...run, microBatchSize: 4 })
          : { ...outcome, ...(await delayedOracle(run, parts.parts, endRound)) };
      const { loss, weight, worst } = difference(outcome, alone);
      assert.equal(outcome.losses.length, endRound);
      assert.ok(loss <= 1e-5 && weight <= 1e-5, `losses differ by ${loss}, ${worst} by ${weight}`);
    });
