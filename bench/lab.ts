// @ts-nocheck
// Plans on real shaped clusters of one machine, beside the simulator's prediction from the measured profile. Linux, root, iproute2.
//   npm run bench:lab -- [--json] [--section forms,links,table4,memory,together,peers,recovery,slowed] [--only WORD] [--rounds N] [--warm-up SECONDS] [--priority normal] [--python FILE] [--caches FOLDER] [--skip-single] [--profile-each] [--plot FILE] [-o FILE]
//
//   forms    plans of different form in the environments A, C and D (an hour, half of it for a batch of 2000); the default, with links
//   links    a link that is the bottleneck; an AllReduce beside its ideal time
//   table4   the lab's versions of the paper's Table 4: `best` beside data parallelism and a straight pipeline (an hour and a half)
//   memory   two devices whose memory limits the planner's plan fills: peaks, and kills by the system
//   together five devices that train by themselves, one alone and all at once: what this machine leaves of five times one device
//   peers    PyTorch's DDP and pipeline on the same devices (needs --python with torch and torchvision)
//   recovery each device lost in turn: time until training goes on, and its speed then beside the best plan for the devices left; what copies cost
//   slowed   a link, and a device, that become slow in training: when that is noticed, and the speed then beside the best plan for how things are now
//   --caches a folder in which measured profiles stay for the next call
//   --skip-single leaves out the best single device of each group; speed-ups over it are null
//   --profile-each measures the devices anew before each form: a host that others share has another speed minutes later
//   --plot   throughput around the first loss of section recovery, as SVG
//   --only   cases whose name contains the word; --rounds: measured rounds of each case at most; --warm-up: how long before them (120); -o: the tables as Markdown

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { processMiB } from '../dist/cluster/memory.js';
import { bufferBytes } from '../dist/graph/layers.js';
import { buildModel } from '../dist/models/zoo.js';
import { plan } from '../dist/planner/plan.js';
import { refreshProfile } from '../dist/runtime/knowledge/estimator.js';
import { trainedLayers } from '../dist/runtime/run/fine-tuning.js';
import { program } from '../dist/schedule/generate.js';
import { createSimulator } from '../dist/simulator/simulate.js';
import { steadyRoundMs } from '../dist/simulator/steady.js';
import { environment, forms, links, memory, models, peers, recovery, slowed, table4, together } from './lab/cases.ts';
import { formOf, layoutOf } from './lab/forms.ts';
import { byBlocks, missingPyTorch, runPyTorch } from './lab/peers.ts';
import { measureRecovery, recoveryChart } from './lab/recovery.ts';
import { measureSlowed } from './lab/slowed.ts';
import {
  budgetTable,
  casesTable,
  linksTable,
  memoryTable,
  peersTable,
  recoveryTable,
  slowedTable,
  table4Table,
  togetherTable,
} from './lab/tables.ts';
import { openTestbed } from './lab/testbed.ts';
import { trainApart } from './lab/together.ts';

const { values: flags } = parseArgs({
  options: {
    json: { type: 'boolean', default: false },
    section: { type: 'string', default: 'forms,links' },
    only: { type: 'string', default: '' },
    rounds: { type: 'string', default: '8' },
    'warm-up': { type: 'string', default: '120' },
    priority: { type: 'string', default: 'high' },
    python: { type: 'string' },
    caches: { type: 'string' },
    'skip-single': { type: 'boolean', default: false },
    'profile-each': { type: 'boolean', default: false },
    plot: { type: 'string' },
    output: { type: 'string', short: 'o' },
  },
});
const rounds = Number(flags.rounds);
/**
 * Rounds before those that count: programs and links of slow devices take some to become as fast as they stay. (On a third of a core V8 optimizes for minutes: a tenth
 * of a stage's processor time in the first, a fiftieth in the second.) Of long rounds fewer do, and fewer are measured.
 */
const warmUp = 130;
const [leastWarmUp, measuredMs, leastRounds] = [4, 60_000, 6];
const warmUpMs = Number(flags['warm-up']) * 1000;
/** Of rounds that take longer than that, one before three that count. */
const longMs = 20_000;
/** SGD with momentum keeps one copy of each weight. */
const optimizerState = 1;

const log = (text) => process.stderr.write(`${text}\n`);
const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];
const round = (value, digits = 3) => Number(value.toPrecision(digits));
const percent = (value) => `${(100 * value).toFixed(1)} %`;

const caches = flags.caches ?? mkdtempSync(join(tmpdir(), 'asteroid-profiles-'));
let open: Awaited<ReturnType<typeof openTestbed>> | undefined;
if (flags.caches === undefined) process.once('exit', () => rmSync(caches, { recursive: true, force: true }));
const leave = (code) => void Promise.resolve(open?.close()).finally(() => process.exit(code));
for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => leave(130));
// No lab stays behind, whatever went wrong.
process.once('uncaughtException', (error) => {
  console.error(error);
  leave(1);
});

/** A round among others, as those that are measured. */
function predicted(simulate, layout) {
  const { devices } = simulate(program(layout), layout, { optimizerState, events: false });
  return { devices, roundMs: steadyRoundMs(simulate, program(layout), layout) };
}

/** Rounds of a plan that is predicted to take so long. */
function roundCounts(predictedMs) {
  if (predictedMs > longMs) return { warmUp: 1, rounds: 3 };
  const within = (least, most, ms) => Math.min(most, Math.max(least, Math.ceil(ms / predictedMs)));
  return {
    warmUp: within(leastWarmUp, warmUp, warmUpMs),
    rounds: within(Math.min(leastRounds, rounds), rounds, measuredMs),
  };
}

function sizeArgs({ microBatchSize, microBatchCount }) {
  return ['--batch', String(microBatchSize * microBatchCount), '--micro-batch', String(microBatchSize)];
}

/** What is trained in a group, whatever the plan. */
function settingsOf({ model: modelName, microBatch, count }) {
  const { model, data } = models[modelName];
  return [
    '--model',
    model,
    '--data',
    data,
    ...sizeArgs({ microBatchSize: microBatch, microBatchCount: count }),
    '--lr',
    '0.01',
    '--momentum',
    '0.9',
    '--no-shuffle',
    '--checkpoint-every',
    '1000000',
    '--eval-every',
    '0',
  ];
}

async function openBed({ name, environment: [letter, mbps, memoryMiB] }) {
  const bed = await openTestbed(environment(letter, mbps, memoryMiB), {
    name: 'bench',
    priority: flags.priority,
    caches,
  });
  open = bed;
  log(`${name}: ${bed.lab.layout.devices.map(({ name: device, cores }) => `${device} ${cores}`).join(', ')} cores`);
  return bed;
}

/** A group's lab, with its devices profiled and its links measured: what runs the group's plans. */
async function openGroup(group) {
  const bed = await openBed(group);
  return await measured(group, bed).catch(async (error) => {
    await bed.close();
    throw error;
  });
}

/** The same in a lab that is open, with what is measured now or cached. */
async function measured(group, bed) {
  const { microBatch, count, copies = false } = group;
  const batch = microBatch * count;
  const settings = [...settingsOf(group), '--replicate-batch-norm', ...(copies ? [] : ['--replicate-every', '0'])];
  const { profile, cluster } = await bed.train([...settings, '--steps', '1', '--planner', 'dp', '--schedule', '1f1b'], {
    batch,
  });
  const simulate = createSimulator(profile, cluster);
  return {
    bed,
    profile,
    cluster,
    batch,
    sizes: { microBatchSize: microBatch, microBatchCount: count },
    fastest: bed.lab.layout.devices.toSorted((a, b) => b.cores - a.cores)[0].name,
    predict: (layout) => predicted(simulate, layout),
    /** As the run itself would, after rounds like this one, of what devices told of it, but without its patience with small differences; and how many times as long each computed. */
    predictAfter(layout, told) {
      const alike = Object.fromEntries(Object.entries(told).map(([device, one]) => [device, Array(5).fill(one)]));
      const { profile: corrected, factors } = refreshProfile(profile, layout, cluster, alike, 0);
      return { ...predicted(createSimulator(corrected, cluster), layout), factors };
    },
    train: (args, options) => bed.train([...settings, ...args], options),
    run(layout) {
      const counts = roundCounts(simulate(program(layout), layout, { events: false }).roundMs);
      const own = [
        ...sizeArgs(layout),
        '--steps',
        String(counts.warmUp + counts.rounds),
        '--plan',
        bed.writePlan(layout),
      ];
      return bed.train([...settings, ...own], { warmUp: counts.warmUp, batch });
    },
  };
}

/** As `asteroid plan` has it: what somebody would run who waits no longer. */
const planningLimitMs = 45_000;

/** `microBatch` of a case: the group's batch, in micro-batches of its own size. */
function layoutFor(how, { profile, cluster, sizes: usual, batch }) {
  const sizes =
    how.microBatch === undefined ? usual : { microBatchSize: how.microBatch, microBatchCount: batch / how.microBatch };
  if (how.groups !== undefined) return layoutOf(profile, cluster, { ...how, ...sizes });
  const schedule = how.schedule === undefined ? {} : { schedule: how.schedule };
  const startMs = performance.now();
  const isTimeUp = () => performance.now() - startMs > planningLimitMs;
  return plan({
    profile,
    cluster,
    batchSize: batch,
    microBatchSize: sizes.microBatchSize,
    planner: how.planner,
    optimizerState,
    replicateBatchDependent: true,
    isTimeUp,
    ...schedule,
  });
}

/** All cases of a group that are asked for; the best single device is the first. */
async function runCases(group) {
  const wanted = Object.entries(group.cases).filter(([form]) => `${group.name} ${form}`.includes(flags.only));
  if (wanted.length === 0) return [];
  let ready = await openGroup(group);
  try {
    const results = [];
    const single = [
      `one device, ${ready.fastest}`,
      { groups: [[ready.fastest]], schedule: '1f1b', microBatch: group.microBatchOfOne },
    ];
    for (const [form, how] of flags['skip-single'] ? wanted : [single, ...wanted]) {
      if (flags['profile-each'] && results.length > 0) {
        ready.bed.forgetProfiles();
        ready = await measured(group, ready.bed);
      }
      const layout = layoutFor(how, ready);
      const result = caseResult(
        group,
        form,
        layout,
        ready,
        await ready.run(layout),
        flags['skip-single'] ? null : results[0],
      );
      results.push(result);
      const cores = Object.values(result.coresUsed).join(' ');
      log(
        `  ${form}: measured ${result.measuredRoundMs} ms, predicted ${result.predictedRoundMs} (${percent(result.difference)}), after the warm-up ${result.settledRoundMs} (${percent(result.settledDifference)}), every other round ${result.checkedRoundMs}, corrected by those between ${result.correctedRoundMs} (${percent(result.correctedDifference)}), ${result.speedupOverBestDevice ?? '?'}x, busiest link ${percent(result.linkUtilisation)}; cores ${cores}; work beside profile ${Object.values(result.workFactors).join(' ')}; the host took ${percent(result.stolen)}`,
      );
    }
    return results;
  } finally {
    await ready.bed.close();
  }
}

function caseResult(group, form, layout, ready, run, single) {
  const predicted = ready.predict(layout);
  const measuredRoundMs = median(run.roundMs);
  const names = layout.stages.flatMap(({ devices }) => devices);
  // A host shared with others becomes faster and slower by a third within seconds, whatever was measured before. So every other round corrects the profile, by the
  // processor time that devices told of it, and the rounds between these are what is predicted: they had the same host, and the prediction has not seen them.
  const [telling, checking] = [0, 1].map((parity) =>
    run.roundMs.map((_, index) => index).filter((index) => index % 2 === parity),
  );
  const told = telling.map((index) =>
    Object.fromEntries(Object.entries(run.rounds).map(([device, all]) => [device, all[index]])),
  );
  const after = told.map((one) => ready.predictAfter(layout, one));
  // What is known when these rounds begin: the rounds before them have checked the profile on the plan's real stages.
  const settledRoundMs = median(run.settled.map((one) => ready.predictAfter(layout, one).roundMs));
  const [correctedRoundMs, checkedRoundMs] = [
    median(after.map(({ roundMs }) => roundMs)),
    median(checking.map((index) => run.roundMs[index])),
  ];
  const busiest = run.links.toSorted((a, b) => b.use - a.use)[0];
  const sender = busiest?.link.split('->')[0];
  return {
    cluster: group.name,
    model: models[group.model].model,
    form,
    plan: formOf(layout),
    measuredRoundMs: round(measuredRoundMs, 4),
    predictedRoundMs: round(predicted.roundMs, 4),
    difference: round(measuredRoundMs / predicted.roundMs - 1),
    settledRoundMs: round(settledRoundMs, 4),
    settledDifference: round(measuredRoundMs / settledRoundMs - 1),
    correctedRoundMs: round(correctedRoundMs, 4),
    checkedRoundMs: round(checkedRoundMs, 4),
    correctedDifference: round(checkedRoundMs / correctedRoundMs - 1),
    workFactors: Object.fromEntries(
      names.map((device) => [device, round(median(after.map(({ factors }) => factors[device] ?? 1)))]),
    ),
    // The first case is the best device itself.
    speedupOverBestDevice:
      single === null ? null : round(single === undefined ? 1 : single.measuredRoundMs / measuredRoundMs),
    linkUtilisation: round(busiest?.use ?? 0),
    busiestLink: busiest?.link ?? null,
    utilisationWhileSending: round(run.sending[sender]?.use ?? 0),
    allReduce:
      layout.stages.length === 1 && names.length > 1
        ? allReduceOf(run, names, ready, busiest, statisticBytes(models[group.model].model))
        : null,
    memory: names.map((device) => ({
      device,
      measuredMiB: round(run.peakMemoryMiB[device] ?? 0),
      predictedMiB: round(processMiB + predicted.devices[device].peakMemoryMiB),
    })),
    // Of the machine's processor time, what its host gave to others: no part of what devices tell of their work.
    stolen: round(run.stolen, 2),
    coresUsed: Object.fromEntries(names.map((device) => [device, round(run.coresUsed[device] ?? 0)])),
    roundsMs: run.roundMs.map((ms) => round(ms, 4)),
  };
}

/** Of a model's batch statistics, which are averaged with the gradients. */
function statisticBytes(spec) {
  const { sequence } = trainedLayers(buildModel(spec, { initialize: false }).graph, {
    loss: 'cross-entropy',
    freeze: [],
    freezeAllBut: [],
  });
  return sequence.layers.reduce((sum, layer) => sum + bufferBytes(sequence, layer), 0);
}

/** Of a full Ethernet frame of TCP with time stamps, what is payload: no program gets more of a link. */
const tcpShare = 1448 / 1514;

/**
 * The time for which a member of a ring was sending in each round, and the bytes that its shaper let through, headers included, beside
 * 2(n−1)/n · bytes / bandwidth, with batch statistics among the bytes: by the wire's bandwidth, and by what TCP carries over it.
 */
function allReduceOf(run, names, { profile }, { mbps }, statisticBytes) {
  const bytes = profile.layers.reduce((sum, layer) => sum + layer.weightBytes, statisticBytes);
  const idealBytes = (2 * (names.length - 1) * bytes) / names.length;
  const rounds = run.roundMs.length;
  const measuredMs = median(names.map((device) => run.sending[device].busyMs)) / rounds;
  const sentBytes = median(names.map((device) => run.sending[device].bytes)) / rounds;
  const idealMs = (idealBytes * 8) / (mbps * 1000);
  return {
    bytes,
    measuredMs: round(measuredMs, 4),
    idealMs: round(idealMs, 4),
    idealOfTcpMs: round(idealMs / tcpShare, 4),
    overhead: round(sentBytes / idealBytes - 1),
  };
}

/** Ours and PyTorch's, data parallel and as a straight pipeline, on the same devices. */
async function runPeers(group) {
  if (!group.name.includes(flags.only)) return [];
  const reason = missingPyTorch(flags.python);
  if (reason !== undefined) {
    log(`${group.name}: left out, ${reason}`);
    return [];
  }
  const ready = await openGroup(group);
  try {
    const { bed, profile, cluster, sizes, batch } = ready;
    const devices = bed.lab.layout.devices.map(({ name }) => name);
    // PyTorch's pipeline is cut at blocks: ours, too.
    const { profile: blocks, ends } = byBlocks(profile);
    const straightOf = (schedule) =>
      layoutOf(blocks, cluster, { groups: devices.map((name) => [name]), schedule, ...sizes });
    const inLayers = (layout) => ({
      ...layout,
      stages: layout.stages.map((stage) => ({ ...stage, layers: stage.layers.map((block) => ends[block - 1] ?? 0) })),
    });
    const straight = straightOf('1f1b');
    const cuts = straight.stages.slice(1).map(({ layers }) => layers[0]);
    const forms = [
      ['data parallel', 'ddp', layoutOf(profile, cluster, { groups: [devices], schedule: '1f1b', ...sizes }), {}],
      ['straight pipeline', 'pipeline', inLayers(straight), { cuts }],
    ];
    const results = [];
    for (const [form, mode, layout, more] of forms) {
      const ours = median((await ready.run(layout)).roundMs);
      const counts = roundCounts(ready.predict(layout).roundMs);
      const { torch, roundMs } = await runPyTorch(
        bed.lab,
        flags.python,
        { mode, batch, microBatchCount: sizes.microBatchCount, ...more },
        counts,
      );
      const add = (form, layout, ms) => {
        results.push({
          cluster: group.name,
          form,
          plan: formOf(layout),
          asteroidMs: round(ms, 4),
          pyTorchMs: round(median(roundMs), 4),
          torch,
        });
        log(`  ${form}: ${ms.toFixed(0)} ms, PyTorch ${torch} ${median(roundMs).toFixed(0)} ms`);
      };
      add(form, layout, ours);
      if (mode !== 'pipeline') continue;
      // A stage and a device: PyTorch's schedules without a bubble want several stages a device.
      const zeroBubble = inLayers(straightOf('zb-h1'));
      add(`${form}, ZB-H1 beside its 1F1B`, zeroBubble, median((await ready.run(zeroBubble)).roundMs));
    }
    return results;
  } finally {
    await ready.bed.close();
  }
}

/** What a plan that fills the devices' memory takes of their limits, profiles included. */
async function runMemory(group) {
  if (!group.name.includes(flags.only)) return [];
  const bed = await openBed(group);
  try {
    const lost = [];
    const onEvent = (event) => event.event === 'left' && lost.push(event.device);
    const args = [
      ...settingsOf(group),
      '--replicate-batch-norm',
      '--recompute',
      'auto',
      '--planner',
      'best',
      ...(group.schedule === undefined ? [] : ['--schedule', group.schedule]),
      '--steps',
      String(rounds),
    ];
    const { plan, peakMemoryMiB } = await bed.train(args, { batch: group.microBatch * group.count, onEvent });
    const devices = bed.limits().map(({ device, limitMiB, killCount }) => {
      const predictedMiB = processMiB + (plan.predicted.peakMemoryMiB[device] ?? 0);
      return {
        device,
        limitMiB,
        predictedMiB: round(predictedMiB),
        measuredMiB: round(peakMemoryMiB[device]),
        killCount,
      };
    });
    log(
      `  ${formOf(plan)}: ${devices.map(({ device, measuredMiB, limitMiB, killCount }) => `${device} ${measuredMiB} of ${limitMiB} MiB, ${killCount} kills`).join('; ')}`,
    );
    return [{ cluster: group.name, plan: formOf(plan), lost, devices }];
  } finally {
    await bed.close();
  }
}

/** Devices that train by themselves, one alone and all at once: what is between the two is the machine's. */
async function runTogether(group) {
  if (!group.name.includes(flags.only)) return [];
  const bed = await openBed(group);
  try {
    const names = bed.lab.layout.devices.map(({ name }) => name);
    const counts = { batch: group.microBatch * group.count, warmUp: leastWarmUp, rounds };
    const results = [];
    // The one before and after all: the machine becomes faster and slower.
    for (const devices of [names.slice(0, 1), names, names.slice(0, 1)]) {
      const times = await trainApart(bed.lab, devices, settingsOf(group), counts);
      results.push({ devices: devices.length, roundMs: Object.values(times).map((all) => round(median(all), 4)) });
      log(`  ${devices.length} at once: ${results.at(-1).roundMs.join(', ')} ms`);
    }
    return [{ cluster: group.name, model: models[group.model].model, results }];
  } finally {
    await bed.close();
  }
}

/** Devices that are lost in the middle of training. */
async function runRecovery(group) {
  if (!group.name.includes(flags.only)) return [];
  const ready = await openGroup({ ...group, copies: true });
  try {
    return [
      {
        cluster: group.name,
        model: models[group.model].model,
        batch: ready.batch,
        ...(await measureRecovery(ready, { ...group, optimizerState, rounds, log })),
      },
    ];
  } finally {
    await ready.bed.close();
  }
}

/** What becomes slow in the middle of training. */
async function runSlowed(group) {
  const wanted = ['link', 'device'].filter((what) => `${group.name} ${what}`.includes(flags.only));
  const found = await measureSlowed(() => openGroup({ ...group, copies: true }), {
    wanted,
    optimizerState,
    rounds,
    log,
  });
  return found.map((result) => ({ cluster: group.name, model: models[group.model].model, ...result }));
}

const sections = flags.section.split(',');
const results = { cases: [], memory: [], together: [], peers: [], recovery: [], slowed: [] };
const tables = [];
for (const [name, groups] of Object.entries({ forms, links, table4 })) {
  if (!sections.includes(name)) continue;
  const found = [];
  for (const group of groups) found.push(...(await runCases(group)));
  results.cases.push(...found);
  tables.push(casesTable(found), memoryTable(found), linksTable(found));
  if (name === 'table4') tables.push(table4Table(found, table4));
}
if (sections.includes('memory')) {
  for (const group of memory) results.memory.push(...(await runMemory(group)));
  tables.push(budgetTable(results.memory));
}
if (sections.includes('together')) {
  for (const group of together) results.together.push(...(await runTogether(group)));
  tables.push(togetherTable(results.together));
}
if (sections.includes('peers')) {
  for (const group of peers) results.peers.push(...(await runPeers(group)));
  tables.push(peersTable(results.peers));
}
if (sections.includes('recovery')) {
  for (const group of recovery) results.recovery.push(...(await runRecovery(group)));
  tables.push(...results.recovery.map(recoveryTable));
  if (flags.plot !== undefined && results.recovery.length > 0)
    writeFileSync(flags.plot, recoveryChart(results.recovery[0]));
}
if (sections.includes('slowed')) {
  for (const group of slowed) results.slowed.push(...(await runSlowed(group)));
  tables.push(slowedTable(results.slowed));
}
const text = tables.filter((table) => table !== '').join('\n\n');
if (flags.output !== undefined) writeFileSync(flags.output, `${text}\n`);
console.log(flags.json ? JSON.stringify(results) : text);
