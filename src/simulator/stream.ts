// A stream of ticks on the virtual clock: a few rounds from the first to the last, which show how the pipeline fills
// and drains, and beside them the steady state, whose period is exact: the critical cycle of what waits for what. Where
// flows of several kinds share a link, who waits for whom depends on when; rounds are then run until they repeat
// themselves.

import type { PlanLayout } from '../cluster/cluster.ts';
import type { OptimizerState } from '../cluster/memory.ts';
import type { Program, ProgramEvent } from '../schedule/program.ts';
import { scheduleOf } from '../schedule/schedules.ts';
import { roundsInTick, unroll } from '../schedule/unroll.ts';
import { compile } from './compile.ts';
import type { Compiled } from './compiled.ts';
import { criticalCycle } from './cycle-ratio.ts';
import type { Ground } from './ground.ts';
import { meanMs, repeatedAfterMs, roundsOf } from './repetition.ts';
import { reportDevices, reportLinks } from './report.ts';
import type { Simulation } from './simulation.ts';
import { waitGraph } from './wait-graph.ts';
import { World } from './world.ts';

/** Whether a Program is the tick of a stream. */
export function isTick({ schedule, devices }: Program): boolean {
  return (
    devices.some(({ instructions }) => instructions.some(({ round = 0 }) => round !== 0)) ||
    scheduleOf(schedule).isStream
  );
}

/** Rounds between filling and draining that are simulated, at least. */
const steadyRounds = 3;
/** Where flows share a link: rounds that are run until all comes again as it was. */
const repeatingRounds = [24, 96, 384];
/** Beyond the rounds that meet in a tick: rounds back to which what is under way may depend. */
const memoryRounds = 4;

export function simulateStream(
  program: Program,
  plan: PlanLayout,
  ground: Ground,
  { events, optimizerState }: { readonly events: boolean; readonly optimizerState: OptimizerState },
): Simulation {
  const shown = run(program, plan, ground, { roundCount: roundsInTick(program) + steadyRounds, events: true });
  const { periodMs: roundMs, isExact } = steadyState(program, plan, ground);
  const context = { compiled: shown.compiled, ground, optimizerState };
  return {
    events: events ? shown.world.events : [],
    roundMs,
    samplesPerS: (plan.batchSize / roundMs) * 1000,
    stream: { ...filling(shown.world.events, program), roundCount: shown.compiled.roundCount, isExact },
    devices: reportDevices(context, shown.world.work, roundMs),
    links: reportLinks(context, shown.world.work),
  };
}

interface Run {
  readonly compiled: Compiled;
  readonly world: World;
}

function run(
  program: Program,
  plan: PlanLayout,
  ground: Ground,
  { roundCount, events }: { readonly roundCount: number; readonly events: boolean },
): Run {
  const compiled = compile({ ...program, ...unroll(program, roundCount) }, plan, ground);
  const world = new World(compiled, ground, events);
  world.run();
  return { compiled, world };
}

/** The period, and whether that is exact: else it is the mean of many rounds. */
interface SteadyState {
  readonly periodMs: number;
  readonly isExact: boolean;
}

function steadyState(program: Program, plan: PlanLayout, ground: Ground): SteadyState {
  const graph = waitGraph(compile(program, plan, ground), program);
  if (graph !== undefined) return { periodMs: criticalCycle(graph).periodMs, isExact: true };
  let periodMs = 0;
  for (const roundCount of repeatingRounds) {
    const { events } = run(program, plan, ground, { roundCount, events: true }).world;
    const rounds = roundsOf(events, roundCount);
    const found = repeatedAfterMs(rounds, roundsInTick(program) + memoryRounds);
    if (found !== undefined) return { periodMs: found, isExact: true };
    periodMs = meanMs(rounds);
  }
  return { periodMs, isExact: false };
}

/** When the last stage begins, and how long after the first stage's last forward the stream ends. */
function filling(
  events: readonly ProgramEvent[],
  { stageCount }: Program,
): { readonly fillMs: number; readonly drainMs: number } {
  let [fillMs, lastForwardMs, endMs] = [Number.POSITIVE_INFINITY, 0, 0];
  for (const { kind, stage, startMs, endMs: ownEndMs } of events) {
    endMs = Math.max(endMs, ownEndMs);
    if (kind !== 'forward') continue;
    if (stage === stageCount - 1) fillMs = Math.min(fillMs, startMs);
    if (stage === 0) lastForwardMs = Math.max(lastForwardMs, ownEndMs);
  }
  return { fillMs: Number.isFinite(fillMs) ? fillMs : 0, drainMs: endMs - lastForwardMs };
}
