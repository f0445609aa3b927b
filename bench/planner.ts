// How good and how fast the planners are. Usage:
//   npm run bench -- planner --part PART [--count N] [--from SEED] [--seconds S] [--dist FOLDER]
//   exact    best against exhaustive on random problems of up to 4 devices and 7 layers (300: some minutes)
//   large    best against every other planner on random problems of 6 to 16 devices and 20 to 120 layers (1000: half an
//            hour or more)
//   formula  the round latency of Asteroid's eq. 4–6 against the simulator, on random plans and on asteroid's own
//   speed    CPU time of planning
//   cold     planningMs of `asteroid plan --planner pipeedge`, in fresh processes (9 devices of 3 kinds, 48 layers)
//   huge     planner best with 1000 devices, ended after --seconds of CPU time as the command line does
// Times are CPU times of this process, since the machine may be shared.

import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import type { Cluster, Plan, PlanLayout, Profile } from '../dist/cluster/cluster.js';
import type { PlanInput } from '../dist/planner/plan.js';
import { mean } from '../dist/statistics.js';
import { loadFrom } from './common/build.ts';
import { at, cpuMs, percent, quantile } from './common/numbers.ts';
import { tableHead, tableRow } from './common/table.ts';

const { values: flags } = parseArgs({
  options: {
    dist: { type: 'string', default: 'dist' },
    part: { type: 'string' },
    count: { type: 'string' },
    from: { type: 'string', default: '0' },
    seconds: { type: 'string', default: '45' },
  },
});
const load = loadFrom(flags.dist);
const { plan, planSteps } = await load('planner/plan.js');
const { plannerNames } = await load('planner/planners.js');
const { pipelineSteps, roundLatencyMs } = await load('planner/cost.js');
const { program } = await load('schedule/generate.js');
const { scheduleOf } = await load('schedule/schedules.js');
const { simulate } = await load('simulator/simulate.js');
const { createRandom } = await load('random.js');
const { layoutPlan } = await load('planner/layout.js');
const { randomInstance } = await load('testing/random-plans.js');
const { randomLayouts, randomProblem } = await load('testing/random-problems.js');

const from = Number(flags.from);

interface Attempt {
  readonly found: Plan | undefined;
  /** Not a number without a plan. */
  readonly roundMs: number;
  readonly boundMs: number;
  readonly cpuMs: number;
}

function attempt(input: PlanInput): Attempt {
  const startMs = cpuMs();
  let found: Plan | undefined;
  try {
    found = plan(input);
  } catch (error) {
    if (!(error instanceof Error && error.name === 'InputError')) throw error;
  }
  const { roundMs = Number.NaN, lowerBoundMs = Number.NaN } = found?.predicted ?? {};
  return { found, roundMs, boundMs: lowerBoundMs, cpuMs: cpuMs() - startMs };
}

function spread(values: readonly number[]): string {
  const quantiles = [0, 0.05, 0.25, 0.5, 0.75, 0.95, 1].map((q) => percent(quantile(values, q)));
  return (
    `mean ${percent(mean(values))}, mean magnitude ${percent(mean(values.map(Math.abs)))}; ` +
    `least, 5%, 25%, median, 75%, 95%, most: ${quantiles.join(', ')}`
  );
}

function exact(count: number): void {
  const seeds: Record<'different' | 'refusedByOne', number[]> = { different: [], refusedByOne: [] };
  const tally = { equal: 0, refusedByBoth: 0, proven: 0, boundAboveOptimum: 0, ...seeds };
  const cpu: Record<'best' | 'exhaustive', number[]> = { best: [], exhaustive: [] };
  for (let seed = from; seed < from + count; seed++) {
    const random = createRandom(seed, 31);
    const size = { deviceCount: 1 + random.integer(4), layerCount: 1 + random.integer(7) };
    const input = {
      ...randomInstance(seed, size),
      batchSize: at([4, 6, 8], random.integer(3)),
      optimizerState: stateOf(seed),
    };
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
    `CPU ms, mean: best ${mean(cpu.best).toFixed(0)}, exhaustive ${mean(cpu.exhaustive).toFixed(0)}; ` +
      `most: best ${Math.max(...cpu.best).toFixed(0)}`,
  );
}

/** Copies of weights that an optimizer keeps: none, one or two. */
function stateOf(seed: number): PlanInput['optimizerState'] {
  return at([0, 1, 2] as const, seed % 3);
}

/**
 * A larger problem: a quarter leave the micro-batch size of a batch of 32 open, the others have batches of 64 and one
 * of 4, 8 or 16.
 */
function largeInput(seed: number): PlanInput {
  const random = createRandom(seed, 32);
  const size = { deviceCount: 6 + random.integer(11), layerCount: 20 + random.integer(101) };
  const microBatchSize = at([4, 8, 16], random.integer(3));
  const sizes = seed % 4 === 0 ? { batchSize: 32 } : { batchSize: 64, microBatchSize };
  return { ...randomInstance(seed, size), ...sizes, optimizerState: stateOf(seed) };
}

function large(count: number): void {
  const others = plannerNames.filter((name) => name !== 'best' && name !== 'exhaustive');
  const worse: string[] = [];
  const ratios = new Map(others.map((name) => [name, [] as number[]]));
  const cpu: Record<'best' | 'asteroid', number[]> = { best: [], asteroid: [] };
  const gaps: number[] = [];
  const simpleGaps: number[] = [];
  const aboveARound: string[] = [];
  const errors: number[] = [];
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
      else ratios.get(planner)?.push(other.roundMs / best.roundMs - 1);
    }
    if ((seed - from) % 50 === 49) console.error(`${seed - from + 1} done`);
  }
  console.log(
    `${count} problems; no plan for ${refusedCount}; ` +
      `best worse than another planner: ${worse.length} ${worse.join(', ')}`,
  );
  console.log(`\n${tableHead(['planner', 'has a plan', 'round longer than best: mean', 'least', 'median', 'most'])}`);
  for (const [name, of] of ratios) {
    const cells = [mean(of), Math.min(...of), quantile(of, 0.5), Math.max(...of)].map(percent);
    console.log(`| ${name} | ${of.length} | ${cells.join(' | ')} |`);
  }
  console.log(`\nbest above its lower bound: ${spread(gaps)}`);
  console.log(`best above the simple bound (busiest device only): ${spread(simpleGaps)}`);
  console.log(`bounds above a round that was found: ${aboveARound.length} ${aboveARound.join(', ')}`);
  console.log(`eq. 4–6 against the simulator, asteroid's plans: ${spread(errors)}`);
  console.log(
    `CPU ms: best mean ${mean(cpu.best).toFixed(0)}, most ${Math.max(...cpu.best).toFixed(0)}; ` +
      `asteroid mean ${mean(cpu.asteroid).toFixed(0)}, most ${Math.max(...cpu.asteroid).toFixed(0)}`,
  );
}

/** (formula − simulated) / simulated. */
function formulaError(layout: PlanLayout, profile: Profile, cluster: Cluster): number {
  const simulated = simulate(program(layout), layout, profile, cluster, { events: false }).roundMs;
  return roundLatencyMs(pipelineSteps(layout, profile, cluster), layout.microBatchCount) / simulated - 1;
}

function formula(count: number): void {
  const byStages = new Map<number, number[]>();
  const all: number[] = [];
  for (let seed = from; seed < from + count; seed++) {
    const random = createRandom(seed, 33);
    const instance = randomInstance(seed, { deviceCount: 1 + random.integer(8), layerCount: 1 + random.integer(30) });
    const problem = { ...randomProblem(seed, instance.profile, instance.cluster), schedule: scheduleOf('1f1b') };
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
function kinds(
  count: number,
  layerCount: number,
  memoryMiB: readonly [number, number, number],
): { profile: Profile; cluster: Cluster & { readonly dataDevice: string } } {
  const { profile } = randomInstance(1, { deviceCount: 3, layerCount });
  const devices = Array.from({ length: count }, (_, index) => ({
    name: `d${index}`,
    kind: at(['slow', 'middle', 'fast'], index % 3),
    memoryMiB: at(memoryMiB, index % 3),
  }));
  return {
    profile,
    cluster: { devices, links: { default: { bandwidthMbps: 100, latencyMs: 0.3 } }, dataDevice: 'd0' },
  };
}

function speed(): void {
  const memory = [4096, 8192, 8192] as const;
  const rows: readonly (readonly [string, Omit<PlanInput, 'optimizerState'>])[] = [
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
  console.log(tableHead(['what', 'CPU ms, first', 'CPU ms, best of 3', 'stages']));
  for (const [what, input] of rows) {
    const repeats = input.cluster.devices.length > 100 ? 1 : 3;
    const runs = Array.from({ length: repeats }, () => attempt({ ...input, optimizerState: 1 }));
    const first = at(runs, 0);
    const least = Math.min(...runs.map((run) => run.cpuMs));
    console.log(tableRow([what, first.cpuMs.toFixed(1), least.toFixed(1), first.found?.stages.length ?? 'no plan']));
  }
}

function cold(count: number): void {
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
        return (JSON.parse(printed.toString()) as { planningMs: number }).planningMs;
      });
      const cells = [0, 0.5, 1].map((at) => quantile(runs, at).toFixed(1));
      console.log(
        `| ${data === 'held' ? 'one device holds it' : 'everywhere'} ` +
          `| ${size[1] ?? 'all of 64'} | ${cells.join(' | ')} |`,
      );
    }
  }
  rmSync(folder, { recursive: true });
}

function huge(limitMs: number): void {
  const startMs = cpuMs();
  const spentMs = () => cpuMs() - startMs;
  const input = {
    ...kinds(1000, 213, [4096, 8192, 8192]),
    batchSize: 2048,
    optimizerState: 0,
    planner: 'best',
  } as const;
  const onBetter = ({ predicted }: Plan) =>
    console.log(`${(spentMs() / 1000).toFixed(1)} s: ${predicted.roundMs.toFixed(0)} ms a round`);
  const steps = planSteps({ ...input, isTimeUp: () => spentMs() > limitMs, onBetter });
  let step = steps.next();
  while (step.done !== true) step = steps.next();
  console.log(
    `end after ${(spentMs() / 1000).toFixed(1)} s; bound ${step.value.predicted.lowerBoundMs?.toFixed(0)} ms`,
  );
}

const parts: Readonly<Record<string, () => void>> = {
  cold: () => cold(Number(flags.count ?? 9)),
  huge: () => huge(1000 * Number(flags.seconds)),
  exact: () => exact(Number(flags.count ?? 300)),
  large: () => large(Number(flags.count ?? 1000)),
  formula: () => formula(Number(flags.count ?? 1000)),
  speed,
};
const part = parts[flags.part ?? ''];
if (part === undefined) throw new Error('--part must be one of exact, large, formula, speed, cold, huge.');
part();
