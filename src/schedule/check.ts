// Proves a Program before anything runs: every layer once, every sample forward and backward once in each stage (in two
// halves, in pieces: all of them), weight gradients in the order of the micro-batches and reduced when they are final,
// every send with its receive, no cycle of waits, never more than K_p micro-batches kept. A violation is a mistake of
// whoever made the Program, and is thrown as such (assert.ts) with the device, the micro-batch and the rule. Not
// checked: memory (the planner's) and time.

import { assert } from '../assert.ts';
import type { PlanLayout } from '../cluster/cluster.ts';
import { effectiveInFlight, isForwardOnly } from './generate.ts';
import {
  type DeviceProgram,
  type Instruction,
  isPass,
  type LayerRange,
  type Pass,
  type Payload,
  type Program,
  type SampleRange,
} from './program.ts';

/**
 * Throws an Error naming the first violation of `program`, which claims to be a round of `plan`. Time and memory linear
 * in its instructions.
 */
export function checkProgram(program: Program, plan: PlanLayout): void {
  checkLayout(program, plan);
  const feed = program.devices.some((device) =>
    device.instructions.some((step) => step.kind === 'receive' && step.from === null),
  );
  const owners = new Map(program.devices.map((device) => [device.device, device]));
  const groups = plan.stages.map((stage) => stage.devices);
  for (const device of program.devices) {
    const forwardOnly = isForwardOnly(plan, device.stage);
    checkOrder(device, program, { limit: effectiveInFlight(plan, device.stage), forwardOnly });
    checkPieces(device, program, { owners, feed, sendsGradients: device.layers[0] > (plan.forwardOnlyLayers ?? 0) });
    checkEnd(device, forwardOnly ? [] : (groups[device.stage] ?? []), program.microBatchCount);
  }
  checkReductions(program);
  checkMatching(program);
  checkProgress(program);
}

/** Stages hold the plan's layers, each exactly once and in order, and their devices' samples tile the micro-batch. */
function checkLayout(program: Program, plan: PlanLayout): void {
  assert(
    program.stageCount === plan.stages.length,
    `the program has ${program.stageCount} stages and the plan ${plan.stages.length}`,
  );
  assert(
    program.microBatchCount === plan.microBatchCount,
    `the program has ${program.microBatchCount} micro-batches and the plan ${plan.microBatchCount}`,
  );
  assert(
    program.microBatchSize === plan.microBatchSize,
    `the program's micro-batches have ${program.microBatchSize} samples and the plan's ${plan.microBatchSize}`,
  );
  let layer = 0;
  const seen = new Set<string>();
  for (const [index, stage] of plan.stages.entries()) {
    assert(
      stage.layers[0] === layer && stage.layers[1] > layer,
      `stage ${index} holds layers [${stage.layers.join(', ')}) and should start at ${layer}`,
    );
    layer = stage.layers[1];
    const devices = program.devices.filter((device) => device.stage === index);
    const names = devices.map((device) => device.device);
    assert(
      names.length === stage.devices.length && stage.devices.every((name) => names.includes(name)),
      `stage ${index} has other devices than the plan`,
    );
    for (const device of devices) {
      assert(
        sameRange(device.layers, stage.layers),
        `${title(device)} holds layers [${device.layers.join(', ')}) and its stage [${stage.layers.join(', ')})`,
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
  assert(seen.size === program.devices.length, 'a device stands in a stage that the plan does not have');
}

/**
 * Each micro-batch forward once, then backward once (or its two halves; never where nothing is trained), and at most
 * `limit` between the two.
 */
function checkOrder(
  device: DeviceProgram,
  program: Program,
  { limit, forwardOnly }: { limit: number; forwardOnly: boolean },
): void {
  const done = new Set<string>();
  const pieces = new PieceOrder(device);
  let [alive, next] = [0, 0];
  for (const step of device.instructions) {
    if (!isPass(step)) continue;
    checkComputation(device, program, step, done);
    if (!pieces.completes(step)) continue;
    done.add(`${step.kind} ${step.microBatch}`);
    if (step.kind === 'forward') alive++;
    if (step.kind === 'backward' || step.kind === 'backward-weight') {
      alive--;
      assert(
        step.microBatch === next++,
        `${title(device)} adds the weight gradients of micro-batch ${step.microBatch} out of order`,
      );
    }
    assert(
      alive <= limit,
      `${title(device)} keeps ${alive} micro-batches in flight, ${limit} allowed, at the forward of micro-batch ${step.microBatch}`,
    );
  }
  const expected = isIdle(device) ? 0 : program.microBatchCount;
  for (let at = 0; at < program.microBatchCount; at++) {
    const forward = done.has(`forward ${at}`);
    const backward = done.has(`backward ${at}`) || done.has(`backward-weight ${at}`);
    const name = title(device);
    assert(
      forward === expected > 0,
      `${name} ${expected > 0 ? 'never runs' : 'has no samples but runs'} the forward of micro-batch ${at}`,
    );
    const why = isIdle(device) ? 'has no samples but runs' : 'has nothing to train but runs';
    assert(
      backward === (expected > 0 && !forwardOnly),
      `${name} ${backward ? why : 'never runs'} the backward of micro-batch ${at}`,
    );
  }
}

/** A computation is of a micro-batch that there is, and has neither run before nor comes before what it builds on. */
function checkComputation(device: DeviceProgram, program: Program, step: Pass, done: ReadonlySet<string>): void {
  const name = title(device);
  const at = step.microBatch;
  assert(
    Number.isInteger(at) && at >= 0 && at < program.microBatchCount,
    `${name} computes micro-batch ${at} of ${program.microBatchCount}`,
  );
  const has = (kind: Instruction['kind']): boolean => done.has(`${kind} ${at}`);
  const twice =
    has(step.kind) ||
    (step.kind.startsWith('backward-') && has('backward')) ||
    (step.kind === 'backward' && (has('backward-input') || has('backward-weight')));
  assert(!twice, `${name} runs the ${step.kind} of micro-batch ${at} twice`);
  assert(
    step.kind === 'forward' || has('forward'),
    `${name} runs the ${step.kind} of micro-batch ${at} before its forward`,
  );
  assert(
    step.kind !== 'backward-weight' || has('backward-input'),
    `${name} runs the backward-weight of micro-batch ${at} before its backward-input`,
  );
}

/** The pieces of a backward pass: from the stage's last layer down to its first, without a gap, one pass at a time. */
class PieceOrder {
  readonly #device: DeviceProgram;
  /** The pass that is under way, and the layer above which it is done. */
  #open: { readonly pass: string; readonly layer: number } | undefined;

  constructor(device: DeviceProgram) {
    this.#device = device;
  }

  /** Whether the step ends its pass. */
  completes(step: Pass): boolean {
    const { layers } = this.#device;
    const pass = `${step.kind} of micro-batch ${step.microBatch}`;
    const range = 'layers' in step ? step.layers : undefined;
    const name = title(this.#device);
    if (range === undefined) {
      assert(this.#open === undefined, `${name} runs the ${pass} inside the ${this.#open?.pass}`);
      return true;
    }
    const { layer } = this.#open ?? { layer: layers[1] };
    assert(
      this.#open === undefined || this.#open.pass === pass,
      `${name} runs the ${pass} inside the ${this.#open?.pass}`,
    );
    assert(
      range[1] === layer && range[0] < layer && range[0] >= layers[0],
      `${name} runs layers [${range.join(', ')}) of the ${pass}, not those below ${layer}`,
    );
    this.#open = range[0] === layers[0] ? undefined : { pass, layer: range[0] };
    return this.#open === undefined;
  }
}

/**
 * Before each computation its pieces arrive, after it its results leave: each piece owned by both ends, together
 * exactly this device's samples.
 */
function checkPieces(
  device: DeviceProgram,
  program: Program,
  {
    owners,
    feed,
    sendsGradients,
  }: { owners: ReadonlyMap<string, DeviceProgram>; feed: boolean; sendsGradients: boolean },
): void {
  const arrived = new Map<string, SampleRange[]>();
  const sent = new Map<string, SampleRange[]>();
  const done = new Set<string>();
  for (const step of device.instructions) {
    if (step.kind === 'receive') {
      checkReceive(device, step, program, owners);
      const late = done.has(`${step.payload === 'gradient' ? 'backward' : 'forward'} ${step.microBatch}`);
      assert(
        !late,
        `${title(device)} waits for the ${step.payload} of micro-batch ${step.microBatch} after it was needed`,
      );
    }
    if (step.kind === 'send') {
      const cause =
        step.payload === 'activation'
          ? done.has(`forward ${step.microBatch}`)
          : done.has(`backward ${step.microBatch}`);
      assert(
        cause,
        `${title(device)} sends the ${step.payload} of micro-batch ${step.microBatch} before it is computed`,
      );
      checkOwners(
        device,
        owners.get(step.to),
        step.samples,
        device.stage + (step.payload === 'activation' ? 1 : -1),
        `${step.payload} to "${step.to}"`,
      );
    }
    if (step.kind === 'receive' || step.kind === 'send') {
      const key = `${step.payload} ${step.microBatch}`;
      const ranges = step.kind === 'receive' ? arrived : sent;
      ranges.set(key, [...(ranges.get(key) ?? []), step.samples]);
    }
    if (!isPass(step)) continue;
    // Of a backward in pieces, the last gives the gradients that travel.
    const isWhole = !('layers' in step) || step.layers === undefined || step.layers[0] === device.layers[0];
    if (isWhole) done.add(`${step.kind === 'backward-input' ? 'backward' : step.kind} ${step.microBatch}`);
    for (const payload of expectedBefore(device, program, step, feed)) {
      const whole = tile(arrived.get(`${payload} ${step.microBatch}`) ?? [], device.samples);
      assert(
        whole,
        `${title(device)} runs the ${step.kind} of micro-batch ${step.microBatch} without exactly its ${payload} pieces`,
      );
    }
  }
  if (isIdle(device)) return;
  for (let at = 0; at < program.microBatchCount; at++) {
    for (const [payload, last] of [
      ['activation', program.stageCount - 1],
      ['gradient', 0],
    ] as const) {
      if (device.stage === last) continue;
      const pieces = sent.get(`${payload} ${at}`) ?? [];
      if (payload === 'gradient' && !sendsGradients) {
        assert(pieces.length === 0, `${title(device)} sends the gradient of micro-batch ${at}, which nobody wants`);
        continue;
      }
      assert(
        tile(pieces, device.samples),
        `${title(device)} does not send the ${payload} of micro-batch ${at} exactly once`,
      );
    }
  }
}

/** The payloads that a computation waits for. */
function expectedBefore(device: DeviceProgram, program: Program, step: Instruction, feed: boolean): Payload[] {
  const last = device.stage === program.stageCount - 1;
  if (step.kind === 'backward' || step.kind === 'backward-input') return last ? [] : ['gradient'];
  if (step.kind !== 'forward') return [];
  const payloads: Payload[] = device.stage > 0 ? ['activation'] : feed ? ['input'] : [];
  if (feed && last) payloads.push('label');
  return payloads;
}

function checkReceive(
  device: DeviceProgram,
  step: Instruction & { kind: 'receive' },
  program: Program,
  owners: ReadonlyMap<string, DeviceProgram>,
): void {
  const what = `${step.payload} from ${step.from === null ? 'the data feed' : `"${step.from}"`}`;
  if (step.from === null) {
    const stage = step.payload === 'input' ? 0 : step.payload === 'label' ? program.stageCount - 1 : -1;
    assert(device.stage === stage, `${title(device)} waits for ${what}`);
  } else {
    const forward = step.payload === 'activation';
    assert(forward || step.payload === 'gradient', `${title(device)} waits for ${what}`);
    checkOwners(device, owners.get(step.from), step.samples, device.stage + (forward ? -1 : 1), what);
  }
}

function checkOwners(
  device: DeviceProgram,
  other: DeviceProgram | undefined,
  samples: SampleRange,
  stage: number,
  what: string,
): void {
  assert(other !== undefined, `${title(device)} exchanges ${what}, which has no program`);
  assert(other.stage === stage, `${title(device)} exchanges ${what}, which is not in stage ${stage}`);
  const owned = [device, other].every((end) => samples[0] >= end.samples[0] && samples[1] <= end.samples[1]);
  assert(owned, `${title(device)} exchanges ${what} for samples [${samples.join(', ')}), which one end does not own`);
}

/**
 * Last of all one update. Before it, where there is a group, its AllReduce: of all layers at the end, or in parts that
 * have each layer once, each after the last weight gradient of its layers.
 */
function checkEnd(device: DeviceProgram, group: readonly string[], microBatchCount: number): void {
  const name = title(device);
  const { instructions } = device;
  assert(instructions.at(-1)?.kind === 'update', `${name} has no update at its end`);
  const reductions: LayerRange[] = [];
  let final = isIdle(device) ? device.layers[0] : device.layers[1];
  for (const [index, step] of instructions.entries()) {
    if (step.kind === 'update') assert(index === instructions.length - 1, `${name} has an update before its end`);
    if ((step.kind === 'backward' || step.kind === 'backward-weight') && step.microBatch === microBatchCount - 1)
      final = step.layers?.[0] ?? device.layers[0];
    if (step.kind !== 'all-reduce') continue;
    assert(group.length > 1, `${name} has an all-reduce without a group`);
    assert(step.group.join('\n') === group.join('\n'), `${name} reduces over another group than its stage`);
    const layers = step.layers ?? device.layers;
    assert(layers[0] >= final, `${name} reduces the gradients of layers [${layers.join(', ')}) before they are final`);
    assert(step.layers !== undefined || index === instructions.length - 2, `${name} has an all-reduce before its end`);
    reductions.push(layers);
  }
  if (group.length > 1)
    assert(tile(reductions, device.layers), `${name} does not reduce the gradients of each layer exactly once`);
}

/**
 * The members of a group reduce the same layers in the same order and encoding: each AllReduce waits for all, and for
 * the one before.
 */
function checkReductions(program: Program): void {
  const orders = new Map<number, { readonly device: DeviceProgram; readonly order: string }>();
  for (const device of program.devices) {
    const order = JSON.stringify(
      device.instructions.flatMap((step) =>
        step.kind === 'all-reduce' ? [step.layers ?? device.layers, step.encoding ?? ''] : [],
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

/** Every send has exactly one receive, and the other way round. */
function checkMatching(program: Program): void {
  const open = new Set<string>();
  for (const device of program.devices) {
    for (const step of device.instructions) {
      if (step.kind !== 'send') continue;
      const key = pieceKey(step, device.device, step.to);
      assert(!open.has(key), `${key} is sent twice`);
      open.add(key);
    }
  }
  for (const device of program.devices) {
    for (const step of device.instructions) {
      if (step.kind !== 'receive' || step.from === null) continue;
      const key = pieceKey(step, step.from, device.device);
      assert(open.delete(key), `${key} is awaited but never sent, or awaited twice`);
    }
  }
  for (const key of open) assert(false, `${key} is sent but never awaited`);
}

/** Runs the program without time: everybody as far as they can, until all are done or nobody can move. */
function checkProgress(program: Program): void {
  const positions = new Map(program.devices.map((device) => [device.device, 0]));
  const delivered = new Set<string>();
  const waiting = new Map<string, DeviceProgram[]>();
  const runnable = [...program.devices];
  const wake = (key: string): void => {
    runnable.push(...(waiting.get(key) ?? []));
    waiting.delete(key);
  };
  const wait = (key: string, device: DeviceProgram): false => {
    waiting.set(key, [...(waiting.get(key) ?? []), device]);
    return false;
  };
  const joined = new Map<string, Set<string>>();
  /** Whether the device gets past this instruction now. */
  const passes = (step: Instruction, device: DeviceProgram): boolean => {
    if (step.kind === 'send') {
      const key = pieceKey(step, device.device, step.to);
      delivered.add(key);
      wake(key);
    } else if (step.kind === 'receive' && step.from !== null) {
      const key = pieceKey(step, step.from, device.device);
      if (!delivered.has(key)) return wait(key, device);
    } else if (step.kind === 'all-reduce' && step.layers === undefined) {
      const key = step.group.join('\n');
      const members = joined.get(key) ?? new Set();
      joined.set(key, members.add(device.device));
      if (members.size < step.group.length) return wait(key, device);
      wake(key);
    }
    return true;
  };
  for (let device = runnable.pop(); device !== undefined; device = runnable.pop()) {
    let position = positions.get(device.device) ?? 0;
    for (
      let step = device.instructions[position];
      step !== undefined && passes(step, device);
      step = device.instructions[position]
    )
      position++;
    positions.set(device.device, position);
  }
  for (const device of program.devices) {
    const step = device.instructions[positions.get(device.device) ?? 0];
    assert(
      step === undefined,
      `${title(device)} waits for ever at ${JSON.stringify(step)}: the program has a cycle of waits`,
    );
  }
}

function isIdle(device: DeviceProgram): boolean {
  return device.samples[0] === device.samples[1];
}

function title(device: DeviceProgram): string {
  return `"${device.device}" (stage ${device.stage})`;
}

function pieceKey(step: Extract<Instruction, { kind: 'send' | 'receive' }>, from: string, to: string): string {
  const as = step.encoding === undefined ? '' : ` as ${step.encoding}`;
  return `the ${step.payload} of micro-batch ${step.microBatch}, samples [${step.samples.join(', ')})${as}, from "${from}" to "${to}"`;
}

function sameRange(a: SampleRange, b: SampleRange): boolean {
  return a[0] === b[0] && a[1] === b[1];
}

/** Whether the ranges, in any order, cover `whole` exactly once. Empty ones count for nothing. */
function tile(ranges: readonly SampleRange[], whole: SampleRange): boolean {
  let end = whole[0];
  for (const range of ranges.filter((each) => each[0] !== each[1]).sort((a, b) => a[0] - b[0])) {
    if (range[0] !== end || range[1] < range[0]) return false;
    end = range[1];
  }
  return end === whole[1];
}
