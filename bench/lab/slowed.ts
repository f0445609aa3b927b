// Section slowed: a link or a device of a lab that becomes slow in the middle of training: how long until it is noticed
// and training goes on in another layout, and how fast that is, next to the best plan for the devices and links as they
// are then, run from the start.

import { defined } from '../../dist/assert.js';
import type { Plan } from '../../dist/cluster/cluster.js';
import { plan } from '../../dist/planner/plan.js';
import { median } from '../../dist/statistics.js';
import { percent } from '../common/numbers.ts';
import { table } from '../common/table.ts';
import { type JsonEvent, roundMsOf } from './events.ts';
import { type Found, type Group, type LabBench, models, openGroup, optimizerState, type ReadyGroup } from './group.ts';
import { formOf } from './layout.ts';

/** A link of 100 Mbps that falls to 5, and a device of one core that falls to a quarter. */
const groups: readonly Group[] = [
  { name: 'slowed-100', environment: ['mixed', 100], model: 'mobilenet', microBatch: 8, count: 6 },
];
const slowMbps = 5;
const slowCores = 0.25;

/** Rounds before the change, and of a new layout before its speed is measured. */
const settlingRounds = 12;
/** Layouts that follow each other within this many rounds are on their way to one. */
const quietRounds = 25;
/** A run that has not found another layout by then keeps its own. */
const mostRounds = 150;

type Drift = Extract<JsonEvent, { event: 'drift' }>;

/** A change, as a run met it. Seconds are since the change; rounds' times are medians. */
interface SlowRun {
  readonly noticed: ({ readonly seconds: number } & Pick<Drift, 'factors' | 'links'>) | undefined;
  /** Until the last change of the layout stood; undefined if none was made. */
  readonly layoutSeconds: number | undefined;
  /** The last layout. */
  readonly form: string;
  readonly lost: readonly string[];
  readonly beforeMs: number;
  readonly slowMs: number;
  readonly afterMs: number;
}

interface SlowResult extends SlowRun {
  readonly cluster: string;
  readonly model: string;
  readonly what: string;
  readonly before: string;
  /** The best plan for how things are now. */
  readonly anew: string;
  readonly anewMs: number;
}

/** Follows one run in which something becomes slow: `change` makes it so. */
class SlowLog {
  readonly #batch: number;
  readonly #rounds: number;
  readonly #change: () => void;
  #changeMs: number | undefined;
  #noticed: SlowRun['noticed'];
  #layoutMs: number | undefined;
  #lastChange = Number.POSITIVE_INFINITY;
  #plan: Plan | undefined;
  readonly #lost: string[] = [];
  readonly #before: number[] = [];
  readonly #slow: number[] = [];
  #after: number[] = [];

  constructor(batch: number, rounds: number, change: () => void) {
    this.#batch = batch;
    this.#rounds = rounds;
    this.#change = change;
  }

  hear(event: JsonEvent, nowMs: number): void {
    if (event.event === 'plan' || event.event === 'recovering') this.#plan = event.plan;
    if (this.#changeMs !== undefined) this.#hearChanged(event, nowMs, this.#changeMs);
    if (event.event !== 'round') return;
    const times = this.#changeMs === undefined ? this.#before : this.#layoutMs === undefined ? this.#slow : this.#after;
    times.push(roundMsOf(event, this.#batch));
    if (event.round !== settlingRounds + this.#rounds) return;
    this.#changeMs = nowMs;
    this.#change();
  }

  #hearChanged(event: JsonEvent, nowMs: number, changeMs: number): void {
    if (event.event === 'left') this.#lost.push(event.device);
    if (event.event === 'drift')
      this.#noticed ??= { seconds: (nowMs - changeMs) / 1000, factors: event.factors, links: event.links };
    if (event.event !== 'recovered') return;
    this.#layoutMs = nowMs;
    this.#lastChange = event.round;
    this.#after = [];
  }

  isEnough(event: JsonEvent): boolean {
    const quiet = this.#lastChange + Math.max(quietRounds, settlingRounds + this.#rounds);
    return event.event === 'round' && event.round >= Math.min(quiet, mostRounds);
  }

  result(): SlowRun {
    const settled = this.#after.slice(settlingRounds);
    const changeMs = defined(this.#changeMs, 'the change');
    return {
      noticed: this.#noticed,
      layoutSeconds: this.#layoutMs === undefined ? undefined : (this.#layoutMs - changeMs) / 1000,
      form: formOf(defined(this.#plan, 'a plan')),
      lost: this.#lost,
      beforeMs: median(this.#before.slice(settlingRounds)),
      slowMs: median(this.#slow),
      afterMs: settled.length === 0 ? median(this.#slow.slice(-this.#rounds)) : median(settled),
    };
  }
}

const planning = ['--planner', 'best', '--schedule', 'auto'];

/** The link of two devices on which most bytes travel, or the fastest device, becomes slow. */
function changeOf(what: 'link' | 'device', { bed, predict, fastest }: ReadyGroup, layout: Plan) {
  if (what === 'device')
    return { what: `${fastest} to ${slowCores} cores`, change: () => bed.setCores(fastest, slowCores) };
  const [busiest] = Object.entries(predict(layout).links).toSorted(([, a], [, b]) => b.bytes - a.bytes);
  const [from = '', to = ''] = defined(busiest, 'a link')[0].split('->');
  return { what: `${from} — ${to} to ${slowMbps} Mbps`, change: () => bed.setBandwidth(from, to, slowMbps) };
}

async function measure(bench: LabBench, group: Group, what: 'link' | 'device'): Promise<SlowResult> {
  const ready = await openGroup(bench, group, { copies: true });
  try {
    const { bed, profile, cluster, batch, sizes, train } = ready;
    const layout = plan({
      ...{ profile, cluster, planner: 'best', optimizerState },
      batchSize: batch,
      microBatchSize: sizes.microBatchSize,
      replicateBatchDependent: true,
    });
    const slow = changeOf(what, ready, layout);
    const log = new SlowLog(batch, bench.rounds, slow.change);
    await train(['--steps', '2000', ...planning], {
      onEvent: (event, nowMs) => log.hear(event, nowMs),
      isEnough: (event) => log.isEnough(event),
    });
    // The lab stays as it is: what the whole planner makes of it, measured anew and from the start.
    bed.forgetProfiles();
    const anew = await train(['--steps', String(settlingRounds + bench.rounds), ...planning], {
      warmUp: settlingRounds,
    });
    const result = {
      ...{ cluster: group.name, model: models[group.model].model, what: slow.what, before: formOf(layout) },
      ...log.result(),
      ...{ anew: formOf(anew.documents().plan), anewMs: median(anew.roundMs) },
    };
    bench.log(`  ${logLine(result)}`);
    return result;
  } finally {
    await ready.bed.close();
  }
}

function logLine(one: SlowResult): string {
  const rounds = [one.beforeMs, one.slowMs, one.afterMs].map((ms) => ms.toFixed(0)).join(' -> ');
  return [
    `${one.what}: noticed after ${one.noticed?.seconds.toFixed(1) ?? '-'} s, ` +
      `another layout after ${one.layoutSeconds?.toFixed(1) ?? '-'} s`,
    `rounds ${rounds} ms (${one.form}), anew ${one.anewMs.toFixed(0)} (${one.anew})`,
    `lost ${one.lost.join(' ') || 'nobody'}`,
  ].join('; ');
}

const columns = [
  'slow',
  'noticed',
  'another layout',
  'rounds before',
  'slow',
  'after',
  'planned anew',
  'difference',
  'the layout',
  'anew',
  'given up',
];

export async function slowed(bench: LabBench): Promise<Found> {
  const results: SlowResult[] = [];
  for (const group of groups)
    for (const what of ['link', 'device'] as const)
      if (`${group.name} ${what}`.includes(bench.only)) results.push(await measure(bench, group, what));
  const seconds = (value: number | undefined) => (value === undefined ? '-' : `${value.toFixed(1)} s`);
  const rows = results.map((one) => [
    ...[one.what, seconds(one.noticed?.seconds), seconds(one.layoutSeconds)],
    ...[one.beforeMs, one.slowMs, one.afterMs, one.anewMs].map((ms) => `${ms.toFixed(0)} ms`),
    ...[percent(one.afterMs / one.anewMs - 1), one.form, one.anew, one.lost.join(' ') || '-'],
  ]);
  return { key: 'slowed', results, tables: [table(columns, rows)] };
}
