// Executes one round of a device's Program on a stage: the real-time twin of the simulator. Instructions are taken in
// order; computing is queued on the engine and not waited for, sending happens as soon as a result is there, receiving
// fills the mailbox meanwhile. Only a piece that has not arrived yet, or too many micro-batches queued ahead, makes the
// Program wait.

import { assert, defined, unreachable } from '../../assert.ts';
import type { Clock } from '../../clock.ts';
import { ProtocolError } from '../../errors.ts';
import type { CutTensor } from '../../graph/layers.ts';
import { sameShape, type Tensor } from '../../graph/tensor.ts';
import type { Payload } from '../../schedule/passes.ts';
import {
  bucketReductionOf,
  type DeviceProgram,
  type Instruction,
  isPass,
  type LayerRange,
  type SampleRange,
} from '../../schedule/program.ts';
import type { Frame, Priority } from '../../transport/link.ts';
import { giveMemory } from '../../transport/tensor-memory.ts';
import type { Failure } from '../protocol/failure.ts';
import type { RoundResult, RoundTimes } from '../protocol/messages.ts';
import { type RingPort, ringAllReduce, ringFrameCount } from './all-reduce.ts';
import { decodeTensors, encodeTensors, pieceCodec } from './codec.ts';
import { InstructionTimes } from './instruction-times.ts';
import type { MailKey } from './mailbox.ts';
import { type OrderedParts, orderedAllReduce, orderedFrameCount } from './ordered-all-reduce.ts';
import { joinSamples, owned, sliceSamples } from './samples.ts';
import { SegmentedVector } from './segmented-vector.ts';
import type { StagePort } from './stage.ts';
import type { UpdateOptions } from './stage-update.ts';

/** The name under which the data feed's frames are filed. */
export const feedName = '(feed)';

/** Whether the times of a round's instructions are told: the first three rounds, then every fiftieth. */
export function isTraced(round: number): boolean {
  return round < 3 || round % 50 === 0;
}

/** What a round needs from the outside world. */
export interface RoundPorts {
  readonly clock: Clock;
  send(to: string, frame: Omit<Frame, 'epoch'>, priority: Priority): Promise<void>;
  receive(key: MailKey): Promise<Frame>;
  /** Ends every wait when the device must give up the round. */
  readonly failure: Failure;
  /** What `nextUpdate` will say, where that is known before the round; a stage whose step updates must know. */
  readonly plannedUpdate?: UpdateOptions | undefined;
  /**
   * Called when the round's gradients are final: how to update with them at once, so that the device has work while
   * their sums are on their way to the coordinator; undefined where the update must wait for the commit.
   */
  nextUpdate(): Promise<UpdateOptions | undefined>;
  /** Milliseconds that the process has worked so far; undefined where nobody knows. */
  processWorkMs?(): number | undefined;
}

/** What a round leaves behind: the result for the coordinator and the time of each instruction. */
export interface RoundOutcome {
  readonly result: RoundResult;
  readonly times: readonly RoundTimes[];
}

/** A round of which everything is queued on the engine; the next one may be. */
export interface QueuedRound {
  /**
   * When it is computed: the gradients are final (and applied, if `nextUpdate` said so) and the device is prepared to
   * commit.
   */
  readonly outcome: Promise<RoundOutcome>;
}

/**
 * Runs the round; resolves when all of its work is queued, so that the engine need not wait for the next round while
 * the sums of this one travel.
 */
export async function runRound(
  program: DeviceProgram,
  stage: StagePort,
  round: number,
  ports: RoundPorts,
): Promise<QueuedRound> {
  const { clock, failure } = ports;
  const startMs = clock.now();
  const state = new RoundState(program, stage, round, {
    ...ports,
    // A round that is given up stops at whatever it waits for: it must not take what comes for the next one.
    send: (to, frame, priority) => failure.guard(ports.send(to, frame, priority)),
    receive: (key) => failure.guard(ports.receive(key)),
  });
  const times = isTraced(round) ? new InstructionTimes(clock, startMs) : undefined;
  stage.beginRound(round, ports.plannedUpdate);
  for (const [index, instruction] of program.instructions.entries()) {
    if (instruction.kind === 'update') break;
    const passedMs = times?.now() ?? 0;
    await failure.guard(state.execute(instruction, (beganMs) => times?.done(index, beganMs - startMs)));
    if (times === undefined || endsLater(instruction)) continue;
    // It is only queued.
    if (isPass(instruction) && stage.computed !== undefined) times.queued(index, passedMs, stage.computed());
    else times.done(index, passedMs);
  }
  await failure.guard(state.reduced());
  const totals = failure.guard(stage.finishRound(isNormCounted(program)));
  totals.catch(() => {}); // seen below, where nothing fails before
  const update = await failure.guard(ports.nextUpdate());
  if (update !== undefined) stage.update(update);
  const finish = async (): Promise<RoundOutcome> => {
    await failure.guard(state.finished());
    const sums = await totals;
    const { reducingMs } = state;
    const work = { busyMs: stage.takeBusyMs(), ...(reducingMs === undefined ? {} : { reducingMs }) };
    const result = { round, ...sums, roundMs: clock.now() - startMs, ...work };
    return { result, times: times === undefined ? [] : await failure.guard(times.all()) };
  };
  const outcome = finish();
  outcome.catch(() => {}); // the caller's, when it gets there
  return { outcome };
}

/**
 * In a replicated stage every member holds the same gradients; the first of the ring counts them for the global norm.
 */
function isNormCounted(program: DeviceProgram): boolean {
  const reduce = program.instructions.find((instruction) => instruction.kind === 'all-reduce');
  return reduce === undefined || reduce.group[0] === program.device;
}

interface Piece {
  readonly samples: SampleRange;
  readonly tensors: readonly Tensor[];
}

/** The pieces received and the work in flight of one round. */
class RoundState {
  readonly #program: DeviceProgram;
  readonly #stage: StagePort;
  readonly #round: number;
  readonly #ports: RoundPorts;
  readonly #pieces = new Map<string, Piece[]>();
  readonly #activations = new Map<number, Promise<readonly Tensor[]>>();
  readonly #gradients = new Map<number, Promise<readonly Tensor[]>>();
  /** Sends that are to come of each result. */
  readonly #sendCounts = new Map<string, number>();
  readonly #sends: Promise<void>[] = [];
  readonly #buckets: readonly LayerRange[];
  /** The AllReduces beside the computing, one after the other. */
  #reducing: Promise<void> = Promise.resolve();
  /** Frames of the round's AllReduces so far: the next one's are numbered from here, on all members alike. */
  #ringFrames = 0;
  /** What the thread of the links did in the AllReduce behind all passes. */
  reducingMs: number | undefined;

  constructor(program: DeviceProgram, stage: StagePort, round: number, ports: RoundPorts) {
    this.#program = program;
    this.#stage = stage;
    this.#round = round;
    this.#ports = ports;
    this.#buckets = bucketReductionOf(program)?.buckets ?? [];
    for (const instruction of program.instructions) {
      if (instruction.kind !== 'send') continue;
      const key = pieceKey(instruction.payload, instruction.microBatch);
      this.#sendCounts.set(key, (this.#sendCounts.get(key) ?? 0) + 1);
    }
  }

  /** `onDone`: called when an instruction that ends later is done, with the time at which it began. */
  async execute(instruction: Instruction, onDone: (beganMs: number) => void = () => {}): Promise<void> {
    switch (instruction.kind) {
      case 'receive':
        return this.#receive(instruction);
      case 'forward':
        return this.#forward(instruction.microBatch);
      case 'backward':
        return this.#backward(instruction.microBatch, this.#bucketOf(instruction.layers));
      case 'backward-input':
        this.#keep(
          this.#gradients,
          instruction.microBatch,
          this.#stage.backwardInput(instruction.microBatch, this.#gradientsOf(instruction.microBatch)),
        );
        return;
      case 'backward-weight':
        this.#stage.backwardWeight(instruction.microBatch, this.#bucketOf(instruction.layers));
        return;
      case 'send': {
        const sending = this.#send(instruction, onDone);
        sending.catch(() => {}); // seen by finished()
        this.#sends.push(sending);
        return;
      }
      case 'all-reduce':
        if (!isOverlapped(instruction)) return this.#allReduceBehind(instruction);
        return this.#overlappedAllReduce(instruction, defined(this.#bucketOf(instruction.layers), 'a bucket'), onDone);
      case 'update':
        return;
      default:
        unreachable(instruction);
    }
  }

  /** Everything queued has been computed and handed to the links. */
  async finished(): Promise<void> {
    await Promise.all([...this.#sends, ...this.#activations.values(), ...this.#gradients.values()]);
  }

  async #receive(instruction: Extract<Instruction, { kind: 'receive' }>): Promise<void> {
    const { payload, microBatch, samples } = instruction;
    const from = instruction.from ?? feedName;
    const frame = await this.#ports.receive({ kind: payload, round: this.#round, microBatch, from });
    const arrived = frame.tensors ?? [];
    const what = { what: `${payload} ${microBatch}`, from };
    const expected = this.#expected(payload);
    if (instruction.encoding !== undefined) checkPiece(arrived, encodedCuts(expected), samples, what);
    const tensors =
      instruction.encoding === undefined
        ? arrived
        : decodeTensors(
            arrived,
            expected.map(({ type }) => type),
          );
    checkPiece(tensors, expected, samples, what);
    const key = pieceKey(payload, microBatch);
    const pieces = this.#pieces.get(key) ?? [];
    pieces.push({ samples, tensors });
    this.#pieces.set(key, pieces);
  }

  #expected(payload: Payload): readonly CutTensor[] {
    switch (payload) {
      case 'input':
      case 'activation':
        return this.#stage.inputs;
      case 'label':
        return [this.#stage.label];
      case 'gradient':
        return this.#stage.outputs.filter((output) => output.differentiable);
      default:
        return unreachable(payload);
    }
  }

  #forward(microBatch: number): void {
    const isFirst = this.#program.stage === 0;
    const inputs = this.#joined(isFirst ? 'input' : 'activation', microBatch, this.#stage.inputs);
    const labels = this.#stage.isLast ? this.#joined('label', microBatch, [this.#stage.label])[0] : undefined;
    this.#keep(
      this.#activations,
      microBatch,
      this.#stage.forward(microBatch, this.#program.samples[0], inputs, labels),
    );
  }

  #gradientsOf(microBatch: number): readonly Tensor[] {
    return this.#stage.isLast ? [] : this.#joined('gradient', microBatch, this.#expected('gradient'));
  }

  /**
   * The pieces of one micro-batch, in the order of their samples, joined tensor by tensor; each in a buffer that the
   * engine may take.
   */
  #joined(payload: Payload, microBatch: number, expected: readonly CutTensor[]): readonly Tensor[] {
    const key = pieceKey(payload, microBatch);
    const pieces = defined(this.#pieces.get(key), `${payload} ${microBatch}`);
    this.#pieces.delete(key);
    pieces.sort((a, b) => a.samples[0] - b.samples[0]);
    return expected.map((cut, index) => {
      const parts = pieces.map((piece) => defined(piece.tensors[index], cut.name));
      const whole = owned(joinSamples(parts, cut.batchAxis));
      for (const { data } of parts) if (data.buffer !== whole.data.buffer) giveMemory(data);
      return whole;
    });
  }

  /**
   * Files a result to be sent later; a failure is seen by `finished` or by the send, never as an unhandled rejection.
   */
  #keep(store: Map<number, Promise<readonly Tensor[]>>, microBatch: number, result: Promise<readonly Tensor[]>): void {
    result.catch(() => {});
    store.set(microBatch, result);
  }

  async #send(instruction: Extract<Instruction, { kind: 'send' }>, onDone: (beganMs: number) => void): Promise<void> {
    const { payload, microBatch, samples, to, encoding } = instruction;
    const isForward = payload === 'activation';
    const store = isForward ? this.#activations : this.#gradients;
    const results = await this.#ports.failure.guard(defined(store.get(microBatch), `${payload} ${microBatch}`));
    const beganMs = this.#ports.clock.now();
    const cuts = isForward ? this.#stage.outputs : this.#stage.inputs.filter((input) => input.differentiable);
    const offset = this.#program.samples[0];
    const slices = results.map((result, index) =>
      sliceSamples(result, defined(cuts[index], 'cut').batchAxis, samples[0] - offset, samples[1] - offset),
    );
    const tensors = encoding === undefined ? slices : encodeTensors(slices);
    await this.#ports.send(to, { kind: payload, round: this.#round, microBatch, tensors }, 'pipeline');
    if (this.#isLastSend(payload, microBatch)) {
      store.delete(microBatch);
      for (const { data } of results) giveMemory(data);
    }
    onDone(beganMs);
  }

  /** One more of those who get a result has it; with the last nobody needs it here. */
  #isLastSend(payload: Payload, microBatch: number): boolean {
    const key = pieceKey(payload, microBatch);
    const leftCount = defined(this.#sendCounts.get(key), key) - 1;
    this.#sendCounts.set(key, leftCount);
    return leftCount === 0;
  }

  #backward(microBatch: number, bucket: number | undefined): void {
    const gradients = bucket === undefined || bucket === 0 ? this.#gradientsOf(microBatch) : [];
    const result = this.#stage.backward(microBatch, gradients, bucket);
    // Of a pass in pieces, the last gives what is sent.
    if (bucket === undefined || bucket === this.#buckets.length - 1) this.#keep(this.#gradients, microBatch, result);
    else result.catch(() => {}); // the next piece fails too
  }

  /** The place of an instruction's layers among the buckets; undefined for all layers. */
  #bucketOf(layers: LayerRange | undefined): number | undefined {
    return layers === undefined ? undefined : this.#buckets.findIndex(([first]) => first === layers[0]);
  }

  /**
   * Takes the bucket's gradients at once, before anything else is queued on the engine, and reduces them after the
   * bucket before.
   */
  #overlappedAllReduce(reduction: Reduction, bucket: number, onReduced: (beganMs: number) => void): void {
    const taken = this.#take(bucket);
    taken.catch(() => {}); // seen by reduced()
    this.#reducing = this.#reducing.then(async () => {
      await this.#ports.failure.guard(taken);
      const beganMs = this.#ports.clock.now();
      await this.#allReduce(reduction, bucket, taken);
      onReduced(beganMs);
    });
    this.#reducing.catch(() => {}); // seen by reduced()
  }

  /**
   * With nothing else to do meanwhile, what it costs is known: all that the process does, the search for garbage that
   * gradients leave behind included.
   */
  async #allReduceBehind(reduction: Reduction): Promise<void> {
    const taken = this.#take();
    await this.#ports.failure.guard(taken);
    const beforeMs = this.#ports.processWorkMs?.();
    await this.#allReduce(reduction, undefined, taken);
    const afterMs = this.#ports.processWorkMs?.();
    if (beforeMs !== undefined && afterMs !== undefined) this.reducingMs = Math.max(0, afterMs - beforeMs);
  }

  /** Every AllReduce is done. */
  reduced(): Promise<void> {
    return this.#reducing;
  }

  /** The own gradients; of a strict stage in parts. */
  #take(bucket?: number): Promise<SegmentedVector | OrderedParts> {
    return this.#stage.takePartials?.(bucket) ?? this.#stage.takeGradients(bucket);
  }

  async #allReduce(
    { group, encoding }: Reduction,
    bucket: number | undefined,
    taken: Promise<SegmentedVector | OrderedParts>,
  ): Promise<void> {
    const memberIndex = group.indexOf(this.#program.device);
    assert(memberIndex >= 0, 'the device is in its own group');
    const next = defined(group[(memberIndex + 1) % group.length], 'the next of the ring');
    const previous = defined(group[(memberIndex + group.length - 1) % group.length], 'the previous of the ring');
    const values = await this.#ports.failure.guard(taken);
    const firstFrame = this.#ringFrames;
    const ring = { memberIndex, memberCount: group.length };
    const isWhole = values instanceof SegmentedVector;
    this.#ringFrames += isWhole ? ringFrameCount(values.length, group.length) : orderedFrameCount(values.total.length);
    const port: RingPort = {
      send: (piece, tensors) =>
        this.#ports.send(
          next,
          { kind: 'all-reduce', round: this.#round, microBatch: firstFrame + piece, tensors },
          'pipeline',
        ),
      receive: (piece) =>
        this.#ports.receive({ kind: 'all-reduce', round: this.#round, microBatch: firstFrame + piece, from: previous }),
    };
    const sum = isWhole
      ? this.#sumOnRing(values, { ...ring, bucket, encoding }, port)
      : orderedAllReduce(values, { ...ring, port });
    await sum.catch((error: unknown) => {
      throw error instanceof ProtocolError ? new ProtocolError(error.message, { peer: previous }) : error;
    });
    this.#stage.putGradients(isWhole ? values : values.total, bucket);
  }

  /**
   * Sums a vector of gradients as the plan says. Statistics, at its end, travel as they are: they are no sums of
   * changes, and of other sizes than gradients.
   */
  async #sumOnRing(values: SegmentedVector, { bucket, encoding, ...ring }: RingPlace, port: RingPort): Promise<void> {
    const { statisticCount = 0, residuals } = this.#stage;
    const plain = pieceCodec(undefined);
    // Which of a bucket's elements are statistics is not known here.
    if (encoding === undefined || (bucket !== undefined && statisticCount > 0)) {
      await ringAllReduce(values, { ...ring, codec: plain }, port);
      return;
    }
    const gradientCount = values.length - statisticCount;
    const part = `bucket ${bucket ?? 'whole'}`;
    const codec = pieceCodec(encoding, () => defined(residuals, 'residuals').of(part, this.#round, gradientCount));
    const firstPiece = await ringAllReduce(values.part(0, gradientCount), { ...ring, codec }, port);
    await ringAllReduce(values.part(gradientCount, values.length), { ...ring, codec: plain, firstPiece }, port);
  }
}

type Reduction = Extract<Instruction, { kind: 'all-reduce' }>;

/** An AllReduce of this device. */
interface RingPlace {
  readonly memberIndex: number;
  readonly memberCount: number;
  readonly bucket: number | undefined;
  readonly encoding: Reduction['encoding'];
}

/** Whether an instruction is passed before it is done, and tells when it is. */
function endsLater(instruction: Instruction): boolean {
  return instruction.kind === 'send' || isOverlapped(instruction);
}

/** Whether an instruction runs beside those behind it. */
function isOverlapped(instruction: Instruction): boolean {
  return instruction.kind === 'all-reduce' && instruction.layers !== undefined;
}

/** What encodeTensors makes of tensors like these. */
export function encodedCuts(cuts: readonly CutTensor[]): readonly CutTensor[] {
  const floats = cuts.filter(({ type }) => type === 'float32');
  if (floats.length === 0) return cuts;
  const scales: CutTensor = {
    name: 'the scales',
    type: 'float32',
    shape: [floats.length],
    batchAxis: 0,
    differentiable: false,
  };
  return [...cuts.map((cut) => (cut.type === 'float32' ? { ...cut, type: 'float16' as const } : cut)), scales];
}

function pieceKey(payload: Payload, microBatch: number): string {
  return `${payload}/${microBatch}`;
}

/** A peer's tensors must be exactly those that the plan says. Throws ProtocolError. */
export function checkPiece(
  tensors: readonly Tensor[],
  expected: readonly CutTensor[],
  samples: SampleRange,
  { what, from }: { readonly what: string; readonly from: string },
): void {
  const refuse = (found: string): never => {
    throw new ProtocolError(`The ${what} of ${from} should hold ${found}.`, from === feedName ? {} : { peer: from });
  };
  if (tensors.length !== expected.length) refuse(`${expected.length} tensors, not ${tensors.length}`);
  for (const [index, cut] of expected.entries()) {
    const found = defined(tensors[index], 'tensor');
    const shape = cut.shape.map((dimension) => (dimension === 'N' ? samples[1] - samples[0] : dimension));
    if (found.type !== cut.type || !sameShape(found.shape, shape)) {
      refuse(`${cut.name} as ${cut.type}[${shape}], not ${found.type}[${found.shape}]`);
    }
  }
}
