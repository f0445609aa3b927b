// The part of the check that looks at one device's passes: each micro-batch forward and backward once (in halves, in
// pieces: all of them), weight gradients in order, never more in flight than allowed, gradients reduced when they are
// final, one update a round.

import { assert } from '../assert.ts';
import { type Checked, isIdle, isIdleAt, microBatchName, rangeName, samplesAt, tile, title } from './check-shared.ts';
import { type ElementaryPass, passes } from './passes.ts';
import { type DeviceProgram, isPass, type LayerRange, type Pass } from './program.ts';

/** Every pass of a device, in order. `limit`: the most micro-batches that may be kept at a time. */
export function checkOrder(device: DeviceProgram, checked: Checked, limit: number): void {
  const done = new Set<string>();
  const pieces = new PieceOrder(device, checked);
  const name = title(device);
  let [kept, next] = [0, 0];
  for (const step of device.instructions) {
    if (!isPass(step)) continue;
    checkNeeds(device, checked, step, done);
    if (!pieces.completes(step)) continue;
    const { does, keeps, addsGradients } = passes[step.kind];
    const what = microBatchName(checked, step.microBatch);
    for (const part of does) done.add(`${part} ${step.microBatch}`);
    kept += keeps;
    assert(!addsGradients || step.microBatch === next++, `${name} adds the weight gradients of ${what} out of order`);
    assert(
      kept <= limit,
      `${name} keeps ${kept} micro-batches in flight, ${limit} allowed, at the ${step.kind} of ${what}`,
    );
  }
  checkAllDone(device, checked, done);
}

function checkAllDone(device: DeviceProgram, checked: Checked, done: ReadonlySet<string>): void {
  const forwardOnly = device.layers[1] <= checked.forwardOnlyLayers;
  const name = title(device);
  for (let at = 0; at < checked.microBatchCount; at++) {
    const idle = isIdleAt(device, checked, at);
    const what = microBatchName(checked, at);
    const has = (part: ElementaryPass): boolean => done.has(`${part} ${at}`);
    assert(
      has('forward') !== idle,
      `${name} ${idle ? 'has no samples but runs' : 'never runs'} the forward of ${what}`,
    );
    const backward = has(checked.gradients === 'backward' ? 'backward-weight' : 'tangent');
    const why = idle ? 'has no samples but runs' : 'has nothing to train but runs';
    assert(
      backward === (!idle && !forwardOnly),
      `${name} ${backward ? why : 'never runs'} the ${checked.gradients} of ${what}`,
    );
  }
}

/** A pass neither does what has been done nor comes before what it builds on. */
function checkNeeds(device: DeviceProgram, checked: Checked, step: Pass, done: ReadonlySet<string>): void {
  const { does, needs } = passes[step.kind];
  const what = `${title(device)} runs the ${step.kind} of ${microBatchName(checked, step.microBatch)}`;
  for (const part of does) assert(!done.has(`${part} ${step.microBatch}`), `${what} twice`);
  for (const part of needs) assert(done.has(`${part} ${step.microBatch}`), `${what} before its ${part}`);
}

/** The pieces of a backward pass: from the stage's last layer down to its first, without a gap, one pass at a time. */
class PieceOrder {
  readonly #device: DeviceProgram;
  readonly #checked: Checked;
  /** The pass that is under way, and the layer above which it is done. */
  #open: { readonly pass: string; readonly layer: number } | undefined;

  constructor(device: DeviceProgram, checked: Checked) {
    this.#device = device;
    this.#checked = checked;
  }

  /** Whether the step ends its pass. */
  completes(step: Pass): boolean {
    const { layers } = this.#device;
    const pass = `${step.kind} of ${microBatchName(this.#checked, step.microBatch)}`;
    const range = 'layers' in step ? step.layers : undefined;
    const name = title(this.#device);
    const isOther = this.#open !== undefined && (range === undefined || this.#open.pass !== pass);
    assert(!isOther, `${name} runs the ${pass} inside the ${this.#open?.pass}`);
    if (range === undefined) return true;
    const { layer } = this.#open ?? { layer: layers[1] };
    assert(
      range[1] === layer && range[0] < layer && range[0] >= layers[0],
      `${name} runs layers ${rangeName(range)} of the ${pass}, not those below ${layer}`,
    );
    this.#open = range[0] === layers[0] ? undefined : { pass, layer: range[0] };
    return this.#open === undefined;
  }
}

/**
 * Where nothing is trained, the last stage gives the outputs of each micro-batch once, all of its own, after computing
 * them, and no device updates; elsewhere nobody gives any.
 */
export function checkResults(device: DeviceProgram, checked: Checked): void {
  const name = title(device);
  const givesResults = !checked.trains && device.stage === checked.stageCount - 1;
  const [computed, given] = [new Set<number>(), new Set<number>()];
  for (const step of device.instructions) {
    if (step.kind === 'forward') computed.add(step.microBatch);
    const isTraining = step.kind === 'update' || step.kind === 'all-reduce';
    assert(checked.trains || !isTraining, `${name} has an ${step.kind} where nothing is trained`);
    if (step.kind !== 'result') continue;
    const what = `the result of ${microBatchName(checked, step.microBatch)}`;
    assert(givesResults, `${name} gives ${what}, which nobody wants`);
    assert(computed.has(step.microBatch), `${name} gives ${what} before it is computed`);
    assert(!given.has(step.microBatch), `${name} gives ${what} twice`);
    const isWhole = tile([step.samples], samplesAt(device, checked, step.microBatch));
    assert(isWhole, `${name} gives ${what} for samples ${rangeName(step.samples)}, not for its own`);
    given.add(step.microBatch);
  }
  for (const microBatch of givesResults ? computed : [])
    assert(given.has(microBatch), `${name} never gives the result of ${microBatchName(checked, microBatch)}`);
}

/** The update and AllReduces of each round of a device; `group`: who reduces with it. */
export function checkUpdates(device: DeviceProgram, checked: Checked, group: readonly string[]): void {
  const name = title(device);
  const { instructions } = device;
  const { roundCount } = checked;
  const isStream = roundCount > 1;
  const updates = instructions.flatMap((step, index) => (step.kind === 'update' ? [{ step, index }] : []));
  assert(isStream || instructions.at(-1)?.kind === 'update', `${name} has no update at its end`);
  assert(isStream || updates.length === 1, `${name} has an update before its end`);
  assert(
    updates.length === roundCount && updates.every(({ step }, round) => (step.round ?? 0) === round),
    `${name} does not update once for each round, in order`,
  );
  for (const [round, { index }] of updates.entries())
    checkReductionsOf(device, checked, { round, group, update: index });
}

/**
 * A round's AllReduce, where there is a group: of all layers just before the update, or in parts that have each layer
 * once, each after the last weight gradient of its layers. The update, at `update`, comes after all of it.
 */
function checkReductionsOf(
  device: DeviceProgram,
  checked: Checked,
  { round, group, update }: { readonly round: number; readonly group: readonly string[]; readonly update: number },
): void {
  const name = title(device);
  const lastOfRound = ((round + 1) * checked.microBatchCount) / checked.roundCount - 1;
  const lastMicroBatch = isIdleAt(device, checked, lastOfRound) ? lastOfRound - 1 : lastOfRound;
  const isTrained = !isIdle(device) && lastMicroBatch >= 0 && device.layers[1] > checked.forwardOnlyLayers;
  const reductions: LayerRange[] = [];
  let final = isTrained ? device.layers[1] : device.layers[0];
  for (const [index, step] of device.instructions.entries()) {
    if (isPass(step) && passes[step.kind].addsGradients && step.microBatch === lastMicroBatch) {
      final = ('layers' in step ? step.layers?.[0] : undefined) ?? device.layers[0];
      assert(index < update, `${name} updates before the gradients of ${microBatchName(checked, lastMicroBatch)}`);
    }
    if (step.kind !== 'all-reduce' || (step.round ?? 0) !== round) continue;
    assert(group.length > 1, `${name} has an all-reduce without a group`);
    assert(step.group.join('\n') === group.join('\n'), `${name} reduces over another group than its stage`);
    const layers = step.layers ?? device.layers;
    assert(layers[0] >= final, `${name} reduces the gradients of layers ${rangeName(layers)} before they are final`);
    assert(
      index < update && (step.layers !== undefined || index === update - 1),
      `${name} has an all-reduce that is not just before its update`,
    );
    reductions.push(layers);
  }
  if (group.length > 1)
    assert(tile(reductions, device.layers), `${name} does not reduce the gradients of each layer exactly once`);
}
