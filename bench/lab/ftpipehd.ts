// Section ftpipehd: FTPipeHD's experiments in a lab (its §IV-D and Table III): two equal devices and one ten times
// slower. What its re-partition gains over PipeDream's partition, which takes all as equally fast; and worker 1 killed
// at batch 205: recovery and the time of an epoch after it, by its scheme, by ResPipe's, and by ours.

import { defined } from '../../dist/assert.js';
import type { Plan } from '../../dist/cluster/cluster.js';
import { program } from '../../dist/schedule/generate.js';
import { createSimulator } from '../../dist/simulator/simulate.js';
import { steadyRoundMs } from '../../dist/simulator/steady.js';
import { median } from '../../dist/statistics.js';
import { table } from '../common/table.ts';
import { type JsonEvent, roundMsOf } from './events.ts';
import { type Found, type Group, type LabBench, models, openBed, round } from './group.ts';
import { formOf } from './layout.ts';
import type { RunDocuments, Testbed } from './testbed.ts';

/** A batch is not cut, as in the paper; its 256 samples would take minutes on a twelfth of a core. */
const group: Group = {
  name: 'ftpipehd-100',
  environment: ['tenth', 100],
  model: 'mobilenet',
  microBatch: 8,
  count: 1,
};
const worker = 'b';
const killedAt = 205;
/** Samples of an epoch: the training images of CIFAR-10. */
const epochSamples = 50_000;

/** By scheme: how a run is told to follow it, and the paper's seconds and minutes. */
const schemes = {
  FTPipeHD: { args: ['--planner', 'ftpipehd'], paper: { recoveryS: 2.24, epochMin: 8.57 } },
  ResPipe: { args: ['--planner', 'ftpipehd', '--recovery', 'respipe'], paper: { recoveryS: 0.13, epochMin: 59.18 } },
  'ours from the same partition': { args: ['--planner', 'ftpipehd', '--recovery', 'asteroid'], paper: undefined },
  'ours as it plans': { args: ['--planner', 'best'], paper: undefined },
} as const;

type Scheme = keyof typeof schemes;

/** Batches of a new layout before its speed is measured: stages that are new become faster. */
const settlingRounds = 8;

interface Layout {
  readonly plan: Plan;
  readonly roundMs: number[];
}

/** Follows one run, and kills the worker. */
class KillLog {
  readonly layouts: Layout[] = [];
  readonly capacities: Readonly<Record<string, number>>[] = [];
  readonly #batch: number;
  readonly #kill: () => void;
  #killedMs: number | undefined;
  #layoutsAtKill = 0;
  #standsSeconds: number | undefined;
  #nextMs: number | undefined;
  #newMs: number | undefined;
  #change: Extract<JsonEvent, { event: 'recovering' }> | undefined;

  constructor(batch: number, kill: () => void) {
    this.#batch = batch;
    this.#kill = kill;
  }

  hear(event: JsonEvent, nowMs: number): void {
    const isKilled = this.#killedMs !== undefined;
    if (event.event === 'deployment') this.layouts.push({ plan: event.plan, roundMs: [] });
    if (event.event === 'capacities') this.capacities.push(event.capacities);
    if (event.event === 'recovering' && isKilled) this.#change ??= event;
    if (event.event === 'recovered' && isKilled) this.#standsSeconds ??= event.seconds;
    if (this.#standsSeconds !== undefined && (event.event === 'round' || event.event === 'repeated'))
      this.#nextMs ??= nowMs;
    if (event.event !== 'round') return;
    if (this.#standsSeconds !== undefined) this.#newMs ??= nowMs;
    this.layouts.at(-1)?.roundMs.push(roundMsOf(event, this.#batch));
    if (event.round !== killedAt - 1) return;
    this.#killedMs = nowMs;
    this.#layoutsAtKill = this.layouts.length;
    this.#kill();
  }

  isEnough(rounds: number): boolean {
    const last = this.layouts.at(-1);
    return this.layouts.length > this.#layoutsAtKill && last !== undefined && this.#newMs !== undefined
      ? last.roundMs.length >= settlingRounds + rounds
      : false;
  }

  result(documents: RunDocuments) {
    const change = defined(this.#change, 'a recovery');
    const killedMs = defined(this.#killedMs, 'the kill');
    const simulator = createSimulator(documents.profile, documents.cluster);
    const layouts = this.layouts.map(({ plan, roundMs }) => ({
      form: formOf(plan),
      measuredMs: round(steadyMs(roundMs), 4),
      rounds: roundMs.length,
      predictedMs: round(steadyRoundMs(simulator, program(plan), plan), 4),
    }));
    return {
      layouts,
      capacities: this.capacities,
      before: defined(layouts[this.#layoutsAtKill - 1], 'the layout before'),
      after: defined(layouts.at(-1), 'the layout after'),
      standsS: defined(this.#standsSeconds, 'the layout'),
      nextS: (defined(this.#nextMs, 'a round') - killedMs) / 1000,
      newS: (defined(this.#newMs, 'a new round') - killedMs) / 1000,
      movedMiB: change.movedMiB,
      source: change.source,
      repeatedRounds: change.repeatedRounds,
    };
  }
}

/** Of a layout's batches, without the first; 0 where there are no others. */
function steadyMs(roundMs: readonly number[]): number {
  const steady = roundMs.slice(roundMs.length > settlingRounds ? settlingRounds : 2);
  return steady.length === 0 ? 0 : median(steady);
}

type Kill = ReturnType<KillLog['result']>;

async function measure(bench: LabBench, bed: Testbed, scheme: Scheme): Promise<Kill & { readonly scheme: Scheme }> {
  const batch = group.microBatch * group.count;
  const { model, data } = models[group.model];
  const log = new KillLog(batch, () => bed.killDevice(worker));
  const settings = [
    ...['--model', model, '--data', data, '--batch', String(batch), '--micro-batch', String(group.microBatch)],
    ...['--mode', 'async', '--lr', '0.01', '--eval-every', '0', '--profile', 'quick', '--steps', '100000'],
  ];
  const run = await bed.train([...settings, ...schemes[scheme].args], {
    batch,
    onEvent: (event, nowMs) => log.hear(event, nowMs),
    isEnough: () => log.isEnough(bench.rounds),
  });
  const found = { scheme, ...log.result(run.documents()) };
  const layouts = found.layouts.map(
    ({ form, measuredMs, predictedMs, rounds }) =>
      `${form} ${measuredMs} ms (${predictedMs} predicted, ${rounds} rounds)`,
  );
  bench.log(`  ${scheme}: ${layouts.join(' -> ')}`);
  bench.log(
    `    layout after ${found.standsS.toFixed(2)} s, next batch ${found.nextS.toFixed(2)}, ` +
      `new ${found.newS.toFixed(2)} (${found.repeatedRounds} again), ` +
      `${found.movedMiB.toFixed(2)} MiB from ${found.source}; ` +
      `capacities ${JSON.stringify(found.capacities)}`,
  );
  return found;
}

function killTable(kills: readonly (Kill & { readonly scheme: Scheme })[]): string {
  const epoch = (ms: number): string =>
    `${((ms * epochSamples) / (group.microBatch * group.count) / 60_000).toFixed(1)} min`;
  const seconds = (value: number): string => `${value.toFixed(2)} s`;
  return table(
    [
      ...[
        'scheme',
        'recovery, paper',
        'layout stands',
        'next batch commits',
        'first new batch',
        'computed again',
        'moved',
      ],
      ...['epoch, paper', 'epoch after', 'batch before', 'batch after', 'predicted', 'layout before', 'layout after'],
    ],
    kills.map(({ scheme, before, after, ...one }) => {
      const { paper } = schemes[scheme];
      return [
        ...[scheme, paper === undefined ? '' : seconds(paper.recoveryS)],
        ...[one.standsS, one.nextS, one.newS].map(seconds),
        ...[one.repeatedRounds, `${one.movedMiB.toFixed(2)} MiB, ${one.source}`],
        ...[paper === undefined ? '' : `${paper.epochMin} min`, epoch(after.measuredMs)],
        ...[`${before.measuredMs} ms`, `${after.measuredMs} ms`, `${after.predictedMs} ms`],
        ...[before.form, after.form],
      ];
    }),
  );
}

/** The first layout, all alike, which is PipeDream's partition, and the one by capacities before the kill. */
function ratioTable(kills: readonly (Kill & { readonly scheme: Scheme })[]): string {
  const theirs = kills.find(({ scheme }) => scheme === 'FTPipeHD');
  const [first] = theirs?.layouts ?? [];
  if (theirs === undefined || first === undefined) return '';
  const { before } = theirs;
  const ratio = (a: number, b: number): string => `${(a / b).toFixed(2)}x`;
  return table(
    ['', "PipeDream's partition", 'by capacities', 'ratio'],
    [
      ['layers', first.form, before.form, ''],
      ['measured', `${first.measuredMs} ms`, `${before.measuredMs} ms`, ratio(first.measuredMs, before.measuredMs)],
      [
        'simulated',
        `${first.predictedMs} ms`,
        `${before.predictedMs} ms`,
        ratio(first.predictedMs, before.predictedMs),
      ],
      ['paper', '396.37 min', '58.03 min', '6.83x'],
    ],
  );
}

export async function ftpipehd(bench: LabBench): Promise<Found> {
  const results: (Kill & { readonly scheme: Scheme })[] = [];
  const bed = await openBed(bench, group);
  try {
    for (const scheme of Object.keys(schemes) as Scheme[])
      if (`${group.name} ${scheme}`.includes(bench.only)) results.push(await measure(bench, bed, scheme));
  } finally {
    await bed.close();
  }
  return { key: 'ftpipehd', results, tables: [ratioTable(results), killTable(results)] };
}
