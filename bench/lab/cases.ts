// Cases: plans of a group, each measured and predicted. Sections forms, links and table4 have them.

import { defined } from '../../dist/assert.js';
import type { PlanLayout } from '../../dist/cluster/cluster.js';
import { processMiB } from '../../dist/cluster/memory.js';
import { bufferBytes } from '../../dist/graph/layers.js';
import { buildModel } from '../../dist/models/zoo.js';
import { plan } from '../../dist/planner/plan.js';
import { trainedLayers } from '../../dist/runtime/run/fine-tuning.js';
import { scheduleOf } from '../../dist/schedule/schedules.js';
import { median } from '../../dist/statistics.js';
import { percent, sum } from '../common/numbers.ts';
import { table } from '../common/table.ts';
import {
  type Found,
  type Group,
  type LabBench,
  measured,
  models,
  openGroup,
  optimizerState,
  type ReadyGroup,
  round,
} from './group.ts';
import { type Form, formOf, layoutOf } from './layout.ts';
import type { TrainRun } from './testbed.ts';

/** How a case's plan comes about. `microBatch`: the group's batch, in micro-batches of another size. */
export type Case =
  | { readonly kind: 'planned'; readonly planner: string; readonly schedule?: string }
  | ({ readonly kind: 'grouped'; readonly microBatch?: number } & Form);

export interface CaseGroup extends Group {
  readonly cases: Readonly<Record<string, Case>>;
  /** Samples of a micro-batch with which the fastest device alone is fastest. */
  readonly microBatchOfOne?: number;
}

/** A planner's plan. */
export const planned = (planner: string, schedule?: string): Case => ({
  kind: 'planned',
  planner,
  ...(schedule === undefined ? {} : { schedule }),
});

/** Devices in groups. */
export const grouped = (
  groups: Form['groups'],
  schedule: string,
  more: { readonly cuts?: readonly number[]; readonly microBatch?: number } = {},
): Case => ({ kind: 'grouped', groups, schedule, ...more });

/** An AllReduce of a whole model. Bytes are a member's sum. */
interface AllReduceResult {
  readonly bytes: number;
  readonly measuredMs: number;
  readonly idealMs: number;
  readonly idealOfTcpMs: number;
  /** Bytes sent over those of the ideal, as a fraction. */
  readonly overhead: number;
}

/** A case as it is written to JSON. Times are medians of rounds. */
export interface CaseResult {
  readonly cluster: string;
  readonly model: string;
  readonly form: string;
  readonly plan: string;
  readonly measuredRoundMs: number;
  readonly predictedRoundMs: number;
  readonly difference: number;
  readonly settledRoundMs: number;
  readonly settledDifference: number;
  readonly correctedRoundMs: number;
  readonly checkedRoundMs: number;
  readonly correctedDifference: number;
  readonly workFactors: Readonly<Record<string, number>>;
  readonly speedupOverBestDevice: number | null;
  readonly linkUtilisation: number;
  readonly busiestLink: string | null;
  readonly utilisationWhileSending: number;
  readonly allReduce: AllReduceResult | null;
  readonly memory: readonly { readonly device: string; readonly measuredMiB: number; readonly predictedMiB: number }[];
  readonly stolen: number;
  readonly coresUsed: Readonly<Record<string, number>>;
  readonly roundsMs: readonly number[];
}

/** Planners end after `planningMs`, as `asteroid plan` does for somebody who waits no longer. */
function layoutFor(how: Case, { profile, cluster, sizes, batch }: ReadyGroup, planningMs: number): PlanLayout {
  if (how.kind === 'grouped') {
    const { microBatch = sizes.microBatchSize } = how;
    return layoutOf(profile, cluster, { ...how, microBatchSize: microBatch, microBatchCount: batch / microBatch });
  }
  const startMs = performance.now();
  return plan({
    profile,
    cluster,
    batchSize: batch,
    microBatchSize: sizes.microBatchSize,
    planner: how.planner,
    optimizerState,
    replicateBatchDependent: true,
    isTimeUp: () => performance.now() - startMs > planningMs,
    ...(how.schedule === undefined ? {} : { schedule: how.schedule }),
  });
}

/** All cases of these groups that are asked for, with their tables. */
export async function casesOf(bench: LabBench, groups: readonly CaseGroup[]): Promise<Found & { cases: CaseResult[] }> {
  const cases: CaseResult[] = [];
  for (const group of groups) cases.push(...(await runCases(bench, group)));
  return { key: 'cases', results: cases, cases, tables: [casesTable(cases), memoryTable(cases), linksTable(cases)] };
}

/** All cases of a group that are asked for; the best single device is the first, unless it is left out. */
async function runCases(bench: LabBench, group: CaseGroup): Promise<CaseResult[]> {
  const words = bench.only.split(' ');
  const wanted = Object.entries(group.cases).filter(([form]) =>
    words.every((word) => `${group.name} ${form}`.includes(word)),
  );
  if (wanted.length === 0) return [];
  let ready = await openGroup(bench, group, { copies: false });
  try {
    const results: CaseResult[] = [];
    const ofOne = group.microBatchOfOne === undefined ? {} : { microBatch: group.microBatchOfOne };
    const single = [`one device, ${ready.fastest}`, grouped([[ready.fastest]], '1f1b', ofOne)] as const;
    for (const [form, how] of bench.skipSingle ? wanted : [single, ...wanted]) {
      if (bench.profileEach && results.length > 0) {
        ready.bed.forgetProfiles();
        ready = await measured(bench, group, ready.bed, { copies: false });
      }
      const layout = layoutFor(how, ready, bench.planningMs);
      const single = bench.skipSingle ? 'skipped' : (results[0] ?? 'this');
      const result = caseResult({ group, form, layout, ready, run: await ready.run(layout), single });
      results.push(result);
      bench.log(`  ${logLine(result)}`);
    }
    return results;
  } finally {
    await ready.bed.close();
  }
}

function logLine(one: CaseResult): string {
  const speedup = one.speedupOverBestDevice ?? '?';
  return [
    `${one.form}: measured ${one.measuredRoundMs} ms`,
    `predicted ${one.predictedRoundMs} (${percent(one.difference)})`,
    `after the warm-up ${one.settledRoundMs} (${percent(one.settledDifference)})`,
    `every other round ${one.checkedRoundMs}`,
    `corrected by those between ${one.correctedRoundMs} (${percent(one.correctedDifference)})`,
    `${speedup}x`,
    `busiest link ${percent(one.linkUtilisation)}; cores ${Object.values(one.coresUsed).join(' ')}; ` +
      `work over profile ${Object.values(one.workFactors).join(' ')}; the host took ${percent(one.stolen)}`,
  ].join(', ');
}

interface MeasuredCase {
  readonly group: CaseGroup;
  readonly form: string;
  readonly layout: PlanLayout;
  readonly ready: ReadyGroup;
  readonly run: TrainRun;
  /** The best device's case, which may be this one. */
  readonly single: CaseResult | 'this' | 'skipped';
}

/**
 * A host shared with others becomes faster and slower by a third within seconds, whatever was measured before. So every
 * other round corrects the profile, by the processor time that devices reported of it, and the rounds between these are
 * predicted: they had the same host, and the prediction has not seen them.
 */
function corrections({ layout, ready, run }: MeasuredCase) {
  const [telling = [], checking = []] = [0, 1].map((parity) =>
    run.roundMs.map((_, index) => index).filter((index) => index % 2 === parity),
  );
  const after = telling.map((index) =>
    ready.predictAfter(
      layout,
      Object.fromEntries(
        Object.entries(run.rounds).map(([device, all]) => [device, defined(all[index], `a round of ${device}`)]),
      ),
    ),
  );
  const names = layout.stages.flatMap(({ devices }) => devices);
  return {
    correctedMs: median(after.map(({ roundMs }) => roundMs)),
    checkedMs: median(checking.map((index) => defined(run.roundMs[index], 'a round'))),
    // What is known when these rounds begin: the rounds before them have checked the profile on the real stages.
    settledMs: median(run.settled.map((one) => ready.predictAfter(layout, one).roundMs)),
    workFactors: Object.fromEntries(
      names.map((device) => [device, round(median(after.map(({ factors }) => factors[device] ?? 1)))]),
    ),
  };
}

function caseResult(one: MeasuredCase): CaseResult {
  const { group, form, layout, ready, run } = one;
  const { devices, roundMs: predictedMs } = ready.predict(layout);
  // Rounds that overlap end in bursts: what counts is how many end in a time. The last one's end waits for no other.
  const { isStream } = scheduleOf(layout.schedule);
  const steady = run.roundMs.slice(0, -1);
  const measuredMs = isStream ? sum(steady) / steady.length : median(run.roundMs);
  const names = layout.stages.flatMap(({ devices: own }) => own);
  const { correctedMs, checkedMs, settledMs, workFactors } = corrections(one);
  const busiest = run.links.toSorted((a, b) => b.use - a.use)[0];
  const sender = busiest?.link.split('->')[0] ?? '';
  return {
    cluster: group.name,
    model: models[group.model].model,
    form,
    plan: formOf(layout),
    measuredRoundMs: round(measuredMs, 4),
    predictedRoundMs: round(predictedMs, 4),
    difference: round(measuredMs / predictedMs - 1),
    settledRoundMs: round(settledMs, 4),
    settledDifference: round(measuredMs / settledMs - 1),
    correctedRoundMs: round(correctedMs, 4),
    checkedRoundMs: round(checkedMs, 4),
    correctedDifference: round(checkedMs / correctedMs - 1),
    workFactors,
    speedupOverBestDevice: speedup(one.single, measuredMs),
    linkUtilisation: round(busiest?.use ?? 0),
    busiestLink: busiest?.link ?? null,
    utilisationWhileSending: round(run.sending[sender]?.use ?? 0),
    allReduce: layout.stages.length === 1 && names.length > 1 ? allReduceOf(one, names, busiest?.mbps) : null,
    memory: names.map((device) => ({
      device,
      measuredMiB: round(run.peakMemoryMiB[device] ?? 0),
      predictedMiB: round(processMiB + defined(devices[device], device).peakMemoryMiB),
    })),
    stolen: round(run.stolen, 2),
    coresUsed: Object.fromEntries(names.map((device) => [device, round(run.coresUsed[device] ?? 0)])),
    roundsMs: run.roundMs.map((ms) => round(ms, 4)),
  };
}

function speedup(single: MeasuredCase['single'], measuredMs: number): number | null {
  if (single === 'skipped') return null;
  return round(single === 'this' ? 1 : single.measuredRoundMs / measuredMs);
}

/** Of a model's batch statistics, which are averaged with the gradients. */
function statisticBytes(spec: string): number {
  const tuning = { loss: 'cross-entropy', freeze: [], freezeAllBut: [] } as const;
  const { sequence } = trainedLayers(buildModel(spec, { initialize: false }).graph, tuning);
  return sum(sequence.layers.map((layer) => bufferBytes(sequence, layer)));
}

/** Of a full Ethernet frame of TCP with time stamps, what is payload: no program gets more of a link. */
const tcpShare = 1448 / 1514;

/**
 * The time for which a member of a ring was sending in each round, and the bytes that its shaper let through, headers
 * included; the ideal is 2(n−1)/n · bytes / bandwidth, with batch statistics among the bytes: by the wire's bandwidth,
 * and by what TCP carries over it.
 */
function allReduceOf({ group, ready, run }: MeasuredCase, names: readonly string[], mbps = 0): AllReduceResult {
  const bytes = statisticBytes(models[group.model].model) + sum(ready.profile.layers.map((layer) => layer.weightBytes));
  const idealBytes = (2 * (names.length - 1) * bytes) / names.length;
  const idealMs = (idealBytes * 8) / (mbps * 1000);
  const ports = names.map((device) => defined(run.sending[device], device));
  const sentBytes = median(ports.map((port) => port.bytes)) / run.roundMs.length;
  return {
    bytes,
    measuredMs: round(median(ports.map((port) => port.busyMs)) / run.roundMs.length, 4),
    idealMs: round(idealMs, 4),
    idealOfTcpMs: round(idealMs / tcpShare, 4),
    overhead: round(sentBytes / idealBytes - 1),
  };
}

const caseColumns = [
  'cluster, Mbps',
  'form',
  'plan',
  'measured ms',
  'predicted ms',
  'difference',
  'with the profile as the rounds before correct it',
  'difference',
  'every other round ms',
  'with the profile as processors’ work in the rounds between corrects it',
  'difference',
  'x best device',
  'busiest link',
];

/** Every case, measured and predicted. */
function casesTable(cases: readonly CaseResult[]): string {
  return table(
    caseColumns,
    cases.map((one) => [
      ...[one.cluster, one.form, one.plan, one.measuredRoundMs],
      ...[one.predictedRoundMs, percent(one.difference)],
      ...[one.settledRoundMs, percent(one.settledDifference)],
      ...[one.checkedRoundMs, one.correctedRoundMs, percent(one.correctedDifference)],
      one.speedupOverBestDevice ?? '',
      one.busiestLink === null ? '' : `${one.busiestLink} ${percent(one.linkUtilisation)}`,
    ]),
  );
}

/** The device of each case that needs the most above what was predicted. */
function memoryTable(cases: readonly CaseResult[]): string {
  const above = ({ measuredMiB, predictedMiB }: CaseResult['memory'][number]) => measuredMiB - 1.1 * predictedMiB - 30;
  return table(
    ['cluster, Mbps', 'form', 'device', 'peak MiB', 'predicted MiB', 'above prediction + 10 % + 30 MiB'],
    cases.map(({ cluster, form, memory }) => {
      const worst = defined(memory.toSorted((a, b) => above(b) - above(a))[0], 'a device');
      const over = above(worst) > 0 ? above(worst).toFixed(0) : 'no';
      return [cluster, form, worst.device, worst.measuredMiB, worst.predictedMiB, over];
    }),
  );
}

const linkColumns = [
  'cluster, Mbps',
  'form',
  'busiest link',
  'of the whole time',
  'while sending',
  'AllReduce ms',
  'ideal ms',
  'over',
  'ideal at what TCP carries',
  'over',
  'bytes over the ideal',
];

/** Links that are the bottleneck, and AllReduces. */
function linksTable(cases: readonly CaseResult[]): string {
  return table(
    linkColumns,
    cases.flatMap(({ cluster, form, busiestLink, linkUtilisation, utilisationWhileSending, allReduce }) => {
      if (busiestLink === null || (linkUtilisation < 0.5 && allReduce === null)) return [];
      const use = [percent(linkUtilisation), percent(utilisationWhileSending)];
      return [[cluster, form, busiestLink, ...use, ...allReduceCells(allReduce)]];
    }),
  );
}

function allReduceCells(allReduce: AllReduceResult | null): (string | number)[] {
  if (allReduce === null) return ['', '', '', '', '', ''];
  const { measuredMs, idealMs, idealOfTcpMs, overhead } = allReduce;
  const over = (ideal: number) => percent(measuredMs / ideal - 1);
  return [measuredMs, idealMs, over(idealMs), idealOfTcpMs, over(idealOfTcpMs), percent(overhead)];
}
