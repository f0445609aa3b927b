// The part of the check that looks at what travels: before each pass its pieces arrive, after it its results leave,
// every send has its receive, and nobody waits for ever.

import { assert } from '../assert.ts';
import { type Checked, isIdle, microBatchName, rangeName, samplesAt, tile, title } from './check-shared.ts';
import { isTaken, passes, payloads } from './passes.ts';
import {
  type DeviceProgram,
  type Instruction,
  isLastPiece,
  isPass,
  type Pass,
  type Receive,
  type SampleRange,
  type Send,
} from './program.ts';
import { instructionText } from './text.ts';

/**
 * Before each pass its pieces arrive, after it its results leave: each piece owned by both ends, together exactly this
 * device's samples. `owners`: all devices by name.
 */
export function checkPieces(device: DeviceProgram, checked: Checked, owners: ReadonlyMap<string, DeviceProgram>): void {
  const [arrived, sent] = [new Map<string, SampleRange[]>(), new Map<string, SampleRange[]>()];
  /** Payloads of micro-batches that a pass has taken, and given. */
  const [taken, given] = [new Set<string>(), new Set<string>()];
  const name = title(device);
  for (const step of device.instructions) {
    if (step.kind === 'receive' || step.kind === 'send') {
      const key = `${step.payload} ${step.microBatch}`;
      const what = `the ${step.payload} of ${microBatchName(checked, step.microBatch)}`;
      if (step.kind === 'receive') assert(!taken.has(key), `${name} waits for ${what} after it was needed`);
      else assert(given.has(key), `${name} sends ${what} before it is computed`);
      checkEnds(device, step, checked, owners);
      const ranges = step.kind === 'receive' ? arrived : sent;
      ranges.set(key, [...(ranges.get(key) ?? []), step.samples]);
    }
    if (!isPass(step)) continue;
    checkArrived(device, checked, step, arrived);
    // Of a pass in pieces, the last takes and gives what travels.
    if (!isLastPiece(step, device)) continue;
    for (const payload of passes[step.kind].takes) taken.add(`${payload} ${step.microBatch}`);
    for (const payload of passes[step.kind].gives) given.add(`${payload} ${step.microBatch}`);
  }
  if (!isIdle(device)) checkAllSent(device, checked, sent);
}

function checkAllSent(
  device: DeviceProgram,
  checked: Checked,
  sent: ReadonlyMap<string, readonly SampleRange[]>,
): void {
  const name = title(device);
  const isGradientWanted = checked.gradients === 'backward' && device.layers[0] > checked.forwardOnlyLayers;
  for (const payload of ['activation', 'gradient'] as const) {
    const taker = device.stage + (payload === 'activation' ? 1 : -1);
    if (taker < 0 || taker >= checked.stageCount) continue;
    const isWanted = payload !== 'gradient' || isGradientWanted;
    for (let at = 0; at < checked.microBatchCount; at++) {
      const pieces = sent.get(`${payload} ${at}`) ?? [];
      const what = `the ${payload} of ${microBatchName(checked, at)}`;
      if (isWanted) assert(tile(pieces, samplesAt(device, checked, at)), `${name} does not send ${what} exactly once`);
      else assert(pieces.length === 0, `${name} sends ${what}, which nobody wants`);
    }
  }
}

/** All that a pass takes has arrived, exactly once. */
function checkArrived(
  device: DeviceProgram,
  checked: Checked,
  step: Pass,
  arrived: ReadonlyMap<string, readonly SampleRange[]>,
): void {
  const what = `${title(device)} runs the ${step.kind} of ${microBatchName(checked, step.microBatch)}`;
  for (const payload of passes[step.kind].takes) {
    if (!isTaken(payload, device.stage, checked)) continue;
    const pieces = arrived.get(`${payload} ${step.microBatch}`) ?? [];
    const own = samplesAt(device, checked, step.microBatch);
    assert(tile(pieces, own), `${what} without exactly its ${payload} pieces`);
  }
}

/** A piece crosses one border, or comes from the feed to an end of the pipeline; both ends own its samples. */
function checkEnds(
  device: DeviceProgram,
  step: Send | Receive,
  checked: Checked,
  owners: ReadonlyMap<string, DeviceProgram>,
): void {
  const name = title(device);
  const { from, end: fedEnd } = payloads[step.payload];
  const isReceive = step.kind === 'receive';
  const end = isReceive ? step.from : step.to;
  const place = end === null ? 'the data feed' : `"${end}"`;
  const what = `${step.payload} ${isReceive ? 'from' : 'to'} ${place}`;
  if (end === null || from === 'feed') {
    const stage = fedEnd === 'first' ? 0 : checked.stageCount - 1;
    assert(end === null && from === 'feed' && device.stage === stage, `${name} waits for ${what}`);
    return;
  }
  const other = owners.get(end);
  assert(other !== undefined, `${name} exchanges ${what}, which has no program`);
  if (from === 'last') return; // check-derivatives.ts
  const stage = device.stage + (isReceive ? from : -from);
  assert(other.stage === stage, `${name} exchanges ${what}, which is not in stage ${stage}`);
  const owned = [device, other].every((owner) => {
    const samples = samplesAt(owner, checked, step.microBatch);
    return step.samples[0] >= samples[0] && step.samples[1] <= samples[1];
  });
  assert(owned, `${name} exchanges ${what} for samples ${rangeName(step.samples)}, which one end does not own`);
}

/** Every send has exactly one receive, and every receive from a device one send. */
export function checkMatching(checked: Checked): void {
  const open = new Set<string>();
  for (const device of checked.devices) {
    for (const step of device.instructions) {
      if (step.kind !== 'send') continue;
      const key = pieceName(checked, step, device.device, step.to);
      assert(!open.has(key), `${key} is sent twice`);
      open.add(key);
    }
  }
  for (const device of checked.devices) {
    for (const step of device.instructions) {
      if (step.kind !== 'receive' || step.from === null) continue;
      const key = pieceName(checked, step, step.from, device.device);
      assert(open.delete(key), `${key} is awaited but never sent, or awaited twice`);
    }
  }
  for (const key of open) assert(false, `${key} is sent but never awaited`);
}

/** Runs the rounds without time: every device as far as it can go, until all are done or none can move. */
export function checkProgress(checked: Checked): void {
  const positions = new Map(checked.devices.map(({ device }) => [device, 0]));
  const world = new TimelessWorld(checked);
  for (let device = world.next(); device !== undefined; device = world.next()) {
    let position = positions.get(device.device) ?? 0;
    for (
      let step = device.instructions[position];
      step !== undefined && world.passes(step, device);
      step = device.instructions[position]
    )
      position++;
    positions.set(device.device, position);
  }
  for (const device of checked.devices) {
    const step = device.instructions[positions.get(device.device) ?? 0];
    if (step === undefined) continue;
    const what = instructionText(step, device.samples);
    assert(false, `${title(device)} waits for ever at ${what}: the program has a cycle of waits`);
  }
}

/** Who can go on, what has been delivered, and who has come to which AllReduce. */
class TimelessWorld {
  readonly #checked: Checked;
  readonly #runnable: DeviceProgram[];
  readonly #delivered = new Set<string>();
  readonly #waiting = new Map<string, DeviceProgram[]>();
  readonly #joined = new Map<string, Set<string>>();

  constructor(checked: Checked) {
    this.#checked = checked;
    this.#runnable = [...checked.devices];
  }

  /** A device that may be able to go on. */
  next(): DeviceProgram | undefined {
    return this.#runnable.pop();
  }

  /** Whether the device gets past this instruction now. */
  passes(step: Instruction, device: DeviceProgram): boolean {
    if (step.kind === 'send') {
      const key = pieceName(this.#checked, step, device.device, step.to);
      this.#delivered.add(key);
      this.#wake(key);
    } else if (step.kind === 'receive' && step.from !== null) {
      const key = pieceName(this.#checked, step, step.from, device.device);
      if (!this.#delivered.has(key)) return this.#wait(key, device);
    } else if (step.kind === 'all-reduce' && step.layers === undefined) {
      const key = `${step.round ?? 0}\n${step.group.join('\n')}`;
      const members = this.#joined.get(key) ?? new Set();
      this.#joined.set(key, members.add(device.device));
      if (members.size < step.group.length) return this.#wait(key, device);
      this.#wake(key);
    }
    return true;
  }

  #wake(key: string): void {
    this.#runnable.push(...(this.#waiting.get(key) ?? []));
    this.#waiting.delete(key);
  }

  #wait(key: string, device: DeviceProgram): false {
    this.#waiting.set(key, [...(this.#waiting.get(key) ?? []), device]);
    return false;
  }
}

function pieceName(checked: Checked, step: Send | Receive, from: string, to: string): string {
  const as = step.encoding === undefined ? '' : ` as ${step.encoding}`;
  const what = `the ${step.payload} of ${microBatchName(checked, step.microBatch)}`;
  return `${what}, samples ${rangeName(step.samples)}${as}, from "${from}" to "${to}"`;
}
