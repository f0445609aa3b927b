// @ts-nocheck
// Devices of a lab that lose their power in the middle of training: how long until training goes on, and how fast it is then, beside the best plan that
// the devices left could have.

import { plan } from '../../dist/planner/plan.js';
import { lineChart } from '../../dist/testing/reproduction/charts.js';
import { formOf } from './forms.ts';

const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];

/** Rounds in which the run finds out how often to make copies, and rounds that are measured then. */
const copyRounds = 50;
/** Rounds before the loss. It comes when the layout in force has been copied and devices are ready for the layouts that a loss leads to, or after so long. */
const roundsBefore = 12;
const patienceMs = 400_000;
/** Rounds of a new layout before its speed is measured, the light one's as the best one's: stages that are new become faster. */
const settlingRounds = 12;
/** Layouts that are compared run in turn, so often: the host's speed changes. */
const turns = 2;

/**
 * One run that loses a device. R is the time from its loss to the next round that commits; `layoutMs` that until another layout stands, `wholeMs` what the whole
 * planner and giving everything out took when the run began; `series` holds [seconds since the loss, samples/s] of each round.
 */
async function loseDevice({ bed, train, batch, rounds, planner }, device) {
  const phaseMs = {};
  const heard = {
    plan: undefined,
    isCopied: false,
    readySeconds: undefined,
    lostMs: undefined,
    event: undefined,
    recoverySeconds: undefined,
    firstMs: undefined,
    before: [],
    after: [],
    series: [],
  };
  const onEvent = (event, nowMs) => {
    if (event.event === 'phase') phaseMs[event.phase] ??= nowMs;
    if (event.event === 'plan' || (event.event === 'recovering' && heard.lostMs === undefined))
      Object.assign(heard, { plan: event.plan, isCopied: false, readySeconds: undefined });
    if (event.event === 'replicated') heard.isCopied = true;
    if (event.event === 'reserve-ready') heard.readySeconds = event.seconds;
    // A better plan before the loss changes the layout, too; what follows the loss first is its recovery.
    if (event.event === 'recovering' && heard.lostMs !== undefined) heard.event ??= event;
    if (event.event === 'recovered' && heard.lostMs !== undefined) heard.recoverySeconds ??= event.seconds;
    if (event.event !== 'round' && event.event !== 'repeated') return;
    if (heard.recoverySeconds !== undefined) heard.firstMs ??= nowMs;
    if (event.event !== 'round') return;
    heard.series.push([nowMs, event.samplesPerS]);
    const roundMs = (batch / event.samplesPerS) * 1000;
    if (heard.lostMs === undefined && event.round >= 2) heard.before.push(roundMs);
    if (heard.firstMs !== undefined && nowMs > heard.firstMs) heard.after.push(roundMs);
    const isReady = heard.isCopied && heard.readySeconds !== undefined;
    if (
      heard.lostMs === undefined &&
      event.round >= roundsBefore &&
      (isReady || nowMs - phaseMs.training >= patienceMs)
    ) {
      heard.lostMs = nowMs;
      heard.trainedMs = nowMs - phaseMs.training;
      bed.killDevice(device);
    }
  };
  // By its own plan, from profiles that its devices have: a run with a given plan knows nothing of how fast they are.
  const isEnough = () => heard.after.length >= settlingRounds + rounds;
  await train(['--steps', '100000', '--planner', planner, ...scheduleOf(planner)], { batch, onEvent, isEnough });
  if (heard.firstMs === undefined) throw new Error(`The run went on without ${device} without a recovery.`);
  return {
    device,
    plan: heard.plan,
    readySeconds: heard.readySeconds,
    trainedMs: heard.trainedMs,
    recoveryMs: heard.firstMs - heard.lostMs,
    layoutMs: heard.recoverySeconds * 1000,
    wholeMs: phaseMs.training - phaseMs.planning,
    lightPlan: heard.event.plan,
    movedMiB: heard.event.movedMiB,
    source: heard.event.source,
    repeatedRounds: heard.event.repeatedRounds,
    beforeMs: median(heard.before),
    afterMs: median(heard.after.slice(settlingRounds)),
    series: heard.series.map(([ms, samplesPerS]) => [(ms - heard.lostMs) / 1000, samplesPerS]),
  };
}

/** `best` chooses the schedule, too. */
const scheduleOf = (planner) => ['--schedule', planner === 'best' ? 'auto' : '1f1b'];

/** ResPipe: the next device takes over all layers of a lost one (FTPipeHD, section IV-D). Undefined where stages are replicated or the device was the last. */
function takenOver(plan, device) {
  const { stages } = plan;
  const at = stages.findIndex(({ devices }) => devices[0] === device);
  const next = stages[at + 1];
  if (at < 0 || next === undefined || stages.some(({ devices }) => devices.length > 1)) return undefined;
  const merged = { ...next, layers: [stages[at].layers[0], next.layers[1]] };
  const left = [...stages.slice(0, at), merged, ...stages.slice(at + 2)];
  return { ...plan, stages: left.map((stage, index) => ({ ...stage, inFlight: left.length - index })) };
}

/** What copies cost in a run that nothing happens to: by how much rounds with a copy under way are longer than the others, as a part of all time. */
async function costOfCopies({ bed, train, batch }, layout) {
  const roundMs = [];
  const copied = new Set();
  const versions = [];
  const onEvent = (event) => {
    if (event.event === 'round') roundMs.push((batch / event.samplesPerS) * 1000);
    if (event.event !== 'replicated') return;
    versions.push(event.round);
    // The state after n rounds is copied from round n on, until now.
    for (let round = event.round; round <= roundMs.length; round++) copied.add(round);
  };
  await train(['--steps', String(2 * copyRounds), '--plan', bed.writePlan(layout)], { batch, onEvent });
  const measured = roundMs.map((ms, round) => ({ ms, isCopied: copied.has(round) })).slice(copyRounds);
  const baseMs = median(measured.filter(({ isCopied }) => !isCopied).map(({ ms }) => ms));
  const sum = (rounds) => rounds.reduce((total, { ms }) => total + ms, 0);
  const withCopy = measured.filter(({ isCopied }) => isCopied);
  return {
    baseMs,
    versions,
    roundCount: withCopy.length,
    cost: (sum(withCopy) - withCopy.length * baseMs) / sum(measured),
  };
}

/**
 * Each device of a group lost in turn (light: what the run itself does), and the same devices without it under the plan that the whole planner makes for them
 * (heavy), from the start. Also what copies cost.
 */
export async function measureRecovery(ready, { planner, lost, optimizerState, rounds, log }) {
  const { bed, profile, cluster, batch, sizes, train } = ready;
  const schedule = planner === 'best' ? {} : { schedule: '1f1b' };
  const planWithout = (...exclude) =>
    plan({
      profile,
      cluster,
      exclude,
      batchSize: batch,
      microBatchSize: sizes.microBatchSize,
      planner,
      ...schedule,
      optimizerState,
      replicateBatchDependent: true,
    });
  /** Medians of the layouts' rounds. */
  const inTurn = async (layouts) => {
    const measured = layouts.map(() => []);
    for (let turn = 0; turn < turns; turn++)
      for (const [index, layout] of layouts.entries()) {
        const words = ['--steps', String(settlingRounds + rounds), '--plan', bed.writePlan(layout)];
        measured[index].push(...(await train(words, { batch, warmUp: settlingRounds })).roundMs);
      }
    return measured.map(median);
  };
  const whole = planWithout();
  log(`  ${formOf(whole)}`);
  const copies = await costOfCopies(ready, whole);
  log(`  copies after ${copies.versions.join(', ')} rounds: ${(100 * copies.cost).toFixed(1)} % in the second half`);
  const losses = [];
  for (const name of lost ?? cluster.devices.map((device) => device.name)) {
    const loss = await loseDevice({ ...ready, rounds, planner }, name);
    const merged = lost === undefined ? undefined : takenOver(loss.plan, name);
    const [lightMs, heavyMs, respipeMs] = await inTurn([
      loss.lightPlan,
      planWithout(name),
      ...(merged === undefined ? [] : [merged]),
    ]);
    losses.push({ ...loss, lightMs, heavyMs, respipeMs });
    log(
      `  ${name}: ${loss.recoveryMs.toFixed(0)} ms (layout ${loss.layoutMs.toFixed(0)}, all anew ${loss.wholeMs.toFixed(0)}), ${loss.movedMiB.toFixed(1)} MiB moved from ${loss.source}; lost ${(loss.trainedMs / 1000).toFixed(0)} s into training, ${loss.readySeconds === undefined ? 'devices not ready' : `devices ready ${loss.readySeconds.toFixed(0)} s after their layout began`}; rounds ${loss.beforeMs.toFixed(0)} -> ${loss.afterMs.toFixed(0)} ms; in turn light's ${lightMs.toFixed(0)}, heavy's ${heavyMs.toFixed(0)}${respipeMs === undefined ? '' : `, ResPipe's ${respipeMs.toFixed(0)}`}`,
    );
  }
  return { copies, losses };
}

/** Throughput over the seconds around a loss, as SVG: that of the round in which a second lies, beside the plan that the devices left could have had. */
export function recoveryChart({ cluster, batch, losses: [loss] }) {
  const { device, series, recoveryMs, heavyMs } = loss;
  const [first, last] = [Math.ceil(series[0][0]), Math.floor(series.at(-1)[0])];
  const xs = Array.from({ length: last - first + 1 }, (_, index) => first + index);
  const at = (second) =>
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
