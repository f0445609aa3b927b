// Sections infer, pipeedge and bits: inference on the devices of a lab, measured beside what the plan predicts.
// infer: four equal devices beside one, and ten plans. pipeedge: the clusters of PipeEdge's Table IV with a quarter of
// their devices, planned by `best`, `pipeedge` and `even`. bits: PipeEdge's Fig. 6, from fast links to slow ones with
// the bits of activations chosen while it runs.

import { readFileSync } from 'node:fs';
import { defined } from '../../dist/assert.js';
import type { Cluster, Plan, PlanLayout } from '../../dist/cluster/cluster.js';
import { parseCluster } from '../../dist/cluster/validate.js';
import { planInference } from '../../dist/planner/inference/plan.js';
import { median } from '../../dist/statistics.js';
import { percent } from '../common/numbers.ts';
import { table } from '../common/table.ts';
import type { Found, LabBench } from './group.ts';
import { type InferRun, inferIn, planFlags } from './infer-run.ts';
import { formOf } from './layout.ts';
import { openTestbed, type Testbed } from './testbed.ts';

interface Row {
  readonly cluster: string;
  readonly model: string;
  readonly name: string;
  readonly plan: string;
  readonly measured: number;
  readonly predicted: number;
  /** The least and the most that a device of the plan used of its quota. */
  readonly quotaUsed?: readonly [number, number];
}

/** A plan to measure, and its name in the table; without a micro-batch's size the planner chooses it. */
type Wanted = readonly [name: string, planner: string, microBatch?: number];

/** Samples of a round whose micro-batches the planner chooses. */
const freeBatch = 32;

const clusterOf = (name: string): Cluster => {
  const file = new URL(`../../clusters/${name}.yaml`, import.meta.url);
  return parseCluster(readFileSync(file, 'utf8'));
};

/** A run takes about so long by prediction, but answers at least `leastBatches` batches. */
const leastBatches = 8;

function samplesFor({ warmUpMs }: LabBench, { predicted, batchSize }: Plan): number {
  const batches = Math.ceil((predicted.samplesPerS * warmUpMs) / 1000 / batchSize);
  return batchSize * Math.max(leastBatches, batches);
}

/** Measures the devices once, then each plan that is not like one before. */
async function measure(
  bench: LabBench,
  bed: Testbed,
  { cluster: name, model, wanted }: { cluster: string; model: string; wanted: readonly Wanted[] },
): Promise<Row[]> {
  const first = await inferIn(bed, model, 8, ['--planner', 'best', '--micro-batch', '2', '--batch', '8']);
  const profile = defined(first.profile, 'a profile');
  const cluster = defined(first.cluster, 'measured links');
  const rows: Row[] = [];
  const seen = new Set<string>();
  for (const [title, planner, microBatchSize] of wanted) {
    const sizes =
      microBatchSize === undefined ? { batchSize: freeBatch } : { batchSize: 4 * microBatchSize, microBatchSize };
    const plan = planInference({ profile, cluster, planner, objective: 'throughput', ...sizes });
    if (seen.has(formOf(plan))) continue;
    seen.add(formOf(plan));
    const run = await inferIn(bed, model, samplesFor(bench, plan), planFlags(bed, plan));
    const { samplesPerS } = run;
    const row = { plan: formOf(plan), measured: samplesPerS, predicted: plan.predicted.samplesPerS };
    rows.push({ ...row, ...quotaUsed(bed, plan, run), cluster: name, model, name: title });
    bench.log(`  ${name} ${model} ${title}: ${samplesPerS.toFixed(3)}/s, predicted ${row.predicted.toFixed(3)}`);
  }
  return rows;
}

function quotaUsed(bed: Testbed, { stages }: Plan, { coresUsed }: InferRun): Pick<Row, 'quotaUsed'> {
  if (coresUsed === undefined) return {};
  const names = stages.flatMap(({ devices }) => devices);
  const shares = bed.lab.layout.devices
    .filter(({ name }) => names.includes(name))
    .map(({ name, cores }) => (coresUsed[name] ?? Number.NaN) / cores);
  return { quotaUsed: [Math.min(...shares), Math.max(...shares)] };
}

async function inLab<T>(
  bench: LabBench,
  name: string,
  cluster: Cluster,
  work: (bed: Testbed) => Promise<T>,
): Promise<T> {
  const bed = await openTestbed(cluster, { ...bench, name: `infer-${name}`.slice(0, 12) });
  bench.opened(bed);
  try {
    return await work(bed);
  } finally {
    await bed.close();
  }
}

const rowColumns = ['cluster', 'model', 'plan by', 'plan', 'samples/s', 'predicted', 'difference', 'x one device'];
const quotaColumn = 'of quotas, least and most';

function rowsTable(rows: readonly Row[]): string {
  // The fastest micro-batch of one device.
  const oneOf = ({ cluster, model }: Row) =>
    Math.max(
      ...rows
        .filter((row) => row.name === 'single' && row.cluster === cluster && row.model === model)
        .map(({ measured }) => measured),
    );
  return table(
    [...rowColumns, quotaColumn],
    rows.map((row) => [
      ...[row.cluster, row.model, row.name, row.plan, row.measured.toFixed(3), row.predicted.toFixed(3)],
      percent(row.measured / row.predicted - 1),
      (row.measured / oneOf(row)).toFixed(2),
      row.quotaUsed?.map((share) => percent(share)).join(', ') ?? '',
    ]),
  );
}

function differences(rows: readonly Row[]): string {
  const all = rows.map(({ measured, predicted }) => Math.abs(measured / predicted - 1));
  const [middle, worst] = [percent(median(all)), percent(Math.max(...all))];
  return `${rows.length} plans: the median differs by ${middle}, the worst by ${worst}.`;
}

/** More than ten plans of the first model, of different forms and micro-batches; of the others the first four. */
const manyPlans: readonly Wanted[] = [
  ['single', 'single', 2],
  ['best', 'best', 2],
  ['best, its micro-batch', 'best'],
  ['even', 'even', 2],
  ['replicas', 'dp', 4],
  ['replicas', 'dp', 8],
  ...[1, 4, 8].flatMap((size): Wanted[] => [
    ['single', 'single', size],
    ['best', 'best', size],
    ['even', 'even', size],
  ]),
];

export async function infer(bench: LabBench): Promise<Found> {
  const models = ['deit-small', 'vit-base', 'deit-tiny:input=32'].filter((model, index) =>
    bench.only === '' ? index < 2 : model === bench.only,
  );
  const rows: Row[] = [];
  for (const [index, model] of models.entries()) {
    const wanted = index === 0 ? manyPlans : manyPlans.slice(0, 4);
    const one = { cluster: 'four-equal', model, wanted };
    rows.push(...(await inLab(bench, 'equal', clusterOf('four-equal'), (bed) => measure(bench, bed, one))));
  }
  return { key: 'inference', results: rows, tables: [rowsTable(rows), differences(rows)] };
}

/** The share of a cluster's devices that run here, of each kind at least one. */
const devicesHere = 0.25;
/** What a device is limited to, at most: all are on one machine. */
const mostMiB = 1536;

/** A part of each kind of a cluster's devices, with the links between them; a lab adds no latency to these. */
function scaled({ devices, links }: Cluster): Cluster {
  const kinds = new Set(devices.map(({ kind }) => kind));
  const kept = [...kinds].flatMap((kind) => {
    const all = devices.filter((device) => device.kind === kind);
    return all.slice(0, Math.max(1, Math.round(devicesHere * all.length)));
  });
  const names = new Set(kept.map(({ name }) => name));
  const pairs = (links.pairs ?? []).filter(({ between }) => between.every((name) => names.has(name)));
  return {
    devices: kept.map((device) => ({ ...device, memoryMiB: Math.min(mostMiB, device.memoryMiB) })),
    links: {
      default: { bandwidthMbps: links.default.bandwidthMbps },
      pairs: pairs.map(({ between, bandwidthMbps }) => ({ between, bandwidthMbps })),
    },
  };
}

export async function pipeedge(bench: LabBench): Promise<Found> {
  const rows: Row[] = [];
  for (const number of [1, 2, 3, 4, 5, 6]) {
    const name = `pipeedge-${number}`;
    if (bench.only !== '' && bench.only !== name) continue;
    const model = 'deit-tiny';
    const planners = ['single', 'even', 'pipeedge', 'best'] as const;
    const one = { cluster: name, model, wanted: planners.map((planner) => [planner, planner, 2] as const) };
    rows.push(...(await inLab(bench, name, scaled(clusterOf(name)), (bed) => measure(bench, bed, one))));
  }
  const of = (cluster: string, name: string) => rows.find((row) => row.cluster === cluster && row.name === name);
  const clusters = [...new Set(rows.map(({ cluster }) => cluster))];
  const ratios = table(
    ['cluster', 'even', 'pipeedge', 'best', 'best over pipeedge', 'best over even'],
    clusters.map((cluster) => {
      // A plan like one before was not measured again.
      const even = of(cluster, 'even')?.measured ?? Number.NaN;
      const published = of(cluster, 'pipeedge')?.measured ?? even;
      const best = of(cluster, 'best')?.measured ?? published;
      const cells = [even, published, best, best / published, best / even].map((value) => value.toFixed(2));
      return [cluster, ...cells];
    }),
  );
  return { key: 'inference', results: rows, tables: [ratios, rowsTable(rows), differences(rows)] };
}

interface BitsRow {
  readonly mbps: number;
  readonly measured: number;
  readonly ofUnlimited: number;
  readonly bits: readonly number[];
  /** Samples a second that the link carries in 2 bits. */
  readonly linkLimit: number;
}

/** Links of Fig. 6; the first is as good as none. */
const bandwidths = [1000, 120, 80, 60, 40, 20, 10, 5] as const;

export async function bits(bench: LabBench): Promise<Found> {
  const model = bench.only === '' ? 'deit-tiny' : bench.only;
  const microBatchSize = 2;
  const devices = ['a', 'b'].map((name) => ({ name, memoryMiB: 1536, cores: 0.8 }));
  const cluster: Cluster = { devices, links: { default: { bandwidthMbps: bandwidths[0] } } };
  const rows = await inLab(bench, 'bits', cluster, async (bed) => {
    const first = await inferIn(bed, model, 8, ['--planner', 'best', '--micro-batch', '2', '--batch', '8']);
    const profile = defined(first.profile, 'a profile');
    const links = defined(first.cluster, 'measured links');
    const plan = planInference({
      ...{ profile, cluster: links, planner: 'even', objective: 'throughput', batchSize: 8, microBatchSize },
    });
    const cut = defined(plan.stages[0], 'a stage').layers[1];
    const sampleBits = 8 * defined(profile.layers[cut - 1], 'a layer').outputBytes;
    const found: BitsRow[] = [];
    for (const mbps of bandwidths) {
      bed.setBandwidth('a', 'b', mbps);
      const run = await inferIn(bed, model, samplesFor(bench, plan), planFlags(bed, withBits(plan)));
      found.push(bitsRow(mbps, run, found[0]?.measured, sampleBits));
      bench.log(
        `  ${model}, ${mbps} Mbps: ${run.samplesPerS.toFixed(3)}/s in ${Object.values(run.bits).join(', ')} bits`,
      );
    }
    return found;
  });
  const columns = ['Mbps', 'samples/s', 'of unlimited', 'bits at the end', 'the link carries, in 2 bits'];
  const text = table(
    columns,
    rows.map((row) => [
      ...[row.mbps, row.measured.toFixed(3), percent(row.ofUnlimited), row.bits.join(', ')],
      `${row.linkLimit.toFixed(1)}/s`,
    ]),
  );
  return { key: 'inference', results: rows, tables: [text] };
}

function withBits(plan: Plan): PlanLayout {
  return { ...plan, compression: { activation: 'uint8', adaptive: {}, exactEvery: 256 } };
}

function bitsRow(
  mbps: number,
  { samplesPerS, bits }: InferRun,
  unlimited: number | undefined,
  sampleBits: number,
): BitsRow {
  return {
    ...{ mbps, measured: samplesPerS, ofUnlimited: samplesPerS / (unlimited ?? samplesPerS) },
    ...{ bits: Object.values(bits), linkLimit: (mbps * 1e6) / (sampleBits / 16) },
  };
}
