// One handler an instruction: what a device does for each instruction of its Program, at one tick. Handlers queue work
// and return; they wait only for a piece that has not arrived, for an AllReduce of all layers, and at an update for
// what its policy waits for. An instruction of another round than the tick's works on what other ticks left in the
// stream.

import { defined } from '../../assert.ts';
import type { CutTensor } from '../../graph/layers.ts';
import type { Tensor } from '../../graph/tensor.ts';
import type { Payload } from '../../schedule/passes.ts';
import {
  bucketReductionOf,
  type DeviceProgram,
  type Instruction,
  type LayerRange,
  type Pass,
  type Result,
  type Send,
  type Update,
} from '../../schedule/program.ts';
import { giveMemory } from '../../transport/tensor-memory.ts';
import { encodeTensors } from './codec.ts';
import { checkDerivative, Derivatives } from './derivatives.ts';
import { feedName, type MicroBatchId, ReceivedPieces, Results } from './pieces.ts';
import type { RoundPorts } from './round-ports.ts';
import { RoundReduction } from './round-reduction.ts';
import type { RoundTotals } from './round-sums.ts';
import { sliceSamples } from './samples.ts';
import type { RoundStage, StageCuts } from './stage.ts';
import type { UpdateOptions } from './stage-update.ts';

/** What ticks leave for later ones. Of a synchronous schedule each round has its own, and leaves nothing. */
export class StreamState {
  readonly received: ReceivedPieces = new ReceivedPieces();
  readonly results: Results = new Results();
  readonly derivatives: Derivatives = new Derivatives();
}

/** One tick of a device. */
export interface Tick {
  readonly program: DeviceProgram;
  readonly stage: RoundStage;
  readonly tick: number;
  readonly ports: RoundPorts;
  readonly stream: StreamState;
  readonly reduction: RoundReduction;
  readonly buckets: readonly LayerRange[];
  readonly sends: Promise<void>[];
  /** The sums of the round whose update this tick has come to, and that round. */
  closed: { readonly round: number; readonly totals: Promise<RoundTotals> } | undefined;
}

/** The tick before its first instruction. */
export function beginTick(
  { program, stage, tick, ports }: Pick<Tick, 'program' | 'stage' | 'tick' | 'ports'>,
  stream: StreamState,
): Tick {
  for (const instruction of program.instructions) {
    if (instruction.kind === 'send') stream.results.expectSend(instruction.payload, idOf(tick, instruction));
    if (instruction.kind === 'result') stream.results.expectSend('activation', idOf(tick, instruction));
  }
  const reducedRound = tick + (program.instructions.find(({ kind }) => kind === 'all-reduce')?.round ?? 0);
  const reduction = new RoundReduction(program.device, stage, reducedRound, ports);
  const buckets = bucketReductionOf(program)?.buckets ?? [];
  return { program, stage, tick, ports, stream, reduction, buckets, sends: [], closed: undefined };
}

/** Everything queued has been computed and handed to the links. */
export async function finishTick({ sends, stream }: Tick): Promise<void> {
  await Promise.all([...sends, ...stream.results.all()]);
}

/** An update ends in the caller's own step (`update` below), so that what follows it is not a wait later. */
type Executed = Exclude<Instruction['kind'], 'update'>;

/** `onDone`: called when an instruction that ends later is done, with the time at which it began. */
type Handler<Kind extends Executed> = (
  tick: Tick,
  instruction: Extract<Instruction, { readonly kind: Kind }>,
  onDone: (beganMs: number) => void,
) => Promise<void> | void;

/** Passes with tangents that are queued before the device waits until they are computed. */
const mostQueuedPasses = 16;

const handlers: { readonly [Kind in Executed]: Handler<Kind> } = {
  async receive(tick, instruction) {
    const { payload, samples, encoding } = instruction;
    const microBatch = idOf(tick.tick, instruction);
    const from = instruction.from ?? feedName;
    const { round, index } = microBatch;
    const frame = await tick.ports.receive({ kind: payload, round, microBatch: index, from });
    if (payload === 'derivative') {
      checkDerivative(frame.tensors ?? [], tick.stage.tangents?.count ?? 0, from);
      tick.stream.derivatives.add(microBatch, from, Promise.resolve(frame.tensors ?? []));
      return;
    }
    const piece = { payload, microBatch, samples, from, isEncoded: encoding !== undefined };
    tick.stream.received.add(piece, expectedCuts(tick.stage, payload), frame.tensors ?? []);
  },

  forward(tick, instruction) {
    tick.stream.results.keep('activation', idOf(tick.tick, instruction), forward(tick, instruction));
  },

  tangent(tick, instruction) {
    const { stage, program, stream } = tick;
    const microBatch = idOf(tick.tick, instruction);
    const result = forward(tick, instruction);
    stream.results.keep(stage.isLast ? 'derivative' : 'activation', microBatch, result);
    if (stage.isLast) stream.derivatives.add(microBatch, program.device, result);
    // A sequence has many steps: what is queued of them would be more than what is computed with.
    if ((microBatch.index + 1) % mostQueuedPasses === 0) return tick.ports.failure.guard(result).then(() => {});
  },

  backward(tick, instruction) {
    const microBatch = idOf(tick.tick, instruction);
    const bucket = bucketOf(tick, instruction.layers);
    const gradients = bucket === undefined || bucket === 0 ? outputGradients(tick, microBatch) : [];
    const result = tick.stage.backward(microBatch, gradients, bucket);
    // Of a pass in pieces, the last gives what is sent.
    if (bucket === undefined || bucket === tick.buckets.length - 1)
      tick.stream.results.keep('gradient', microBatch, result);
    else result.catch(() => {}); // the next piece fails too
  },

  'backward-input'(tick, instruction) {
    const microBatch = idOf(tick.tick, instruction);
    const result = tick.stage.backwardInput(microBatch, outputGradients(tick, microBatch));
    tick.stream.results.keep('gradient', microBatch, result);
  },

  'backward-weight'(tick, instruction) {
    tick.stage.backwardWeight(idOf(tick.tick, instruction), bucketOf(tick, instruction.layers));
  },

  send(tick, instruction, onDone) {
    const sending = send(tick, instruction, onDone);
    sending.catch(() => {}); // seen by finishTick
    tick.sends.push(sending);
  },

  result(tick, instruction, onDone) {
    const giving = giveResult(tick, instruction, onDone);
    giving.catch(() => {}); // seen by finishTick
    tick.sends.push(giving);
  },

  'all-reduce'({ reduction, ...tick }, instruction, onDone) {
    if (!isOverlapped(instruction)) return reduction.whole(instruction);
    reduction.overlapped(instruction, defined(bucketOf(tick, instruction.layers), 'a bucket'), onDone);
  },
};

/** Queues the forward pass of a micro-batch that has arrived. */
function forward({ program, stage, stream, tick }: Tick, instruction: Pass): Promise<readonly Tensor[]> {
  const microBatch = idOf(tick, instruction);
  const inputs = stream.received.take(program.stage === 0 ? 'input' : 'activation', microBatch, stage.inputs);
  const labels = stage.isLast ? stream.received.take('label', microBatch, [stage.label])[0] : undefined;
  return stage.forward(microBatch, program.samples[0], inputs, labels);
}

/** Executes one instruction; resolves when the next one may follow. */
export async function execute<Kind extends Executed>(
  tick: Tick,
  instruction: Extract<Instruction, { readonly kind: Kind }>,
  onDone: (beganMs: number) => void,
): Promise<void> {
  const handler: Handler<Kind> = handlers[(instruction as { readonly kind: Kind }).kind];
  return handler(tick, instruction, onDone);
}

/**
 * Executes an update in its place: yields what is to be waited for, first the round's AllReduces, then its policy, and
 * applies what that says. What follows the update is queued in one step with it.
 */
export function* update(tick: Tick, { round: offset = 0 }: Update): Generator<Promise<unknown>, void, unknown> {
  const { stage, ports, program, reduction, stream } = tick;
  yield reduction.done();
  const round = tick.tick + offset;
  if (stream.derivatives.has(round))
    stage.tangents?.estimate(round, (yield stream.derivatives.sum(round)) as readonly number[]);
  const totals = ports.failure.guard(stage.finishRound(isNormCounted(program, stage)));
  totals.catch(() => {}); // seen by runRound, where nothing fails before
  tick.closed = { round, totals };
  const options = (yield ports.updates.due()) as UpdateOptions | undefined;
  if (options !== undefined) stage.update(options);
}

/** Whether an instruction is passed before it is done; `execute` calls `onDone` when it is. */
export function endsLater(instruction: Instruction): boolean {
  return instruction.kind === 'send' || instruction.kind === 'result' || isOverlapped(instruction);
}

/** Whether an instruction runs while later ones do. */
function isOverlapped(instruction: Instruction): boolean {
  return instruction.kind === 'all-reduce' && instruction.layers !== undefined;
}

/**
 * In a replicated stage all members hold equal gradients; the first of the ring counts them for the global norm, or of
 * a group without a ring the one that has the first sample.
 */
export function isNormCounted(program: DeviceProgram, { tangents }: Pick<RoundStage, 'tangents'>): boolean {
  const { samples } = program;
  if (tangents !== undefined) return samples[0] === 0 && samples[1] > 0;
  const reduce = program.instructions.find((instruction) => instruction.kind === 'all-reduce');
  return reduce === undefined || reduce.group[0] === program.device;
}

function idOf(tick: number, { round = 0, microBatch }: { round?: number; microBatch: number }): MicroBatchId {
  return { round: tick + round, index: microBatch };
}

/** The place of an instruction's layers among the buckets; undefined for all layers. */
function bucketOf({ buckets }: Pick<Tick, 'buckets'>, layers: LayerRange | undefined): number | undefined {
  return layers === undefined ? undefined : buckets.findIndex(([first]) => first === layers[0]);
}

/** What a payload holds when it arrives at a stage. */
function expectedCuts(stage: StageCuts, payload: Payload): readonly CutTensor[] {
  if (payload === 'label') return [stage.label];
  return payload === 'gradient' ? stage.outputs.filter((output) => output.differentiable) : stage.inputs;
}

function outputGradients({ stage, stream }: Tick, microBatch: MicroBatchId): readonly Tensor[] {
  return stage.isLast ? [] : stream.received.take('gradient', microBatch, expectedCuts(stage, 'gradient'));
}

async function send(tick: Tick, instruction: Send, onDone: (beganMs: number) => void): Promise<void> {
  const { program, stage, ports, stream } = tick;
  const { payload, samples, to, encoding } = instruction;
  const microBatch = idOf(tick.tick, instruction);
  const results = await ports.failure.guard(stream.results.get(payload, microBatch));
  const beganMs = ports.clock.now();
  const cuts = payload === 'activation' ? stage.outputs : stage.inputs.filter((input) => input.differentiable);
  const offset = program.samples[0];
  const slices = results.map((result, index) =>
    payload === 'derivative'
      ? result
      : sliceSamples(result, defined(cuts[index], 'cut').batchAxis, samples[0] - offset, samples[1] - offset),
  );
  const axes = cuts.map((cut) => cut.batchAxis);
  const used =
    encoding === undefined || payload !== 'activation' || ports.encodingOf === undefined
      ? encoding
      : ports.encodingOf(to, { round: microBatch.round, bytes: floatBytes(slices) });
  const tensors = used === undefined ? slices : encodeTensors(slices, used, axes);
  const frame = { kind: payload, round: microBatch.round, microBatch: microBatch.index, tensors };
  await ports.send(to, frame, 'pipeline');
  for (const { data } of tensors.filter((tensor) => !slices.includes(tensor))) giveMemory(data);
  stream.results.sent(payload, microBatch, results);
  onDone(beganMs);
}

function floatBytes(tensors: readonly Tensor[]): number {
  return tensors.reduce((sum, { type, data }) => sum + (type === 'float32' ? data.byteLength : 0), 0);
}

async function giveResult(tick: Tick, instruction: Result, onDone: (beganMs: number) => void): Promise<void> {
  const { ports, stream } = tick;
  const microBatch = idOf(tick.tick, instruction);
  const tensors = await ports.failure.guard(stream.results.get('activation', microBatch));
  const beganMs = ports.clock.now();
  const frame = { kind: 'output', round: microBatch.round, microBatch: microBatch.index, control: {}, tensors };
  await defined(ports.giveResult, 'somebody who takes results')(frame);
  stream.results.sent('activation', microBatch, tensors);
  onDone(beganMs);
}
