// Devices of a lab that lose their power in the middle of training: how long until training goes on, and how fast it is then, beside the best plan that
// the devices left could have.

import { plan } from '../../dist/planner/plan.js';
import { formOf } from './forms.mjs';

const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];

/** Rounds in which the run finds out how often to make copies, and rounds that are measured then. */
const copyRounds = 50;
/** Rounds before the loss: enough that copies have been made. */
const roundsBefore = 12;

/**
 * One run that loses a device. R is the time from its loss to the next round that commits; `series` holds [seconds since the loss, samples/s] of each round.
 */
async function loseDevice({ bed, train, batch, rounds }, device) {
  const heard = { lostMs: undefined, event: undefined, recoverySeconds: undefined, firstMs: undefined, before: [], after: [], series: [] };
  const onEvent = (event, nowMs) => {
    if (event.event === 'recovering') heard.event = event;
    if (event.event === 'recovered') heard.recoverySeconds = event.seconds;
    if (event.event !== 'round' && event.event !== 'repeated') return;
    if (heard.recoverySeconds !== undefined) heard.firstMs ??= nowMs;
    if (event.event !== 'round') return;
    heard.series.push([nowMs, event.samplesPerS]);
    const roundMs = (batch / event.samplesPerS) * 1000;
    if (heard.lostMs === undefined && event.round >= 2) heard.before.push(roundMs);
    // The first round after it fills caches again.
    if (heard.firstMs !== undefined && nowMs > heard.firstMs) heard.after.push(roundMs);
    if (event.round === roundsBefore) {
      heard.lostMs = nowMs;
      bed.killDevice(device);
    }
  };
  // By its own plan, from profiles that its devices have: a run with a given plan knows nothing of how fast they are.
  await train(['--steps', String(roundsBefore + 1 + rounds), '--planner', 'best'], { batch, onEvent });
  if (heard.firstMs === undefined) throw new Error(`The run went on without ${device} without a recovery.`);
  return {
    device,
    recoveryMs: heard.firstMs - heard.lostMs,
    layoutMs: heard.recoverySeconds * 1000,
    movedMiB: heard.event.movedMiB,
    source: heard.event.source,
    repeatedRounds: heard.event.repeatedRounds,
    beforeMs: median(heard.before),
    afterMs: median(heard.after),
    series: heard.series.map(([ms, samplesPerS]) => [(ms - heard.lostMs) / 1000, samplesPerS]),
  };
}

/**
 * Each device of a group lost in turn (light: what the run itself does), and the same devices without it under the plan that the whole planner makes for them
 * (heavy), from the start. Also what copies cost: mean rounds of the undisturbed run with and without them.
 */
export async function measureRecovery(ready, { optimizerState, rounds, log }) {
  const { bed, profile, cluster, batch, sizes, train } = ready;
  const planWithout = (...exclude) =>
    plan({ profile, cluster, exclude, batchSize: batch, microBatchSize: sizes.microBatchSize, planner: 'best', optimizerState, replicateBatchDependent: true });
  const whole = planWithout();
  log(`  ${formOf(whole)}`);
  const undisturbed = async (...more) => (await train(['--steps', String(2 * copyRounds), '--plan', bed.writePlan(whole), ...more], { batch, warmUp: copyRounds })).roundMs;
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const [withoutCopies, withCopies] = [await undisturbed('--replicate-every', '0'), await undisturbed()];
  const copies = { withoutMs: mean(withoutCopies), withMs: mean(withCopies), cost: mean(withCopies) / mean(withoutCopies) - 1 };
  log(`  copies: ${copies.withMs.toFixed(0)} ms a round with, ${copies.withoutMs.toFixed(0)} without`);
  const losses = [];
  for (const { name } of cluster.devices) {
    const loss = await loseDevice({ ...ready, rounds }, name);
    const heavy = planWithout(name);
    const heavyMs = median((await train(['--steps', String(2 + rounds), '--plan', bed.writePlan(heavy)], { batch, warmUp: 2 })).roundMs);
    losses.push({ ...loss, heavyMs });
    log(`  ${name}: ${loss.recoveryMs.toFixed(0)} ms, ${loss.movedMiB.toFixed(1)} MiB moved from ${loss.source}; rounds ${loss.beforeMs.toFixed(0)} -> ${loss.afterMs.toFixed(0)} ms, heavy's ${heavyMs.toFixed(0)}`);
  }
  return { copies, losses };
}
