// Section recovery: devices of a lab that lose their power in the middle of training: how long until training goes on,
// and how fast it is then, next to the best plan that the devices left could have; and what copies cost.

import { writeFileSync } from 'node:fs';
import { defined } from '../../dist/assert.js';
import type { Plan, PlanLayout } from '../../dist/cluster/cluster.js';
import { plan } from '../../dist/planner/plan.js';
import { median } from '../../dist/statistics.js';
import { lineChart } from '../../dist/testing/reproduction/charts.js';
import { percent, sum } from '../common/numbers.ts';
import { table } from '../common/table.ts';
import { type JsonEvent, roundMsOf } from './events.ts';
import { type Found, type Group, type LabBench, models, openGroup, optimizerState, type ReadyGroup } from './group.ts';
import { formOf } from './layout.ts';

interface RecoveryGroup extends Group {
  readonly planner: string;
  /** The devices to lose, and that ResPipe's way is measured too. Absent: each, without ResPipe's. */
  readonly lost?: readonly string[];
}

/**
 * The paper's figures 16 and 17. And FTPipeHD's Table III: two processes on a laptop, and a desktop PC a seventh as
 * fast, which does the work of the second in ResPipe.
 */
const groups: readonly RecoveryGroup[] = [
  { name: 'recovery-D-100', environment: ['D', 100], model: 'efficientnet', microBatch: 10, count: 8, planner: 'best' },
  {
    name: 'recovery-ftpipehd-100',
    environment: ['laptops', 100],
    model: 'mobilenet',
    microBatch: 8,
    count: 4,
    planner: 'ftpipehd',
    lost: ['b'],
  },
];

/** Rounds in which the run finds out how often to make copies, and rounds that are measured then. */
const copyRounds = 50;
/**
 * Rounds before the loss. It comes when the layout in force has been copied and devices are ready for the layouts that
 * a loss leads to, or after `patienceMs`.
 */
const roundsBefore = 12;
const patienceMs = 400_000;
/** Rounds of a new layout before its speed is measured: stages that are new become faster. */
const settlingRounds = 12;
/** Layouts that are compared run in turn, this often: the host's speed changes. */
const turns = 2;

type Recovering = Extract<JsonEvent, { event: 'recovering' }>;

/** A loss as it was measured. Rounds' times are medians. */
interface Loss {
  readonly device: string;
  /** The plan in force at the loss. */
  readonly plan: Plan;
  /** When devices were ready for the layouts that a loss leads to, after their layout began. */
  readonly readySeconds: number | undefined;
  readonly trainedMs: number;
  /** R: from the loss to the next round that commits. */
  readonly recoveryMs: number;
  /** Until another layout stands. */
  readonly layoutMs: number;
  /** What planning and deployment took when the run began. */
  readonly wholeMs: number;
  readonly lightPlan: Plan;
  readonly movedMiB: number;
  readonly source: Recovering['source'];
  readonly repeatedRounds: number;
  readonly beforeMs: number;
  readonly afterMs: number;
  /** [seconds since the loss, samples/s] of each round. */
  readonly series: readonly (readonly [seconds: number, samplesPerS: number])[];
}

/** A loss, and its layouts run in turn: what the run itself does, the whole planner's, ResPipe's. */
type ComparedLoss = Loss & {
  readonly lightMs: number;
  readonly heavyMs: number;
  readonly respipeMs: number | undefined;
};

interface Copies {
  /** Of rounds without a copy. */
  readonly baseMs: number;
  /** The rounds after which copies were made. */
  readonly versions: readonly number[];
  readonly roundCount: number;
  /** As a fraction of all time. */
  readonly cost: number;
}

interface RecoveryResult {
  readonly cluster: string;
  readonly model: string;
  readonly batch: number;
  readonly copies: Copies;
  readonly losses: readonly ComparedLoss[];
}

/** Follows one run that loses a device: kills it when the run is ready for it. */
class LossLog {
  readonly #batch: number;
  readonly #kill: () => void;
  readonly #phaseMs: Partial<Record<string, number>> = {};
  #plan: Plan | undefined;
  #isCopied = false;
  #readySeconds: number | undefined;
  #lostMs: number | undefined;
  #event: Recovering | undefined;
  #recoverySeconds: number | undefined;
  #firstMs: number | undefined;
  readonly #before: number[] = [];
  readonly #after: number[] = [];
  readonly #series: [ms: number, samplesPerS: number][] = [];

  constructor(batch: number, kill: () => void) {
    this.#batch = batch;
    this.#kill = kill;
  }

  get afterCount(): number {
    return this.#after.length;
  }

  hear(event: JsonEvent, nowMs: number): void {
    const isLost = this.#lostMs !== undefined;
    if (event.event === 'phase') this.#phaseMs[event.phase] ??= nowMs;
    if (event.event === 'plan' || (event.event === 'recovering' && !isLost)) {
      this.#plan = event.plan;
      this.#isCopied = false;
      this.#readySeconds = undefined;
    }
    if (event.event === 'replicated') this.#isCopied = true;
    if (event.event === 'reserve-ready') this.#readySeconds = event.seconds;
    // A better plan before the loss changes the layout, too; what follows the loss first is its recovery.
    if (event.event === 'recovering' && isLost) this.#event ??= event;
    if (event.event === 'recovered' && isLost) this.#recoverySeconds ??= event.seconds;
    if (event.event !== 'round' && event.event !== 'repeated') return;
    if (this.#recoverySeconds !== undefined) this.#firstMs ??= nowMs;
    if (event.event === 'round') this.#round(event, nowMs);
  }

  #round(event: Extract<JsonEvent, { event: 'round' }>, nowMs: number): void {
    this.#series.push([nowMs, event.samplesPerS]);
    const roundMs = roundMsOf(event, this.#batch);
    if (this.#lostMs === undefined && event.round >= 2) this.#before.push(roundMs);
    if (this.#firstMs !== undefined && nowMs > this.#firstMs) this.#after.push(roundMs);
    if (this.#lostMs !== undefined || event.round < roundsBefore) return;
    const isReady = this.#isCopied && this.#readySeconds !== undefined;
    if (!isReady && nowMs - this.#phase('training') < patienceMs) return;
    this.#lostMs = nowMs;
    this.#kill();
  }

  #phase(name: string): number {
    return defined(this.#phaseMs[name], `the phase ${name}`);
  }

  /** Throws an Error if the run went on without a recovery. */
  result(device: string): Loss {
    const event = defined(this.#event, `a recovery from the loss of ${device}`);
    const lostMs = defined(this.#lostMs, 'the loss');
    return {
      device,
      plan: defined(this.#plan, 'the plan'),
      readySeconds: this.#readySeconds,
      trainedMs: lostMs - this.#phase('training'),
      recoveryMs: defined(this.#firstMs, 'a round after the loss') - lostMs,
      layoutMs: defined(this.#recoverySeconds, 'the time of the recovery') * 1000,
      wholeMs: this.#phase('training') - this.#phase('planning'),
      lightPlan: event.plan,
      movedMiB: event.movedMiB,
      source: event.source,
      repeatedRounds: event.repeatedRounds,
      beforeMs: median(this.#before),
      afterMs: median(this.#after.slice(settlingRounds)),
      series: this.#series.map(([ms, samplesPerS]) => [(ms - lostMs) / 1000, samplesPerS]),
    };
  }
}

/**
 * One run that loses a device. It plans by itself, from profiles that its devices have: a run with a given plan knows
 * nothing of how fast they are.
 */
async function loseDevice({ bed, train, batch }: ReadyGroup, planner: string, rounds: number, device: string) {
  const log = new LossLog(batch, () => bed.killDevice(device));
  // `best` chooses the schedule, too.
  const schedule = planner === 'best' ? 'auto' : '1f1b';
  await train(['--steps', '100000', '--planner', planner, '--schedule', schedule], {
    onEvent: (event, nowMs) => log.hear(event, nowMs),
    isEnough: () => log.afterCount >= settlingRounds + rounds,
  });
  return log.result(device);
}

/**
 * ResPipe: the next device takes over all layers of a lost one (FTPipeHD, section IV-D). Undefined if stages are
 * replicated or the device was the last.
 */
function takenOver(plan: PlanLayout, device: string): PlanLayout | undefined {
  const { stages } = plan;
  const at = stages.findIndex(({ devices }) => devices[0] === device);
  const [own, next] = [stages[at], stages[at + 1]];
  if (own === undefined || next === undefined || stages.some(({ devices }) => devices.length > 1)) return undefined;
  const merged = { ...next, layers: [own.layers[0], next.layers[1]] as const };
  const left = [...stages.slice(0, at), merged, ...stages.slice(at + 2)];
  return { ...plan, stages: left.map((stage, index) => ({ ...stage, inFlight: left.length - index })) };
}

/**
 * What copies cost in a run that nothing happens to: by how much rounds during a copy are longer than the others, as a
 * fraction of all time.
 */
async function costOfCopies({ bed, train, batch }: ReadyGroup, layout: PlanLayout): Promise<Copies> {
  const roundMs: number[] = [];
  const copied = new Set<number>();
  const versions: number[] = [];
  const onEvent = (event: JsonEvent) => {
    if (event.event === 'round') roundMs.push(roundMsOf(event, batch));
    if (event.event !== 'replicated') return;
    versions.push(event.round);
    // The state after n rounds is copied from round n on, until now.
    for (let round = event.round; round <= roundMs.length; round++) copied.add(round);
  };
  await train(['--steps', String(2 * copyRounds), '--plan', bed.writePlan(layout)], { onEvent });
  const measured = roundMs.map((ms, round) => ({ ms, isCopied: copied.has(round) })).slice(copyRounds);
  const timesOf = (isCopied: boolean) => measured.flatMap((one) => (one.isCopied === isCopied ? [one.ms] : []));
  const baseMs = median(timesOf(false));
  const withCopy = timesOf(true);
  const cost = (sum(withCopy) - withCopy.length * baseMs) / sum(roundMs.slice(copyRounds));
  return { baseMs, versions, roundCount: withCopy.length, cost };
}

/** Medians of the layouts' rounds, in turn. */
async function inTurn({ bed, train }: ReadyGroup, rounds: number, layouts: readonly PlanLayout[]): Promise<number[]> {
  const measured = layouts.map((layout) => ({ layout, roundMs: [] as number[] }));
  for (let turn = 0; turn < turns; turn++)
    for (const { layout, roundMs } of measured) {
      const words = ['--steps', String(settlingRounds + rounds), '--plan', bed.writePlan(layout)];
      roundMs.push(...(await train(words, { warmUp: settlingRounds })).roundMs);
    }
  return measured.map(({ roundMs }) => median(roundMs));
}

/**
 * Each device of a group lost in turn (light: what the run itself does), and the same devices without it under the plan
 * that the whole planner makes for them (heavy), from the start. Also what copies cost.
 */
async function measure(bench: LabBench, group: RecoveryGroup, ready: ReadyGroup): Promise<RecoveryResult> {
  const { profile, cluster, batch, sizes } = ready;
  const { planner, lost } = group;
  const schedule = planner === 'best' ? {} : { schedule: '1f1b' };
  const planWithout = (...exclude: string[]) =>
    plan({
      ...{ profile, cluster, exclude, planner, ...schedule, optimizerState },
      batchSize: batch,
      microBatchSize: sizes.microBatchSize,
      replicateBatchDependent: true,
    });
  const whole = planWithout();
  bench.log(`  ${formOf(whole)}`);
  const copies = await costOfCopies(ready, whole);
  bench.log(`  copies after ${copies.versions.join(', ')} rounds: ${percent(copies.cost)} in the second half`);
  const losses: ComparedLoss[] = [];
  for (const name of lost ?? cluster.devices.map((device) => device.name)) {
    const loss = await loseDevice(ready, planner, bench.rounds, name);
    const merged = lost === undefined ? undefined : takenOver(loss.plan, name);
    const layouts = [loss.lightPlan, planWithout(name), ...(merged === undefined ? [] : [merged])];
    const [lightMs, heavyMs, respipeMs] = await inTurn(ready, bench.rounds, layouts);
    const compared = { ...loss, lightMs: defined(lightMs, 'light'), heavyMs: defined(heavyMs, 'heavy'), respipeMs };
    losses.push(compared);
    bench.log(`  ${logLine(compared)}`);
  }
  return { cluster: group.name, model: models[group.model].model, batch, copies, losses };
}

function logLine(loss: ComparedLoss): string {
  const whole = (ms: number) => ms.toFixed(0);
  const seconds = (ms: number) => whole(ms / 1000);
  const ready =
    loss.readySeconds === undefined
      ? 'devices not ready'
      : `devices ready ${whole(loss.readySeconds)} s after their layout began`;
  const respipe = loss.respipeMs === undefined ? '' : `, ResPipe's ${whole(loss.respipeMs)}`;
  return [
    `${loss.device}: ${whole(loss.recoveryMs)} ms (layout ${whole(loss.layoutMs)}, all anew ${whole(loss.wholeMs)}), ` +
      `${loss.movedMiB.toFixed(1)} MiB moved from ${loss.source}`,
    `lost ${seconds(loss.trainedMs)} s into training, ${ready}`,
    `rounds ${whole(loss.beforeMs)} -> ${whole(loss.afterMs)} ms`,
    `in turn light's ${whole(loss.lightMs)}, heavy's ${whole(loss.heavyMs)}${respipe}`,
  ].join('; ');
}

export async function recovery(bench: LabBench): Promise<Found> {
  const results: RecoveryResult[] = [];
  for (const group of groups.filter(({ name }) => name.includes(bench.only))) {
    const ready = await openGroup(bench, group, { copies: true });
    try {
      results.push(await measure(bench, group, ready));
    } finally {
      await ready.bed.close();
    }
  }
  const [first] = results;
  if (bench.plot !== undefined && first !== undefined) writeFileSync(bench.plot, chart(first));
  return { key: 'recovery', results, tables: results.map(recoveryTable) };
}

/**
 * Throughput over the seconds around the first loss, as SVG: that of the round in which a second lies, and that of the
 * plan that the devices left could have had.
 */
function chart({ cluster, batch, losses }: RecoveryResult): string {
  const { device, series, recoveryMs, heavyMs } = defined(losses[0], 'a loss');
  const [first, last] = [Math.ceil(series[0]?.[0] ?? 0), Math.floor(series.at(-1)?.[0] ?? 0)];
  const xs = Array.from({ length: last - first + 1 }, (_, index) => first + index);
  const at = (second: number) =>
    second > 0 && second < recoveryMs / 1000 ? 0 : (series.find(([end]) => end >= second)?.[1] ?? 0);
  const heavy = (batch / heavyMs) * 1000;
  return lineChart({
    title: `${cluster}: ${device} is lost at 0`,
    unit: 'samples/s',
    xName: 'seconds since the loss',
    xs,
    ticks: xs.filter((second) => second % 10 === 0),
    series: [
      { name: 'training', values: xs.map(at) },
      {
        name: 'the best plan of the others',
        values: xs.map((second) => (second > 0 ? heavy : undefined)),
        dashed: true,
      },
    ],
  });
}

const lossColumns = [
  'R',
  'until the layout stands',
  'planned and given out anew',
  'moved',
  'from',
  'rounds repeated',
  'devices ready',
  'samples/s before',
  'after',
  'in turn: light',
  'heavy',
  'light over heavy',
  'ResPipe',
];

/** Devices lost in turn, and what copies cost. */
function recoveryTable({ cluster, batch, copies, losses }: RecoveryResult): string {
  const rate = (ms: number) => ((1000 * batch) / ms).toFixed(1);
  const seconds = (ms: number) => `${(ms / 1000).toFixed(2)} s`;
  const rows = losses.map((one) => [
    ...[one.device, seconds(one.recoveryMs), seconds(one.layoutMs), seconds(one.wholeMs)],
    ...[`${one.movedMiB.toFixed(1)} MiB`, one.source, one.repeatedRounds],
    one.readySeconds === undefined ? 'no' : `after ${one.readySeconds.toFixed(0)} s`,
    ...[one.beforeMs, one.afterMs, one.lightMs, one.heavyMs].map(rate),
    percent(one.heavyMs / one.lightMs),
    one.respipeMs === undefined ? '-' : rate(one.respipeMs),
  ]);
  const made = `Copies were made after ${copies.versions.join(', ')} rounds`;
  const cost = `in the second half they cost ${percent(copies.cost)} (rounds without: ${copies.baseMs.toFixed(0)} ms).`;
  return `${table([`${cluster}: lost`, ...lossColumns], rows)}\n\n${made}; ${cost}`;
}
