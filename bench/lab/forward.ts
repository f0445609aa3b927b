// Section forward: AsyncFGD's speed-ups (its Fig. 4 and App. I.2). K of four equal devices train MobileNetV2 by
// forward gradients: one alone (FGD), the samples shared out (FGD-DP), a pipeline whose rounds follow each other (FGD-
// MP), one whose rounds overlap (AsyncFGD), and the plan that a run would take (best: stages, groups or both); each
// measured, and as the simulator predicts it. One lab and one profile serve all cases; a run is short, since each is
// compared with others that are as short.

import type { Cluster, Plan, Profile } from '../../dist/cluster/cluster.js';
import { planTangentSteps, tangentMicroBatch } from '../../dist/planner/forward-gradient.js';
import { finish } from '../../dist/planner/steps.js';
import { median } from '../../dist/statistics.js';
import { percent } from '../common/numbers.ts';
import { table } from '../common/table.ts';
import { type Found, type Group, type LabBench, models, openBed, optimizerState, round } from './group.ts';
import type { RunDocuments, Testbed } from './testbed.ts';

const counts = [2, 3, 4] as const;
const batches = [1, 4, 64] as const;
const group: Group = {
  ...{ name: 'forward', environment: ['quadruplets', 1000], model: 'mobilenet' },
  ...{ microBatch: 1, count: 1 },
};

/** Speed-ups over FGD that the paper has with batches of one sample. */
const published: Readonly<Record<string, number>> = { 2: 1.6, 3: 2.35, 4: 3.13 };

/** How a case is planned. */
interface Form {
  readonly planner: 'single' | 'straight' | 'dp' | 'best';
  readonly staleness?: 0;
}
const baseline = 'FGD';
const forms: Readonly<Record<string, Form>> = {
  [baseline]: { planner: 'single' },
  'FGD-DP': { planner: 'dp', staleness: 0 },
  'FGD-MP': { planner: 'straight', staleness: 0 },
  AsyncFGD: { planner: 'straight' },
  best: { planner: 'best' },
};

interface Case {
  readonly devices: number;
  readonly batch: number;
  readonly form: string;
}
/** A case as it is written to JSON. Times are medians of rounds. */
interface ForwardResult extends Case {
  readonly stages: number;
  readonly measuredRoundMs: number;
  readonly predictedRoundMs: number;
}

/** FGD on one device, and for each number of devices the others, as far as there is a sample for each. */
const cases: readonly Case[] = [1, ...counts].flatMap((devices) =>
  batches.flatMap((batch) =>
    Object.entries(forms).flatMap(([form, { planner }]) =>
      (planner === 'single') === (devices === 1) && (planner !== 'dp' || batch >= devices)
        ? [{ devices, batch, form }]
        : [],
    ),
  ),
);

/** Rounds before those that count, and these: as many as take that long, within limits. */
const [warmUpMs, countedMs] = [8000, 10_000];
const [leastRounds, mostRounds] = [4, 60];

const model = models.mobilenet;
/** Normalization by stored statistics: a sample alone has none, and groups would need an AllReduce. */
const common = ['--model', model.model, '--data', model.data, '--batch-norm', 'inference', '--no-shuffle'];
const quiet = ['--checkpoint-every', '1000000', '--eval-every', '0', '--replicate-every', '0', '--lr', '0.0001'];

/** The lab's profile for every batch, by a run of one round. */
async function profiled(bed: Testbed): Promise<RunDocuments> {
  const batch = Math.max(...batches);
  const sizes = ['--batch', String(batch), '--micro-batch', String(tangentMicroBatch(batch))];
  const own = ['--mode', 'forward-gradient', '--profile', 'full', '--steps', '1', '--planner', 'single'];
  return (await bed.train([...common, ...quiet, ...sizes, ...own], { batch })).documents();
}

function planOf({ devices, batch, form }: Case, { profile, cluster }: RunDocuments): Plan {
  const { planner, staleness } = forms[form] as Form;
  return finish(
    planTangentSteps({
      ...{ ...some(profile, cluster, devices), batchSize: batch, optimizerState, planner, tangentCount: 1 },
      microBatchSize: tangentMicroBatch(batch),
      ...(staleness === undefined ? {} : { staleness }),
    }),
  );
}

/** The first devices alone, and the links between them. */
function some(profile: Profile, cluster: Cluster, count: number): { profile: Profile; cluster: Cluster } {
  const devices = cluster.devices.slice(0, count);
  const names = new Set(devices.map(({ name }) => name));
  const { pairs = [], ...links } = cluster.links;
  const between = pairs.filter((pair) => pair.between.every((name) => names.has(name)));
  const times = devices.map(({ name }) => [name, profile.devices[name] as Profile['devices'][string]] as const);
  return {
    profile: { ...profile, devices: Object.fromEntries(times) },
    cluster: { ...cluster, devices, links: { ...links, pairs: between } },
  };
}

async function measured(bench: LabBench, bed: Testbed, one: Case, plan: Plan): Promise<ForwardResult> {
  const { devices, batch, form } = one;
  const predictedMs = plan.predicted.roundMs;
  const roundsIn = (ms: number): number =>
    Math.min(mostRounds, bench.rounds * leastRounds, Math.max(leastRounds, Math.ceil(ms / predictedMs)));
  const [warmUp, rounds] = [roundsIn(warmUpMs), roundsIn(countedMs)];
  const sizes = ['--batch', String(batch), '--steps', String(warmUp + rounds), '--plan', bed.writePlan(plan)];
  const startMs = performance.now();
  const run = await bed.train([...common, ...quiet, ...sizes], { batch, warmUp });
  const result = {
    ...{ devices, batch, form, stages: plan.stages.length },
    ...{ measuredRoundMs: round(median(run.roundMs), 4), predictedRoundMs: round(predictedMs, 4) },
  };
  const [ms, seconds] = [result.measuredRoundMs, round((performance.now() - startMs) / 1000)];
  bench.log(`  ${nameOf(one)}: ${ms} ms, predicted ${result.predictedRoundMs} (${rounds} rounds, ${seconds} s)`);
  return result;
}

function nameOf({ devices, batch, form }: Case): string {
  return `K=${devices} batch=${batch} ${form}`;
}

/** Each case over FGD on one device. */
function speedTable(results: readonly ForwardResult[]): string {
  const over = (one: ForwardResult, key: 'measuredRoundMs' | 'predictedRoundMs'): string => {
    const single = results.find(({ batch, form }) => batch === one.batch && form === baseline);
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
  const wanted = cases.filter((one) => nameOf(one).includes(bench.only));
  const bed = await openBed(bench, group);
  try {
    const documents = await profiled(bed);
    const results: ForwardResult[] = [];
    for (const one of wanted) results.push(await measured(bench, bed, one, planOf(one, documents)));
    return { key: 'forward', results, tables: [speedTable(results)] };
  } finally {
    await bed.close();
  }
}
