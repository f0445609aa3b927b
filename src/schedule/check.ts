// Proves a Program before anything runs: every layer once, every sample forward and backward once in each stage (in two
// halves, in pieces: all of them), weight gradients in the order of the micro-batches and reduced when they are final,
// every send with its receive, no cycle of waits, never more than K_p micro-batches kept. A violation is a mistake of
// whoever made the Program, and is thrown as such (assert.ts) with the device, the micro-batch and the rule. Not
// checked: memory (the planner's) and time.

import { assert, defined } from '../assert.ts';
import type { PlanLayout } from '../cluster/cluster.ts';
import { checkDerivatives } from './check-derivatives.ts';
import { checkOrder, checkResults, checkUpdates } from './check-passes.ts';
import { type Checked, rangeName, tile, title } from './check-shared.ts';
import { checkMatching, checkPieces, checkProgress } from './check-transfers.ts';
import { effectiveInFlight, forwardOnlyLayersOf, isForwardOnly } from './pace.ts';
import { passes } from './passes.ts';
import { type DeviceProgram, isPass, type Program } from './program.ts';
import { scheduleOf } from './schedules.ts';
import { instructionText } from './text.ts';
import { unroll } from './unroll.ts';

/**
 * Throws an Error naming the first violation of `program`, which claims to be a round of `plan`. Time and memory linear
 * in its instructions.
 *
 * With round offsets, the program is the tick of a stream: at tick t an instruction with offset k is for round t + k. A
 * pass and what it receives and sends have one offset. All else must hold for each round of the stream, which is
 * written out over as many rounds as meet in a tick, and one more (unroll.ts). So a pass that follows another of its
 * micro-batch has a smaller offset, or the same one and a later place in the tick; sends match receives of their own
 * round; and a round's update comes after the last of its gradients.
 */
export function checkProgram(program: Program, plan: PlanLayout): void {
  checkLayout(program, plan);
  checkNumbers(program);
  for (const device of program.devices) checkOffsets(device);
  const checked: Checked = {
    ...unroll(program),
    stageCount: program.stageCount,
    microBatchSize: program.microBatchSize,
    lastMicroBatchSize: program.lastMicroBatchSize ?? program.microBatchSize,
    hasFeed: program.devices.some(({ instructions }) =>
      instructions.some((step) => step.kind === 'receive' && step.from === null),
    ),
    trains: scheduleOf(plan.schedule).trains,
    gradients: scheduleOf(plan.schedule).gradients,
    forwardOnlyLayers: forwardOnlyLayersOf(plan),
  };
  const owners = new Map(checked.devices.map((device) => [device.device, device]));
  for (const device of checked.devices) {
    const { stage } = device;
    checkOrder(device, checked, limitOf(plan, stage, checked));
    checkPieces(device, checked, owners);
    checkResults(device, checked);
    const isReduced = checked.gradients === 'backward' && !isForwardOnly(plan, stage);
    if (checked.trains) checkUpdates(device, checked, isReduced ? (plan.stages[stage]?.devices ?? []) : []);
    checkDerivatives(device, checked);
  }
  checkReductions(checked);
  checkMatching(checked);
  checkProgress(checked);
}

/**
 * K_p of a stage; without a limit where there is no backward to wait for. In a stream, where micro-batches of several
 * rounds are in flight, it is the plan's.
 */
function limitOf(plan: PlanLayout, stage: number, { roundCount }: Checked): number {
  if (isForwardOnly(plan, stage)) return Number.POSITIVE_INFINITY;
  return roundCount === 1 ? effectiveInFlight(plan, stage) : (plan.stages[stage]?.inFlight ?? 0);
}

/** Stages hold the plan's layers, each exactly once and in order, and their devices' samples tile the micro-batch. */
function checkLayout(program: Program, plan: PlanLayout): void {
  const counts = [
    [program.stageCount, plan.stages.length, 'stages'],
    [program.microBatchCount, plan.microBatchCount, 'micro-batches'],
    [program.microBatchSize, plan.microBatchSize, 'samples a micro-batch'],
  ] as const;
  for (const [found, planned, what] of counts)
    assert(found === planned, `the program has ${found} ${what} and the plan ${planned}`);
  const { lastMicroBatchSize: last } = program;
  const planned = plan.batchSize - (plan.microBatchCount - 1) * plan.microBatchSize;
  assert(
    last === undefined || last === planned,
    `the program has ${last} samples in its last micro-batch and the plan ${planned}`,
  );
  const seen = new Set<string>();
  for (const [index, { layers }] of plan.stages.entries()) {
    const start = plan.stages[index - 1]?.layers[1] ?? 0;
    const isNext = layers[0] === start && layers[1] > start;
    assert(isNext, `stage ${index} holds layers ${rangeName(layers)} and should start at ${start}`);
    checkStage(program, plan, index, seen);
  }
  assert(seen.size === program.devices.length, 'a device is in a stage that the plan does not have');
}

/** The devices of a stage are the plan's, each once and with the stage's layers. `seen`: devices of earlier stages. */
function checkStage(program: Program, plan: PlanLayout, index: number, seen: Set<string>): void {
  const stage = defined(plan.stages[index], 'a stage');
  const devices = program.devices.filter((device) => device.stage === index);
  const names = devices.map((device) => device.device);
  assert(
    names.length === stage.devices.length && stage.devices.every((name) => names.includes(name)),
    `stage ${index} has other devices than the plan`,
  );
  for (const device of devices) {
    const { layers } = device;
    assert(
      layers[0] === stage.layers[0] && layers[1] === stage.layers[1],
      `${title(device)} holds layers ${rangeName(layers)} and its stage ${rangeName(stage.layers)}`,
    );
    assert(!seen.has(device.device), `${title(device)} has two programs`);
    seen.add(device.device);
  }
  const shares = devices.map((device) => device.samples);
  assert(
    tile(shares, [0, program.microBatchSize]),
    `the samples of stage ${index} do not cover a micro-batch exactly once`,
  );
}

/** Every instruction is of a micro-batch that there is. */
function checkNumbers({ devices, microBatchCount }: Program): void {
  for (const device of devices)
    for (const step of device.instructions) {
      assert(Number.isInteger(step.round ?? 0), `${title(device)} has an instruction for round ${step.round}`);
      if (!('microBatch' in step)) continue;
      const { microBatch: at } = step;
      const exists = Number.isInteger(at) && at >= 0 && at < microBatchCount;
      assert(exists, `${title(device)} has a ${step.kind} of micro-batch ${at} of ${microBatchCount}`);
    }
}

/** What a pass receives and sends is of its own round: in a tick they have one offset. */
function checkOffsets(device: DeviceProgram): void {
  if (device.instructions.every(({ round = 0 }) => round === 0)) return;
  const offsets = new Map<string, Set<number>>();
  for (const step of device.instructions) {
    if (!isPass(step)) continue;
    const { takes, gives } = passes[step.kind];
    const pieces = [...takes.map((payload) => `receive ${payload}`), ...gives.map((payload) => `send ${payload}`)];
    for (const piece of pieces) {
      const key = `${piece} ${step.microBatch}`;
      offsets.set(key, (offsets.get(key) ?? new Set()).add(step.round ?? 0));
    }
  }
  for (const step of device.instructions) {
    if (step.kind !== 'receive' && step.kind !== 'send') continue;
    const own = offsets.get(`${step.kind} ${step.payload} ${step.microBatch}`);
    const isOwn = own === undefined || own.has(step.round ?? 0);
    const what = step.kind === 'send' ? 'gives' : 'takes';
    assert(isOwn, `${title(device)} has ${instructionText(step)}, of another round than the pass that ${what} it`);
  }
}

/**
 * The members of a group reduce the same layers in the same order and encoding: each AllReduce waits for all, and for
 * the one before.
 */
function checkReductions(checked: Checked): void {
  const orders = new Map<number, { readonly device: DeviceProgram; readonly order: string }>();
  for (const device of checked.devices) {
    const order = JSON.stringify(
      device.instructions.flatMap((step) =>
        step.kind === 'all-reduce' ? [step.layers ?? device.layers, step.encoding ?? '', step.round ?? 0] : [],
      ),
    );
    const known = orders.get(device.stage) ?? { device, order };
    orders.set(device.stage, known);
    assert(
      known.order === order,
      `${title(device)} reduces other layers than ${title(known.device)}, or in another order`,
    );
  }
}
