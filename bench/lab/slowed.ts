// @ts-nocheck
// A link or a device of a lab that becomes slow in the middle of training: how long until it is noticed and training goes on in another layout, and how fast
// that is beside the best plan for the devices and links as they are then, run from the start.

import { plan } from '../../dist/planner/plan.js';
import { formOf } from './forms.ts';

const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];

/** Rounds before the change, and of a new layout before its speed is measured. */
const settlingRounds = 12;
/** Layouts that follow each other within so many rounds are on their way to one. */
const quietRounds = 25;
/** A run that has not found another layout by then keeps its own. */
const mostRounds = 150;

/**
 * One run in which something becomes slow. `change` makes it so. Resolves with the seconds until it was noticed and until the last change of the layout stood
 * (undefined: none was made), the layout's form, and the rounds' times before, slow and after.
 */
async function slowDown({ train, batch, rounds }, change) {
  const heard = {
    changeMs: undefined,
    noticed: undefined,
    layoutMs: undefined,
    plan: undefined,
    lost: [],
    before: [],
    slow: [],
    after: [],
  };
  let lastChange = Number.POSITIVE_INFINITY;
  const onEvent = (event, nowMs) => {
    const isChanged = heard.changeMs !== undefined;
    if (event.event === 'plan' || event.event === 'recovering') heard.plan = event.plan;
    if (event.event === 'left' && isChanged) heard.lost.push(event.device);
    if (event.event === 'drift' && isChanged)
      heard.noticed ??= { seconds: (nowMs - heard.changeMs) / 1000, factors: event.factors, links: event.links };
    if (event.event === 'recovered' && isChanged) {
      heard.layoutMs = nowMs;
      lastChange = event.round;
      heard.after = [];
    }
    if (event.event !== 'round') return;
    const roundMs = (batch / event.samplesPerS) * 1000;
    if (!isChanged) heard.before.push(roundMs);
    else if (heard.layoutMs === undefined) heard.slow.push(roundMs);
    else heard.after.push(roundMs);
    if (event.round === settlingRounds + rounds) {
      heard.changeMs = nowMs;
      change();
    }
  };
  const isEnough = (event) =>
    event.event === 'round' &&
    event.round >= Math.min(lastChange + Math.max(quietRounds, settlingRounds + rounds), mostRounds);
  await train(['--steps', '2000', '--planner', 'best', '--schedule', 'auto'], { batch, onEvent, isEnough });
  const settled = heard.after.slice(settlingRounds);
  return {
    noticed: heard.noticed,
    layoutSeconds: heard.layoutMs === undefined ? undefined : (heard.layoutMs - heard.changeMs) / 1000,
    form: formOf(heard.plan),
    lost: heard.lost,
    beforeMs: median(heard.before.slice(settlingRounds)),
    slowMs: median(heard.slow),
    afterMs: settled.length === 0 ? median(heard.slow.slice(-rounds)) : median(settled),
  };
}

/** The link of two devices between which most goes, and the fastest device, each slowed in turn: those that are `wanted`. `open` makes a fresh lab for each. */
export async function measureSlowed(open, { wanted, optimizerState, rounds, log }) {
  const results = [];
  for (const what of wanted) {
    const ready = await open();
    try {
      const { bed, profile, cluster, batch, sizes, train, predict, fastest } = ready;
      const planFor = (changed) =>
        plan({
          ...changed,
          batchSize: batch,
          microBatchSize: sizes.microBatchSize,
          planner: 'best',
          optimizerState,
          replicateBatchDependent: true,
        });
      const layout = planFor({ profile, cluster });
      const [busiest] = Object.entries(predict(layout).links).toSorted(([, a], [, b]) => b.bytes - a.bytes);
      const [from, to] = what === 'link' ? busiest[0].split('->') : [];
      const change =
        what === 'link' ? () => bed.setBandwidth(from, to, slowMbps) : () => bed.setCores(fastest, slowCores);
      const run = await slowDown({ train, batch, rounds }, change);
      // The lab stays as it is: what the whole planner makes of it, measured anew and from the start.
      bed.forgetProfiles();
      const anew = await train(
        ['--steps', String(settlingRounds + rounds), '--planner', 'best', '--schedule', 'auto'],
        { batch, warmUp: settlingRounds },
      );
      const result = {
        what: what === 'link' ? `${from} — ${to} to ${slowMbps} Mbps` : `${fastest} to ${slowCores} cores`,
        before: formOf(layout),
        ...run,
        anew: formOf(anew.plan),
        anewMs: median(anew.roundMs),
      };
      log(
        `  ${result.what}: noticed after ${run.noticed?.seconds.toFixed(1) ?? '-'} s, another layout after ${run.layoutSeconds?.toFixed(1) ?? '-'} s; rounds ${run.beforeMs.toFixed(0)} -> ${run.slowMs.toFixed(0)} -> ${run.afterMs.toFixed(0)} ms (${run.form}), anew ${result.anewMs.toFixed(0)} (${result.anew}); lost ${run.lost.join(' ') || 'nobody'}`,
      );
      results.push(result);
    } finally {
      await ready.bed.close();
    }
  }
  return results;
}

const slowMbps = 5;
const slowCores = 0.25;
