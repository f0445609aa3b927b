// Executes one round of a device's Program on a stage, where rounds follow each other (device-stream.ts: where they
// overlap): the real-time twin of the simulator. Instructions are taken in
// order (instructions.ts); computing is queued on the engine and not waited for, sending happens as soon as a result is
// there, receiving fills the mailbox meanwhile. Only a piece that has not arrived yet, or too many micro-batches queued
// ahead, makes the Program wait.

import { defined } from '../../assert.ts';
import { type DeviceProgram, type Instruction, isPass } from '../../schedule/program.ts';
import type { RoundResult, RoundTimes } from '../protocol/messages.ts';
import { InstructionTimes } from './instruction-times.ts';
import { beginTick, endsLater, execute, finishTick, StreamState, type Tick, update } from './instructions.ts';
import type { RoundPorts } from './round-ports.ts';
import type { RoundTotals } from './round-sums.ts';
import type { RoundStage, StageCosts } from './stage.ts';

/** Whether the times of a round's instructions are reported: the first three rounds, then every fiftieth. */
export function isTraced(round: number): boolean {
  return round < 3 || round % 50 === 0;
}

/** What a round leaves behind: the result for the coordinator and the time of each instruction. */
export interface RoundOutcome {
  /** Of the round whose update was reached; zeros in a tick without one. */
  readonly result: RoundResult;
  readonly times: readonly RoundTimes[];
}

/** A round of which everything is queued on the engine; the next one may be. */
export interface QueuedRound {
  /**
   * When it is computed: the gradients are final (and applied, if the policy said so) and the device is prepared to
   * commit.
   */
  readonly outcome: Promise<RoundOutcome>;
}

const noTotals: RoundTotals = { lossSum: 0, correctCount: 0, squaredNorm: 0, finite: true };

/**
 * Runs the round; resolves when all of its work is queued, so that the engine need not wait for the next round while
 * the sums of this one travel.
 */
export async function runRound(
  program: DeviceProgram,
  stage: RoundStage,
  round: number,
  ports: RoundPorts,
): Promise<QueuedRound> {
  const { clock, failure } = ports;
  const startMs = clock.now();
  const guarded: RoundPorts = {
    ...ports,
    // A round that is given up stops at whatever it waits for: it must not take what comes for the next one.
    send: (to, frame, priority) => failure.guard(ports.send(to, frame, priority)),
    receive: (key) => failure.guard(ports.receive(key)),
    giveResult: (frame) => failure.guard(defined(ports.giveResult, 'somebody who takes results')(frame)),
  };
  const tick = beginTick({ program, stage, tick: round, ports: guarded }, new StreamState());
  const times = isTraced(round) && ports.isUntraced !== true ? new InstructionTimes(clock, startMs) : undefined;
  stage.beginRound(round, ports.updates.planned);
  for (const [index, instruction] of program.instructions.entries()) {
    const passedMs = times?.now() ?? 0;
    if (instruction.kind === 'update') {
      const updating = update(tick, instruction);
      for (let step = updating.next(); step.done !== true; ) step = updating.next(await failure.guard(step.value));
      continue;
    }
    await failure.guard(execute(tick, instruction, (beganMs) => times?.done(index, beganMs - startMs)));
    if (times !== undefined) note(times, { index, instruction, passedMs }, stage);
  }
  const outcome = outcomeOf(tick, startMs, times);
  outcome.catch(() => {}); // the caller's, when it gets there
  return { outcome };
}

/** Notes the time of an instruction that has been passed, where that says when it was done. */
export function note(
  times: InstructionTimes,
  passed: { readonly index: number; readonly instruction: Instruction; readonly passedMs: number },
  stage: Pick<StageCosts, 'computed'>,
): void {
  const { index, instruction, passedMs } = passed;
  if (endsLater(instruction)) return;
  const computed = isPass(instruction) ? stage.computed() : undefined; // a pass is only queued
  if (computed === undefined) times.done(index, passedMs);
  else times.queued(index, passedMs, computed);
}

async function outcomeOf(tick: Tick, startMs: number, times: InstructionTimes | undefined): Promise<RoundOutcome> {
  const { stage, ports, closed } = tick;
  const { clock, failure } = ports;
  await failure.guard(finishTick(tick));
  const totals = (await closed?.totals) ?? noTotals;
  const { reducingMs } = tick.reduction;
  const work = { busyMs: stage.takeBusyMs(), ...(reducingMs === undefined ? {} : { reducingMs }) };
  const result = { round: closed?.round ?? tick.tick, ...totals, roundMs: clock.now() - startMs, ...work };
  return { result, times: times === undefined ? [] : await failure.guard(times.all()) };
}
