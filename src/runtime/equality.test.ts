import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { PlanLayout } from '../cluster/cluster.ts';
import { inFlight } from '../schedule/generate.ts';
import { difference, type MemoryRun, type Outcome, runAlone, runCluster } from '../testing/memory-cluster.ts';
import * as nets from '../testing/training-subjects.ts';

interface Shape {
  readonly schedule: 'gpipe' | '1f1b';
  readonly cuts: readonly number[];
  readonly shares: readonly (readonly number[])[];
  readonly microBatchCount: number;
}

function planOf({ schedule, cuts, shares, microBatchCount }: Shape, layerCount: number): PlanLayout {
  const borders = [0, ...cuts, layerCount];
  const microBatchSize = (shares[0] as readonly number[]).reduce((a, b) => a + b, 0);
  let device = 0;
  return {
    planner: 'by hand', schedule, batchSize: microBatchSize * microBatchCount, microBatchSize, microBatchCount,
    stages: shares.map((samples, stage) => ({
      layers: [borders[stage] as number, borders[stage + 1] as number],
      devices: samples.map(() => `d${device++}`),
      samples,
      inFlight: inFlight(schedule, stage, shares.length, microBatchCount),
    })),
  };
}

for (const make of [nets.residualNet, nets.transformerNet, nets.dropoutNet, nets.sequenceFirstNet, nets.regressionNet]) {
  const net = make();
  test(net.graph.name, async () => {
    const alone = new Map<string, Outcome>();
    for (const shares of [[[3, 1]], [[5, 2, 1]], [[4], [4]], [[2, 2], [4]], [[4], [1, 3]], [[2, 2], [3, 1]], [[4], [2, 2], [4]], [[4, 0], [4]], [[4], [0, 4]]]) {
      for (const microBatchCount of [1, 2, 4]) {
        const size = (shares[0] as number[]).reduce((a, b) => a + b, 0);
        const subject = nets.subjectOf(net, size * microBatchCount);
        const n = subject.sequence.layers.length;
        const cuts = shares.length === 1 ? [] : shares.length === 2 ? [Math.floor(n / 2)] : [1, n - 1];
        const plan = planOf({ schedule: microBatchCount === 2 ? 'gpipe' : '1f1b', cuts, shares, microBatchCount }, n);
        const run: MemoryRun = { subject, batch: nets.batches(net, subject), plan };
        const key = `${size}x${microBatchCount}`;
        if (!alone.has(key)) alone.set(key, await runAlone({ ...run, microBatchSize: size }));
        const t = performance.now();
        try {
          const out = await runCluster(run);
          const d = difference(out, alone.get(key) as Outcome);
          console.log(JSON.stringify(shares), microBatchCount, d.loss.toExponential(1), d.weight.toExponential(1), d.worst, (performance.now() - t).toFixed(0), out.losses.join(' '), out.correctCounts.join(' '));
        } catch (e) { console.log(JSON.stringify(shares), microBatchCount, String(e)); }
      }
    }
    assert.ok(true);
  });
}
