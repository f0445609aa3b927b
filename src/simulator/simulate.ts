// Runs a Program on a virtual clock with a profile's times, by the rules of the simulated world (planner.md, "The
// simulated world", cited here as rule 1 to rule 6). Pure and deterministic; O(E log E) for E instructions, with a heap
// as small as what is under way at once. What it settles where the rules are silent:
// - labels are pieces of the last stage's forward, which computes the loss;
// - a device is busy while it computes (forward, backward, update), not while it waits in an AllReduce, which is no
//   link's traffic either;
// - the buckets of a group's AllReduce (schedules that overlap) are reduced one after the other, each for rule 5's time
//   of its own bytes, from when its last member has its gradients and the bucket before it is done; the members'
//   updates wait for all of them;
// - traffic costs nothing but its link, unless the profile says what it costs the processors at both ends
//   (cluster/overhead.ts). A device pays from the end of a pass on for what that handed on, and then for what the next
//   one is given, which begins when that is paid and its pieces have arrived: who waits pays while it waits. What
//   AllReduces that overlap with passes cost delays the update likewise.

// A stream of ticks is simulated from its first round to its last, and its steady state beside that (stream.ts).

import type { Cluster, PlanLayout, Profile } from '../cluster/cluster.ts';
import type { OptimizerState } from '../cluster/memory.ts';
import type { Program } from '../schedule/program.ts';
import { compile } from './compile.ts';
import { type Ground, prepareGround } from './ground.ts';
import { reportDevices, reportLinks } from './report.ts';
import type { Simulation } from './simulation.ts';
import { isTick, simulateStream } from './stream.ts';
import { World } from './world.ts';

export interface SimulateOptions {
  /** Copies of each weight that the optimizer keeps, for the peak memory. Default 0 (plain SGD). */
  readonly optimizerState?: OptimizerState;
  /** Whether to keep the events. Default true. */
  readonly events?: boolean;
  /**
   * Whether rounds follow each other without end, so that `roundMs` is the period of the steady state. Default: whether
   * the program is the tick of a stream. Rounds that do not overlap follow each other as well.
   */
  readonly isStream?: boolean;
}

/** Simulates one round of a program of a plan. */
export type Simulator = (program: Program, plan: PlanLayout, options?: SimulateOptions) => Simulation;

/**
 * Simulates one round. `program` is one of `plan` (checkProgram has passed), and `plan`, `profile` and `cluster` agree
 * (checkTogether has passed). Throws an Error when the program waits for ever.
 */
export function simulate(
  program: Program,
  plan: PlanLayout,
  profile: Profile,
  cluster: Cluster,
  options: SimulateOptions = {},
): Simulation {
  return createSimulator(profile, cluster)(program, plan, options);
}

/** simulate() for many plans of one profile and cluster: what depends on these alone is prepared once. */
export function createSimulator(profile: Profile, cluster: Cluster): Simulator {
  const ground = prepareGround(profile, cluster);
  return (program, plan, { events = true, optimizerState = 0, isStream = isTick(program) } = {}) =>
    isStream
      ? simulateStream(program, plan, ground, { events, optimizerState })
      : simulateRound(program, plan, ground, { events, optimizerState });
}

function simulateRound(
  program: Program,
  plan: PlanLayout,
  ground: Ground,
  { events, optimizerState }: Required<Omit<SimulateOptions, 'isStream'>>,
): Simulation {
  const compiled = compile(program, plan, ground);
  const world = new World(compiled, ground, events);
  world.run();
  const roundMs = world.endMs;
  const context = { compiled, ground, optimizerState };
  return {
    events: world.events,
    roundMs,
    samplesPerS: (plan.batchSize / roundMs) * 1000,
    devices: reportDevices(context, world.work, roundMs),
    links: reportLinks(context, world.work),
  };
}
