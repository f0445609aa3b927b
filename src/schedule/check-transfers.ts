// The part of the check that looks at what travels: before each pass its pieces arrive, after it its results leave,
// every send has its receive, and nobody waits for ever.

import { assert } from '../assert.ts';
import { type Checked, isIdle, microBatchName, rangeName, tile, title } from './check-shared.ts';
import { exchanged, type Payload, passes, payloads } from './passes.ts';
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
  const arrived = new Map<string, SampleRange[]>();
  const sent = new Map<string, SampleRange[]>();
  /** Results that there are: those of a direction's passes that exchange. */
  const computed = new Set<string>();
  const name = title(device);
  for (const step of device.instructions) {
    if (step.kind === 'receive' || step.kind === 'send') {
      const what = `the ${step.payload} of ${microBatchName(checked, step.microBatch)}`;
      const isComputed = computed.has(`${payloads[step.payload].direction} ${step.microBatch}`);
      if (step.kind === 'receive') assert(!isComputed, `${name} waits for ${what} after it was needed`);
      else assert(isComputed, `${name} sends ${what} before it is computed`);
      checkEnds(device, step, checked, owners);
      const key = `${step.payload} ${step.microBatch}`;
      const ranges = step.kind === 'receive' ? arrived : sent;
      ranges.set(key, [...(ranges.get(key) ?? []), step.samples]);
    }
    if (!isPass(step) || !passes[step.kind].exchanges) continue;
    // Of a backward in pieces, the last gives the gradients that travel.
    if (isLastPiece(step, device)) computed.add(`${passes[step.kind].direction} ${step.microBatch}`);
    for (const payload of expectedBefore(device, checked, step))
      assert(
        tile(arrived.get(`${payload} ${step.microBatch}`) ?? [], device.samples),
        `${name} runs the ${step.kind} of ${microBatchName(checked, step.microBatch)} without exactly its ${payload} pieces`,
      );
  }
  if (!isIdle(device)) checkAllSent(device, checked, sent);
}

function checkAllSent(
  device: DeviceProgram,
  checked: Checked,
  sent: ReadonlyMap<string, readonly SampleRange[]>,
): void {
  const name = title(device);
  const isGradientWanted = device.layers[0] > checked.forwardOnlyLayers;
  for (let at = 0; at < checked.microBatchCount; at++) {
    const what = microBatchName(checked, at);
    for (const [payload, last] of [
      [exchanged.forward, checked.stageCount - 1],
      [exchanged.backward, 0],
    ] as const) {
      if (device.stage === last) continue;
      const pieces = sent.get(`${payload} ${at}`) ?? [];
      if (payload === 'gradient' && !isGradientWanted)
        assert(pieces.length === 0, `${name} sends the gradient of ${what}, which nobody wants`);
      else assert(tile(pieces, device.samples), `${name} does not send the ${payload} of ${what} exactly once`);
    }
  }
}

/** The payloads that a pass waits for. */
function expectedBefore({ stage }: DeviceProgram, { stageCount, hasFeed }: Checked, step: Pass): Payload[] {
  const last = stageCount - 1;
  if (passes[step.kind].direction === 'backward') return stage === last ? [] : ['gradient'];
  const expected: Payload[] = stage > 0 ? ['activation'] : hasFeed ? ['input'] : [];
  return hasFeed && stage === last ? [...expected, 'label'] : expected;
}

/** A piece goes between neighbouring stages, or from the feed to an end of the pipeline, and both ends own its samples. */
function checkEnds(
  device: DeviceProgram,
  step: Send | Receive,
  checked: Checked,
  owners: ReadonlyMap<string, DeviceProgram>,
): void {
  const name = title(device);
  const { from } = payloads[step.payload];
  const isReceive = step.kind === 'receive';
  const end = isReceive ? step.from : step.to;
  const place = end === null ? 'the data feed' : `"${end}"`;
  const what = `${step.payload} ${isReceive ? 'from' : 'to'} ${place}`;
  if (end === null || from === 'feed') {
    const stage = step.payload === 'input' ? 0 : checked.stageCount - 1;
    assert(end === null && from === 'feed' && device.stage === stage, `${name} waits for ${what}`);
    return;
  }
  const other = owners.get(end);
  const stage = device.stage + (isReceive ? from : -from);
  assert(other !== undefined, `${name} exchanges ${what}, which has no program`);
  assert(other.stage === stage, `${name} exchanges ${what}, which is not in stage ${stage}`);
  const owned = [device, other].every(({ samples }) => step.samples[0] >= samples[0] && step.samples[1] <= samples[1]);
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

/** Runs the rounds without time: everybody as far as they can, until all are done or nobody can move. */
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
