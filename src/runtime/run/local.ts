// Training in this process: one stage on one device, without links. The executor, the data feed and the rules of a
// distributed run are wired together here, so that both compute the same; distributed runs are compared with it.

import { defined } from '../../assert.ts';
import type { Clock } from '../../clock.ts';
import type { Plan } from '../../cluster/cluster.ts';
import type { Engine } from '../../engine/engine.ts';
import { RunError } from '../../errors.ts';
import { Failure } from '../../failure.ts';
import { layoutOf, program } from '../../schedule/generate.ts';
import { DataFeed } from '../coordinator/data-feed.ts';
import type { MachineConfig } from '../coordinator/machine-types.ts';
import type { CoordinatorEnd, RunHooks } from '../coordinator/options.ts';
import { isBoundary } from '../coordinator/rounds.ts';
import type { StageStore } from '../device/compiled-stages.ts';
import { createStage } from '../device/create-stage.ts';
import { Mailbox } from '../device/mailbox.ts';
import { feedName } from '../device/pieces.ts';
import { partOf } from '../device/rest-stage.ts';
import { runRound } from '../device/round.ts';
import { ownCopy } from '../device/samples.ts';
import type { StagePort } from '../device/stage.ts';
import { stageOptionsOf } from '../device/stage-options.ts';
import { NotFinite, notFinite } from '../protocol/not-finite.ts';
import { batchAt, scaleOf } from '../protocol/round-batch.ts';
import type { RunState } from '../protocol/run-state.ts';
import type { RunSubject } from '../protocol/run-subject.ts';

/**
 * Pieces of batches that may lie here: a long sequence is cut into pieces while it is computed, and the next batch is
 * read when the last pieces of this one lie here.
 */
const mostPieces = 64;

interface LocalEnvironment {
  readonly engine: Engine;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  /** What this process may use; absent: not known. */
  readonly memoryBytes?: number;
  readonly stageStore?: StageStore;
}

/**
 * Runs all rounds of a plan of one device. Ends after the round in progress when `signal` aborts. Throws RunError if
 * the loss or a gradient is not finite, and what the hooks throw.
 */
export async function trainHere(
  subject: RunSubject,
  hooks: RunHooks,
  config: MachineConfig,
  plan: Plan,
  { engine, clock, signal, memoryBytes, stageStore }: LocalEnvironment,
): Promise<CoordinatorEnd> {
  const whole = program(plan);
  const device = defined(whole.devices[0], 'the device');
  const stage = await createStage(engine, stageOptionsOf(subject, device, plan, memoryBytes), stageStore);
  load(stage, subject.state);
  hooks.observe({ kind: 'deployment', plan });
  hooks.observe({ kind: 'phase', phase: 'training' });
  const [mailbox, failure] = [new Mailbox(Number.POSITIVE_INFINITY), new Failure()];
  const feed = new DataFeed({
    batch: (round) => hooks.batch(round),
    send: async (_device, frame) => {
      mailbox.put({ ...frame, from: feedName }, frame);
      await mailbox.room(mostPieces);
    },
    onError: (error) => failure.fail(error),
  });
  feed.begin(whole, (sampleCount) => program(layoutOf(plan, sampleCount)));
  feed.feed(config.firstRound, 0);
  let checkpointRound = config.firstRound;
  const isClipped = subject.training.clipNorm !== null;
  for (let round = config.firstRound; round < config.endRound; round++) {
    const update = { learningRate: config.learningRate(round), step: round + 1 };
    const batch = batchAt(config, round);
    const planned = isClipped ? undefined : { ...update, gradientScale: batch.factor };
    const part = await partOf({ program: device, stage }, plan, batch);
    const running = runRound(part.program, part.stage, round, {
      clock,
      send: () => Promise.reject(new RunError('A single device has nobody to send to.')),
      receive: (key) => mailbox.take(key),
      failure,
      updates: { planned, due: async () => planned },
      isUntraced: part.stage !== stage,
    });
    if (round + 1 < config.endRound) feed.feed(round + 1, 0);
    const { result, times } = await (await running).outcome;
    if (times.length > 0) hooks.observe({ kind: 'trace', device: device.device, round, times });
    if (!result.finite) {
      if (round > checkpointRound) await hooks.onCheckpoint(round, await stateOf(stage, round));
      throw new NotFinite(round, `Training ended: ${notFinite(round)}.`);
    }
    if (isClipped) stage.update({ ...update, gradientScale: scaleOf(batch, result.squaredNorm, config.gradientScale) });
    stage.dropVersion(round);
    const loss = (result.lossSum / config.batchSize) * batch.factor;
    hooks.onCommitted(round, loss, result.correctCount, update.learningRate, { [device.device]: result });
    if (signal.aborted || isBoundary(config, round + 1)) {
      checkpointRound = round + 1;
      await hooks.onCheckpoint(checkpointRound, await stateOf(stage));
    }
    if (signal.aborted) return { round: round + 1, stopped: round + 1 < config.endRound };
  }
  return { round: config.endRound, stopped: false };
}

/** Copies: the engine keeps what it is given, and the state stays the caller's. */
function load(stage: StagePort, state: RunState): void {
  for (const role of ['parameter', 'buffer', 'optimizer'] as const)
    for (const [name, value] of state[role]) stage.load({ role, name, value: ownCopy(value) });
}

/** The live state, or the one after `round` rounds. */
async function stateOf(stage: StagePort, round?: number): Promise<RunState> {
  const state = { parameter: new Map(), buffer: new Map(), optimizer: new Map() };
  for await (const entry of stage.state(round === undefined ? {} : { round }))
    state[entry.role].set(entry.name, entry.value);
  return state;
}
