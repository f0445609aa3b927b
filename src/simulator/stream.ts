// A stream of ticks on the virtual clock: a few rounds from the first to the last, which show how the pipeline fills and
// drains, and beside them the steady state, whose period is exact: the critical cycle of what waits for what.

import { defined } from '../assert.ts';
import type { PlanLayout } from '../cluster/cluster.ts';
import type { OptimizerState } from '../cluster/memory.ts';
import type { Program, ProgramEvent } from '../schedule/program.ts';
import { scheduleOf } from '../schedule/schedules.ts';
import { roundsInTick, unroll } from '../schedule/unroll.ts';
import { compile } from './compile.ts';
import type { Compiled, Flow } from './compiled.ts';
import { criticalCycle } from './cycle-ratio.ts';
import type { Ground } from './ground.ts';
import { reportDevices, reportLinks } from './report.ts';
import type { Simulation } from './simulation.ts';
import { type TickPiece, waitGraph } from './wait-graph.ts';
import { World } from './world.ts';

/** Whether a Program is the tick of a stream. */
export function isTick({ schedule, devices }: Program): boolean {
  return (
    scheduleOf(schedule).isStream ||
    devices.some(({ instructions }) => instructions.some(({ round = 0 }) => round !== 0))
  );
}

/** Rounds between filling and draining that are simulated, at least. */
const steadyRounds = 3;
/** Where flows share a link, it may take a while until their order comes again: rounds that are tried. */
const settlingRounds = [8, 32, 128];

export function simulateStream(
  program: Program,
  plan: PlanLayout,
  ground: Ground,
  { events, optimizerState }: { readonly events: boolean; readonly optimizerState: OptimizerState },
): Simulation {
  const shown = run(program, plan, ground, { roundCount: roundsInTick(program) + steadyRounds, events: true });
  const tick = compile(program, plan, ground);
  const graph = waitGraph(tick, program, (channel) => orderOn(channel, tick, { program, plan, ground }));
  const roundMs = criticalCycle(graph).periodMs;
  const context = { compiled: shown.compiled, ground, optimizerState };
  return {
    events: events ? shown.world.events : [],
    roundMs,
    samplesPerS: (plan.batchSize / roundMs) * 1000,
    stream: { ...filling(shown.world.events, program), roundCount: shown.compiled.roundCount },
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

/**
 * The order in which a tick's pieces leave on a link that several flows share: what comes again and again. An Error
 * where nothing does.
 */
function orderOn(
  channel: number,
  tick: Compiled,
  { program, plan, ground }: { readonly program: Program; readonly plan: PlanLayout; readonly ground: Ground },
): readonly TickPiece[] {
  const { from, to } = defined(tick.channels[channel], 'a channel');
  const pieceCount = tick.flows.filter((flow) => flow.channel === channel).length * tick.microBatchCount;
  for (const more of settlingRounds) {
    const roundCount = roundsInTick(program) + more;
    const { world, compiled } = run(program, plan, ground, { roundCount, events: false });
    const number = compiled.channels.findIndex((each) => each.from === from && each.to === to);
    const pieces = defined(world.departures[number], 'a channel').map((piece) => pieceOf(piece, compiled, tick));
    const found = repeatedOrder(pieces, pieceCount, roundCount / 2);
    if (found !== undefined) return found;
  }
  throw new Error(`the order of what leaves for "${ground.cluster.devices[to]?.name}" does not settle`);
}

/** A piece of several rounds as one of a tick. */
function pieceOf(number: number, compiled: Compiled, tick: Compiled): TickPiece {
  const flow = Math.floor(number / compiled.microBatchCount);
  const microBatch = number - flow * compiled.microBatchCount;
  const round = Math.floor(microBatch / tick.microBatchCount);
  const { rank, receiver, senderStage } = compiled.flows[flow] as Flow;
  const same = tick.flows.findIndex(
    (each) => each.rank === rank && each.receiver === receiver && each.senderStage === senderStage,
  );
  return { piece: same * tick.microBatchCount + microBatch - round * tick.microBatchCount, round };
}

/** The first `count` pieces from a round on, if the same come again a round later, each once. */
function repeatedOrder(pieces: readonly TickPiece[], count: number, fromRound: number): TickPiece[] | undefined {
  const start = pieces.findIndex(({ piece, round }) => piece === pieces[0]?.piece && round >= fromRound);
  const first = pieces[start]?.round ?? 0;
  const [order, again] = [0, 1].map((after) =>
    pieces
      .slice(start + after * count, start + (after + 1) * count)
      .map(({ piece, round }) => ({ piece, round: round - first - after })),
  );
  const isRepeated = order?.every(({ piece, round }, place) => {
    const other = again?.[place];
    return other?.piece === piece && other.round === round;
  });
  const isWhole = new Set(order?.map(({ piece }) => piece)).size === count;
  return isRepeated === true && isWhole ? order : undefined;
}
