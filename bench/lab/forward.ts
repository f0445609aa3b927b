// Section forward: AsyncFGD's speed-ups (its Fig. 4 and App. I.2). K equal devices train MobileNetV2 by forward
// gradients: one alone (FGD), the samples shared out (FGD-DP), a pipeline whose rounds follow each other (FGD-MP) and
// one whose rounds overlap (AsyncFGD), beside backpropagation on one; each measured, and as the simulator predicts it.

import type { Plan } from '../../dist/cluster/cluster.js';
import { planTangentSteps, tangentMicroBatch } from '../../dist/planner/forward-gradient.js';
import { plan } from '../../dist/planner/plan.js';
import { finish } from '../../dist/planner/steps.js';
import { median } from '../../dist/statistics.js';
import { percent } from '../common/numbers.ts';
import { table } from '../common/table.ts';
import { type Found, type Group, type LabBench, models, openBed, optimizerState, round, roundCounts } from './group.ts';
import type { Testbed } from './testbed.ts';

/** By their number, clusters of group.ts. */
const clusters = { 2: 'twins', 3: 'triplets', 4: 'quadruplets' } as const;
const batches = [1, 4, 64] as const;
const mbps = 1000;

/** Speed-ups over FGD that the paper has with batches of one sample. */
const published: Readonly<Record<string, number>> = { 2: 1.6, 3: 2.35, 4: 3.13 };

/** How a case is planned. Absent planner: backpropagation on one device. */
interface Form {
  readonly planner: 'single' | 'straight' | 'dp';
  readonly isBackward?: true;
  readonly staleness?: 0;
}
const baseline = 'FGD, one device';
const forms: Readonly<Record<string, Form>> = {
  [baseline]: { planner: 'single' },
  'backpropagation, one device': { planner: 'single', isBackward: true },
  'FGD-DP': { planner: 'dp', staleness: 0 },
  'FGD-MP': { planner: 'straight', staleness: 0 },
  AsyncFGD: { planner: 'straight' },
};

/** A case as it is written to JSON. Times are medians of rounds. */
interface ForwardResult {
  readonly devices: number;
  readonly batch: number;
  readonly form: string;
  readonly stages: number;
  readonly measuredRoundMs: number;
  readonly predictedRoundMs: number;
}

const model = models.mobilenet;
/** Normalization by stored statistics: a sample alone has none, and groups would need an AllReduce. */
const common = ['--model', model.model, '--data', model.data, '--batch-norm', 'inference', '--no-shuffle'];
const quiet = ['--checkpoint-every', '1000000', '--eval-every', '0', '--replicate-every', '0', '--lr', '0.0001'];
const forward = ['--mode', 'forward-gradient'];

/** All cases of so many devices and samples that are asked for. */
async function casesOf(bench: LabBench, bed: Testbed, devices: number, batch: number): Promise<ForwardResult[]> {
  const wanted = Object.entries(forms).filter(
    ([form, { planner }]) =>
      `K=${devices} batch=${batch} ${form}`.includes(bench.only) && !(planner === 'dp' && batch < devices),
  );
  if (wanted.length === 0) return [];
  const microBatch = tangentMicroBatch(batch);
  const settings = [...common, ...quiet, '--batch', String(batch)];
  const profileOf = async (mode: readonly string[]) => {
    const own = [
      ...mode,
      '--micro-batch',
      String(microBatch),
      '--profile',
      'full',
      '--steps',
      '1',
      '--planner',
      'single',
    ];
    return (await bed.train([...settings, ...own], { batch })).documents();
  };
  const tangents = await profileOf(forward);
  const results: ForwardResult[] = [];
  for (const [form, { planner, isBackward = false, staleness }] of wanted) {
    const shared = { batchSize: batch, optimizerState, planner } as const;
    const found: Plan = isBackward
      ? plan({ ...shared, ...(await profileOf([])), microBatchSize: batch })
      : finish(
          planTangentSteps({
            ...{ ...shared, ...tangents, microBatchSize: microBatch, tangentCount: 1 },
            ...(staleness === undefined ? {} : { staleness }),
          }),
        );
    const predictedMs = found.predicted.roundMs;
    const { warmUp, rounds } = roundCounts(bench, predictedMs);
    const own = ['--steps', String(warmUp + rounds), '--plan', bed.writePlan(found)];
    const run = await bed.train([...settings, ...own], { batch, warmUp });
    const measuredMs = median(run.roundMs);
    results.push({
      ...{ devices, batch, form, stages: found.stages.length },
      ...{ measuredRoundMs: round(measuredMs, 4), predictedRoundMs: round(predictedMs, 4) },
    });
    bench.log(`  K=${devices} batch=${batch} ${form}: ${round(measuredMs, 4)} ms, predicted ${round(predictedMs, 4)}`);
  }
  return results;
}

/** Each case over FGD on one device of its lab. */
function speedTable(results: readonly ForwardResult[]): string {
  const over = (one: ForwardResult, key: 'measuredRoundMs' | 'predictedRoundMs'): string => {
    const single = results.find(
      ({ devices, batch, form }) => devices === one.devices && batch === one.batch && form === baseline,
    );
    return single === undefined ? '' : `${(single[key] / one[key]).toFixed(2)}x`;
  };
  return table(
    ['K', 'batch', 'form', 'stages', 'round ms', 'predicted', 'difference', 'over FGD', 'predicted', 'published'],
    results.map((one) => [
      ...[one.devices, one.batch, one.form, one.stages, one.measuredRoundMs, one.predictedRoundMs],
      ...[percent(one.measuredRoundMs / one.predictedRoundMs - 1), over(one, 'measuredRoundMs')],
      ...[over(one, 'predictedRoundMs'), one.form === 'AsyncFGD' ? `${published[one.devices]}x at batch 1` : ''],
    ]),
  );
}

export async function forwardGradients(bench: LabBench): Promise<Found> {
  const results: ForwardResult[] = [];
  for (const [count, letter] of Object.entries(clusters)) {
    const devices = Number(count);
    const isWanted = batches.some((batch) =>
      Object.keys(forms).some((form) => `K=${devices} batch=${batch} ${form}`.includes(bench.only)),
    );
    if (!isWanted) continue;
    const group: Group = {
      ...{ name: `forward-${devices}`, environment: [letter, mbps], model: 'mobilenet' },
      ...{ microBatch: 1, count: 1 },
    };
    const bed = await openBed(bench, group);
    try {
      for (const batch of batches) results.push(...(await casesOf(bench, bed, devices, batch)));
    } finally {
      await bed.close();
    }
  }
  return { key: 'forward', results, tables: [speedTable(results)] };
}
