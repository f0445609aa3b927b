// One rehearsal: the production's coordinator and workers on virtual time, network and disk, under the faults of a
// scenario, checked for what must hold (docs/faults.md). P1: each round commits once, in order, from each sample once,
// and every reported state is the oracle's. P4: queues are bounded, and nothing is left at the end. P6: within 30 s
// there is progress or a stated reason, and the run survives as long as a device does.

import { CoordinatorLife } from './coordinator-life.ts';
import { startDevice } from './device-life.ts';
import { happen } from './happen.ts';
import type { Fault, Scenario } from './scenario.ts';
import { atRest } from './virtual-time.ts';
import { type Bug, crashed, createWorld, type World } from './world.ts';

export interface RehearsalOptions {
  readonly bug?: Bug | undefined;
  /** Keeps a line for each event. Default false. */
  readonly isTraced?: boolean;
}

/** The result of a rehearsal. */
export interface RehearsalReport {
  readonly seed: number;
  /** The hash of all events, in order. */
  readonly traceHash: string;
  readonly eventCount: number;
  readonly virtualSeconds: number;
  /** One sentence. */
  readonly outcome: string;
  readonly violations: readonly string[];
  readonly lines: readonly string[] | undefined;
}

/** The longest time without progress or a stated reason (P6). */
const hangMs = 30_000;
/** A run ends within this time after the last fault is over, however much it has to repeat. */
const recoveryMs = 240_000;
/** How long devices may be busy after the run's end: trying to reconnect, or held by a fault. */
const afterlifeMs = 120_000;
/**
 * The most bytes on their way in one direction of a link: while it is measured, a window of 8 MiB
 * (worker/probe-link.ts), and a frame more.
 */
const maxQueuedBytes = 2 ** 23 + 2 ** 20;
/** Events between two checks of the queues. */
const eventsPerLook = 64;

/** Runs a scenario to its end. */
export async function rehearse(
  scenario: Scenario,
  { bug, isTraced = false }: RehearsalOptions = {},
): Promise<RehearsalReport> {
  const world = createWorld(scenario, { bug, isTraced });
  const unhandled = (error: unknown): void =>
    crashed(world, 'a rejection that nobody handles would end the process', error);
  process.on('unhandledRejection', unhandled);
  try {
    await live(world);
  } finally {
    process.off('unhandledRejection', unhandled);
  }
  checkEnd(world);
  const { witness, time, outcome = 'the run has not ended' } = world;
  return {
    seed: scenario.seed,
    traceHash: witness.hash,
    eventCount: witness.eventCount,
    virtualSeconds: time.nowMs / 1000,
    outcome,
    violations: witness.violations,
    lines: witness.lines,
  };
}

/** Runs one event after the other, until nothing is left or the time is over. */
async function live(world: World): Promise<void> {
  const { time, scenario } = world;
  const coordinator = new CoordinatorLife(world, () => {
    for (const name of scenario.devices) startDevice(world, name);
  });
  const faults = [...scenario.faults].sort((a, b) => a.afterFrames - b.afterFrames);
  coordinator.start();
  let endMs = recoveryMs;
  for (let eventCount = 0; ; eventCount++) {
    await atRest();
    while ((faults[0]?.afterFrames ?? Number.POSITIVE_INFINITY) <= world.frameCount) {
      const fault = faults.shift() as Fault;
      time.at(time.nowMs + fault.delayMs, () => happen(world, coordinator, fault));
      endMs = Math.max(endMs, time.nowMs + fault.delayMs + durationMs(fault) + recoveryMs);
    }
    if (world.outcome === undefined) checkProgress(world, coordinator);
    if (eventCount % eventsPerLook === 0) checkQueues(world);
    if (world.outcome !== undefined) endMs = Math.min(endMs, time.nowMs + scenario.reconnectMs + afterlifeMs);
    if (time.nowMs > endMs) return;
    try {
      if (!time.runNext()) return;
    } catch (error) {
      crashed(world, 'a throw that nobody catches would end the process', error);
    }
  }
}

function durationMs(fault: Fault): number {
  if (fault.kind === 'kill') return fault.returnsAfterMs ?? 0;
  if (fault.kind === 'kill-coordinator') return fault.restartsAfterMs;
  return 'ms' in fault ? fault.ms : 0;
}

function checkProgress(world: World, coordinator: CoordinatorLife): void {
  const silentMs = coordinator.silentMs();
  if (silentMs <= hangMs) return;
  world.outcome = 'no progress';
  world.witness.violate(`there has been no progress for ${(silentMs / 1000).toFixed(1)} s, and nobody says why`);
}

function checkQueues({ network, witness }: World): void {
  for (const { from, to, outgoing } of network.connections) {
    if (outgoing.byteCount > maxQueuedBytes)
      witness.violate(`${outgoing.byteCount} bytes are on their way from ${from.name} to ${to.name}`);
  }
}

/** Checks that nothing is left after the end. */
function checkEnd({ outcome, witness, time, devices, network }: World): void {
  if (outcome === undefined) witness.violate(`after ${(time.nowMs / 1000).toFixed(1)} s the run has not ended`);
  for (const { name, process } of devices.values()) {
    if (process.state === 'running') witness.violate(`${name} has not ended`);
  }
  for (const { from, to } of network.connections) {
    if (from.state !== 'frozen') witness.violate(`the link from ${from.name} to ${to.name} is still open`);
  }
}
