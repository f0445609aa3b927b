// Training in this process, without links: the same stage, the same program and the same order of sums as on a worker.
// The plan has one stage on one device; it is what distributed runs are compared with.

import { defined } from '../../assert.ts';
import type { Clock } from '../../clock.ts';
import type { Plan } from '../../cluster/cluster.ts';
import type { Engine } from '../../engine/engine.ts';
import { RunError } from '../../errors.ts';
import { program } from '../../schedule/generate.ts';
import type { Instruction } from '../../schedule/program.ts';
import type { MachineConfig } from '../coordinator/machine-types.ts';
import type { CoordinatorEnd, RunHooks } from '../coordinator/options.ts';
import { isBoundary } from '../coordinator/rounds.ts';
import type { StageStore } from '../device/compiled-stages.ts';
import { createStage } from '../device/create-stage.ts';
import { Mailbox } from '../device/mailbox.ts';
import { feedName } from '../device/pieces.ts';
import { budgetCount, savedBudgetBytes } from '../device/recomputation.ts';
import { isTraced, runRound } from '../device/round.ts';
import { ownCopy, sliceSamples } from '../device/samples.ts';
import type { StagePort } from '../device/stage.ts';
import { stageFormOf } from '../device/stage-form.ts';
import type { StageOptions } from '../device/stage-graphs.ts';
import { Failure } from '../protocol/failure.ts';
import type { RunState } from '../protocol/run-state.ts';
import type { RunSubject } from '../protocol/run-subject.ts';

/** The name of this process as a device. */
export const localDevice = 'this process';

/** The plan of a single device that computes the whole model. */
export function localPlan(layerCount: number, batchSize: number, microBatchSize: number): Plan {
  const microBatchCount = batchSize / microBatchSize;
  return {
    planner: 'single',
    schedule: '1f1b',
    batchSize,
    microBatchSize,
    microBatchCount,
    stages: [{ layers: [0, layerCount], devices: [localDevice], samples: [microBatchSize], inFlight: 1 }],
    predicted: { roundMs: 0, samplesPerS: 0, peakMemoryMiB: {} },
  };
}

/** Runs all rounds here. Stops after the round in progress when `signal` aborts. */
export async function trainHere(
  subject: RunSubject,
  hooks: RunHooks,
  config: MachineConfig,
  plan: Plan,
  environment: { engine: Engine; clock: Clock; signal: AbortSignal; memoryBytes?: number; stageStore?: StageStore },
): Promise<CoordinatorEnd> {
  const { engine, clock, signal, memoryBytes, stageStore } = environment;
  const device = defined(program(plan).devices[0], 'the device');
  const { sequence, training, label, state } = subject;
  const options: StageOptions = {
    sequence,
    layers: device.layers,
    sampleCount: plan.microBatchSize,
    training,
    label,
    microBatchSize: plan.microBatchSize,
    form: stageFormOf(device, training),
    savedBudgetBytes: savedBudgetBytes({ sequence, program: device, training, memoryBytes }),
    budgetCount: budgetCount({ program: device, training }),
  };
  const stage = await createStage(engine, options, stageStore);
  for (const role of ['parameter', 'buffer', 'optimizer'] as const) {
    // Copies: the engine keeps what it is given, and the caller goes on with its state.
    for (const [name, value] of state[role]) stage.load({ role, name, value: ownCopy(value) });
  }
  hooks.observe({ kind: 'deployment', plan });
  hooks.observe({ kind: 'phase', phase: 'training' });
  const mailbox = new Mailbox(Number.POSITIVE_INFINITY);
  const feed = (round: number): void => feedRound(mailbox, device.instructions, hooks, round, plan.microBatchSize);
  const failure = new Failure();
  const isClipped = training.clipNorm !== null;
  feed(config.firstRound);
  for (let round = config.firstRound; round < config.endRound; round++) {
    const learningRate = config.learningRate(round);
    const step = round + 1;
    const plannedUpdate = isClipped ? undefined : { learningRate, gradientScale: 1, step };
    const running = runRound(device, stage, round, {
      clock,
      send: () => Promise.reject(new RunError('A single device has nobody to send to.')),
      receive: (key) => mailbox.take(key),
      failure,
      updates: { planned: plannedUpdate, due: () => Promise.resolve(plannedUpdate) },
    });
    if (round + 1 < config.endRound) feed(round + 1);
    const { result, times } = await (await running).outcome;
    if (isTraced(round)) hooks.observe({ kind: 'trace', device: localDevice, round, times });
    if (!result.finite) throw new RunError(`Training ended: ${notFinite(round)}.`);
    if (isClipped) stage.update({ learningRate, gradientScale: config.gradientScale(result.squaredNorm), step });
    stage.dropVersion(round);
    hooks.onCommitted(round, result.lossSum / config.batchSize, result.correctCount, learningRate, {
      [localDevice]: result,
    });
    if (signal.aborted || isBoundary(config, round + 1)) await hooks.onCheckpoint(round + 1, await stateOf(stage));
    if (signal.aborted) return { round: round + 1, stopped: round + 1 < config.endRound };
  }
  return { round: config.endRound, stopped: false };
}

/** What to tell about a round whose numbers are not finite. */
export function notFinite(round: number): string {
  return `the loss or a gradient of round ${round} is not a finite number: lower the learning rate (--lr) or clip gradients (--clip-norm)`;
}

async function stateOf(stage: StagePort): Promise<RunState> {
  const state = { parameter: new Map(), buffer: new Map(), optimizer: new Map() };
  for await (const entry of stage.state()) state[entry.role].set(entry.name, entry.value);
  return state;
}

function feedRound(
  mailbox: Mailbox,
  instructions: readonly Instruction[],
  hooks: RunHooks,
  round: number,
  microBatchSize: number,
): void {
  const { inputs, labels } = hooks.batch(round);
  for (const instruction of instructions) {
    if (instruction.kind !== 'receive') continue;
    const { payload, microBatch, samples } = instruction;
    const offset = microBatch * microBatchSize;
    const tensors = (payload === 'input' ? inputs : [labels]).map((value) =>
      sliceSamples(value, 0, samples[0] + offset, samples[1] + offset),
    );
    mailbox.put(
      { kind: payload, round, microBatch, from: feedName },
      { kind: payload, epoch: 0, round, microBatch, tensors },
    );
  }
}
