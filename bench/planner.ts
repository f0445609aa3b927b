// How good and how fast the planners are. Usage, after `npm run build`:
//   node bench/planner.mjs --part exact|large|formula|speed|cold|huge [--count N] [--from SEED] [--seconds S] [--dist FOLDER]
//   exact    best against exhaustive on random problems of up to 4 devices and 7 layers (300: some minutes)
//   large    best against every other planner on random problems of 6 to 16 devices and 20 to 120 layers (1000: half an hour or more)
//   formula  the round latency of Asteroid's eq. 4–6 against the simulator, on random plans and on asteroid's own
//   speed    CPU time of planning
//   cold     planningMs of `asteroid plan --planner pipeedge`, each in a fresh process (9 devices of 3 kinds, 48 layers)
//   huge     planner best with 1000 devices, ended after --seconds of CPU time as the command line does
// Times are CPU times of this process, since the machine may be shared.

import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';

const { values: flags } = parseArgs({
  options: {
    dist: { type: 'string', default: 'dist' },
    part: { type: 'string' },
    count: { type: 'string' },
    from: { type: 'string', default: '0' },
    seconds: { type: 'string', default: '45' },
  },
});
const load = (path) => import(pathToFileURL(resolve(flags.dist, path)).href);
const { plan, planSteps } = await load('planner/plan.js');
const { plannerNames } = await load('planner/planners.js');
const { pipelineSteps, roundLatencyMs } = await load('planner/cost.js');
const { program } = await load('schedule/generate.js');
const { simulate } = await load('simulator/simulate.js');
const { createRandom } = await load('random.js');
const { layoutPlan } = await load('planner/layout.js');
const { randomInstance } = await load('testing/random-plans.js');
const { randomLayouts, randomProblem } = await load('testing/random-problems.js');

const from = Number(flags.from);

function attempt(input) {
  const start = process.cpuUsage();
  let found;
  try {
    found = plan(input);
  } catch (error) {
    if (error.name !== 'InputError') throw error;
  }
  const { user, system } = process.cpuUsage(start);
  return {
    found,
    roundMs: found?.predicted.roundMs,
    boundMs: found?.predicted.lowerBoundMs,
    cpuMs: (user + system) / 1000,
  };
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const percent = (value) => `${(100 * value).toFixed(1)}%`;
function quantile(values, at) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(at * sorted.length))];
}
function spread(values) {
  const at = [0, 0.05, 0.25, 0.5, 0.75, 0.95, 1].map((q) => percent(quantile(values, q)));
  return `mean ${percent(mean(values))}, mean magnitude ${percent(mean(values.map(Math.abs)))}; least, 5%, 25%, median, 75%, 95%, most: ${at.join(', ')}`;
}

function exact(count) {
  const tally = { equal: 0, different: [], refusedByBoth: 0, refusedByOne: [], proven: 0, boundAboveOptimum: 0 };
  const cpu = { best: [], exhaustive: [] };
  for (let seed = from; seed < from + count; seed++) {
    const random = createRandom(seed, 31);
    const size = { deviceCount: 1 + random.integer(4), layerCount: 1 + random.integer(7) };
    const input = { ...randomInstance(seed, size), batchSize: [4, 6, 8][random.integer(3)], optimizerState: seed % 3 };
    const best = attempt({ ...input, planner: 'best' });
    const exhaustive = attempt({ ...input, planner: 'exhaustive' });
    cpu.best.push(best.cpuMs);
    cpu.exhaustive.push(exhaustive.cpuMs);
    if (best.found === undefined && exhaustive.found === undefined) tally.refusedByBoth++;
    else if (best.found === undefined || exhaustive.found === undefined) tally.refusedByOne.push(seed);
    else {
      if (Math.abs(best.roundMs - exhaustive.roundMs) <= 1e-9 * exhaustive.roundMs) tally.equal++;
      else tally.different.push(seed);
      if (best.boundMs === best.roundMs) tally.proven++;
      if (attempt({ ...input, planner: 'asteroid' }).boundMs > exhaustive.roundMs * (1 + 1e-9))
        tally.boundAboveOptimum++;
    }
  }
  console.log(JSON.stringify(tally));
  console.log(
    `CPU ms, mean: best ${mean(cpu.best).toFixed(0)}, exhaustive ${mean(cpu.exhaustive).toFixed(0)}; most: best ${Math.max(...cpu.best).toFixed(0)}`,
  );
}

/** A larger problem: a quarter leave the micro-batch size of a batch of 32 open, the others have batches of 64 and one of 4, 8 or 16. */
function largeInput(seed) {
  const random = createRandom(seed, 32);
  const size = { deviceCount: 6 + random.integer(11), layerCount: 20 + random.integer(101) };
  const microBatchSize = [4, 8, 16][random.integer(3)];
  const sizes = seed % 4 === 0 ? { batchSize: 32 } : { batchSize: 64, microBatchSize };
  return { ...randomInstance(seed, size), ...sizes, optimizerState: seed % 3 };
}

function large(count) {
  const others = plannerNames.filter((name) => name !== 'best' && name !== 'exhaustive');
  const worse = [];
  const ratios = Object.fromEntries(others.map((name) => [name, []]));
  const cpu = { best: [], asteroid: [] };
  const gaps = [];
  const simpleGaps = [];
  const aboveARound = [];
  const errors = [];
  let refusedCount = 0;
  for (let seed = from; seed < from + count; seed++) {
    const input = largeInput(seed);
    const best = attempt({ ...input, planner: 'best' });
    if (best.found === undefined) refusedCount++;
    else gaps.push(best.roundMs / best.boundMs - 1);
    cpu.best.push(best.cpuMs);
    for (const planner of others) {
      const other = attempt({ ...input, planner });
      if (planner === 'asteroid') {
        cpu.asteroid.push(other.cpuMs);
        if (other.found !== undefined) errors.push(formulaError(other.found, input.profile, input.cluster));
        if (best.found !== undefined && other.found !== undefined) simpleGaps.push(best.roundMs / other.boundMs - 1);
      }
      if (other.found === undefined) continue;
      if (best.found !== undefined && best.boundMs > other.roundMs) aboveARound.push(`${seed} ${planner}`);
      if (best.found === undefined || best.roundMs > other.roundMs) worse.push(`${seed} ${planner}`);
      else ratios[planner].push(other.roundMs / best.roundMs - 1);
    }
    if ((seed - from) % 50 === 49) console.error(`${seed - from + 1} done`);
  }
  console.log(
    `${count} problems; no plan for ${refusedCount}; best worse than another planner: ${worse.length} ${worse.join(', ')}`,
  );
  console.log(
    '\n| planner | has a plan | round longer than best: mean | least | median | most |\n| --- | --- | --- | --- | --- | --- |',
  );
  for (const [name, of] of Object.entries(ratios)) {
    const cells = [mean(of), Math.min(...of), quantile(of, 0.5), Math.max(...of)].map(percent);
    console.log(`| ${name} | ${of.length} | ${cells.join(' | ')} |`);
  }
  console.log(`\nbest above its lower bound: ${spread(gaps)}`);
  console.log(`best above the simple bound (busiest device only): ${spread(simpleGaps)}`);
  console.log(`bounds above a round that was found: ${aboveARound.length} ${aboveARound.join(', ')}`);
  console.log(`eq. 4–6 against the simulator, asteroid's plans: ${spread(errors)}`);
  console.log(
    `CPU ms: best mean ${mean(cpu.best).toFixed(0)}, most ${Math.max(...cpu.best).toFixed(0)}; asteroid mean ${mean(cpu.asteroid).toFixed(0)}, most ${Math.max(...cpu.asteroid).toFixed(0)}`,
  );
}

/** (formula − simulated) / simulated. */
function formulaError(layout, profile, cluster) {
  const simulated = simulate(program(layout), layout, profile, cluster, { events: false }).roundMs;
  return roundLatencyMs(pipelineSteps(layout, profile, cluster), layout.microBatchCount) / simulated - 1;
}

function formula(count) {
  const byStages = new Map();
  const all = [];
  for (let seed = from; seed < from + count; seed++) {
    const random = createRandom(seed, 33);
    const instance = randomInstance(seed, { deviceCount: 1 + random.integer(8), layerCount: 1 + random.integer(30) });
    const problem = { ...randomProblem(seed, instance.profile, instance.cluster), schedule: '1f1b' };
    const layout = layoutPlan(problem, 'random', randomLayouts(seed, problem));
    const error = formulaError(layout, instance.profile, instance.cluster);
    all.push(error);
    byStages.set(layout.stages.length, [...(byStages.get(layout.stages.length) ?? []), error]);
  }
  console.log(`${count} random plans: ${spread(all)}`);
  for (const [stages, errors] of [...byStages].sort(([a], [b]) => a - b))
    console.log(`${stages} stages (${errors.length}): ${spread(errors)}`);
}

/** `count` devices of three kinds with the same links everywhere. */
function kinds(count, layerCount, memoryMiB) {
  const { profile } = randomInstance(1, { deviceCount: 3, layerCount });
  const devices = Array.from({ length: count }, (_, index) => ({
    name: `d${index}`,
    kind: ['slow', 'middle', 'fast'][index % 3],
    memoryMiB: memoryMiB[index % 3],
  }));
  return {
    profile,
    cluster: { devices, links: { default: { bandwidthMbps: 100, latencyMs: 0.3 } }, dataDevice: 'd0' },
  };
}

function speed() {
  const memory = [4096, 8192, 8192];
  const rows = [
    ['asteroid, 6 devices, 213 layers, batch 2048', { ...kinds(6, 213, memory), batchSize: 2048, planner: 'asteroid' }],
    [
      'asteroid, 16 devices, 100 layers, unequal links, batch 2048',
      { ...randomInstance(1, { deviceCount: 16, layerCount: 100 }), batchSize: 2048, planner: 'asteroid' },
    ],
    [
      'asteroid, 64 devices, 213 layers, batch 2048',
      { ...kinds(64, 213, memory), batchSize: 2048, planner: 'asteroid' },
    ],
    [
      'asteroid, 64 devices, unequal links and memories',
      { ...randomInstance(1, { deviceCount: 64, layerCount: 213 }), batchSize: 2048, planner: 'asteroid' },
    ],
    [
      'asteroid, 1000 devices, 213 layers, batch 2048',
      { ...kinds(1000, 213, memory), batchSize: 2048, planner: 'asteroid' },
    ],
    [
      'pipeedge, 9 devices of 3 kinds, 48 layers, micro-batches of 8',
      { ...kinds(9, 48, memory), batchSize: 64, microBatchSize: 8, planner: 'pipeedge' },
    ],
  ];
  console.log('| what | CPU ms, first | CPU ms, best of 3 | stages |\n| --- | --- | --- | --- |');
  for (const [what, input] of rows) {
    const repeats = input.cluster.devices.length > 100 ? 1 : 3;
    const runs = Array.from({ length: repeats }, () => attempt({ ...input, optimizerState: 1 }));
    console.log(
      `| ${what} | ${runs[0].cpuMs.toFixed(1)} | ${Math.min(...runs.map(({ cpuMs }) => cpuMs)).toFixed(1)} | ${runs[0].found.stages.length} |`,
    );
  }
}

function cold(count) {
  const folder = mkdtempSync(join(tmpdir(), 'planner-'));
  const { profile, cluster } = kinds(9, 48, [4096, 8192, 8192]);
  const { dataDevice: _, ...local } = cluster;
  const files = { profile, held: cluster, local };
  for (const [name, document] of Object.entries(files))
    writeFileSync(join(folder, `${name}.json`), JSON.stringify(document));
  console.log(
    '| data | micro-batch size | planningMs, fresh processes: least | median | most |\n| --- | --- | --- | --- | --- |',
  );
  for (const data of ['local', 'held']) {
    for (const size of [['--micro-batch', '8'], []]) {
      const runs = Array.from({ length: count }, () => {
        const inputs = [
          '--profile',
          join(folder, 'profile.json'),
          '--cluster',
          join(folder, `${data}.json`),
          '--batch',
          '64',
        ];
        const printed = execFileSync(process.execPath, [
          resolve(flags.dist, 'cli/main.js'),
          'plan',
          ...inputs,
          ...size,
          '--planner',
          'pipeedge',
          '--json',
        ]);
        return JSON.parse(printed.toString()).planningMs;
      });
      const cells = [0, 0.5, 1].map((at) => quantile(runs, at).toFixed(1));
      console.log(
        `| ${data === 'held' ? 'one device holds it' : 'everywhere'} | ${size[1] ?? 'all of 64'} | ${cells.join(' | ')} |`,
      );
    }
  }
  rmSync(folder, { recursive: true });
}

function huge(limitMs) {
  const start = process.cpuUsage();
  const cpuMs = () => {
    const { user, system } = process.cpuUsage(start);
    return (user + system) / 1000;
  };
  const input = { ...kinds(1000, 213, [4096, 8192, 8192]), batchSize: 2048, optimizerState: 0, planner: 'best' };
  const onBetter = ({ predicted }) =>
    console.log(`${(cpuMs() / 1000).toFixed(1)} s: ${predicted.roundMs.toFixed(0)} ms a round`);
  const steps = planSteps({ ...input, isTimeUp: () => cpuMs() > limitMs, onBetter });
  let step = steps.next();
  while (step.done !== true) step = steps.next();
  console.log(`end after ${(cpuMs() / 1000).toFixed(1)} s; bound ${step.value.predicted.lowerBoundMs.toFixed(0)} ms`);
}

const parts = {
  cold: () => cold(Number(flags.count ?? 9)),
  huge: () => huge(1000 * Number(flags.seconds)),
  exact: () => exact(Number(flags.count ?? 300)),
  large: () => large(Number(flags.count ?? 1000)),
  formula: () => formula(Number(flags.count ?? 1000)),
  speed,
};
if (parts[flags.part] === undefined) throw new Error('--part must be one of exact, large, formula, speed, cold, huge.');
parts[flags.part]();
