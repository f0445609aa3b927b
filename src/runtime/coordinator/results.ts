// The outputs of rounds that only infer, from the devices of the last stage: collected piece by piece, checked against
// what the plan says, and given out when the round commits. A device has prepared a round only when its outputs are
// here too, so that a round which commits has all of them, whatever happens to devices afterwards.

import { defined } from '../../assert.ts';
import { ProtocolError } from '../../errors.ts';
import type { CutTensor } from '../../graph/layers.ts';
import type { Tensor } from '../../graph/tensor.ts';
import type { Program, SampleRange } from '../../schedule/program.ts';
import type { Frame } from '../../transport/link.ts';
import { checkPiece } from '../device/pieces.ts';
import { joinSamples } from '../device/samples.ts';
import type { RoundResult } from '../protocol/messages.ts';

/** Outputs of consecutive samples. */
interface Piece {
  readonly microBatch: number;
  readonly samples: SampleRange;
  readonly tensors: readonly Tensor[];
}

/** By device of the last stage: the samples of each micro-batch of a round that it gives. */
type Expected = ReadonlyMap<string, ReadonlyMap<number, SampleRange>>;

/** What a device has prepared. */
interface Prepared {
  /** The first round that has not been taken. */
  next: number;
  readonly waiting: Map<number, RoundResult>;
}

export interface ResultsOptions {
  /** What the model gives. */
  readonly outputs: readonly CutTensor[];
  /** Samples of a round. */
  sampleCount(round: number): number;
}

export class Results {
  readonly #options: ResultsOptions;
  #programFor: (sampleCount: number) => Program = () => {
    throw new Error('no layout has begun');
  };
  /** By samples of a round. */
  readonly #expected = new Map<number, Expected>();
  /** By round, then device. */
  readonly #pieces = new Map<number, Map<string, Piece[]>>();
  readonly #prepared = new Map<string, Prepared>();
  #firstRound = 0;

  constructor(options: ResultsOptions) {
    this.#options = options;
  }

  /** Another layout begins, with this round: what has come of rounds that did not commit comes again. */
  begin(programFor: (sampleCount: number) => Program, firstRound: number): void {
    this.#firstRound = firstRound;
    this.#programFor = programFor;
    this.#expected.clear();
    this.#pieces.clear();
    this.#prepared.clear();
  }

  /** A piece of a round that is in progress has come. Throws ProtocolError if it is not one that was asked for. */
  add(device: string, { round, microBatch, tensors = [] }: Frame): void {
    const what = `output ${microBatch} of round ${round}`;
    const samples = this.#expectedAt(round).get(device)?.get(microBatch);
    const pieces = this.#of(round, device);
    if (samples === undefined || pieces.some((piece) => piece.microBatch === microBatch))
      throw new ProtocolError(`${device} sent the ${what}, which nobody asked for.`);
    checkPiece(tensors, this.#options.outputs, samples, { what, from: device });
    pieces.push({ microBatch, samples, tensors });
  }

  /**
   * A device has prepared a round that is in progress: its outputs may still be on their way, and rounds before it that
   * took the device longer.
   */
  prepared(device: string, result: RoundResult): void {
    const { waiting } = this.#preparedBy(device);
    if (waiting.has(result.round)) throw new ProtocolError(`${device} prepared round ${result.round} twice.`);
    waiting.set(result.round, result);
  }

  /** Takes out the rounds that a device has prepared and whose outputs are all here, in their order. */
  takePrepared(device: string): readonly RoundResult[] {
    const prepared = this.#preparedBy(device);
    const done: RoundResult[] = [];
    for (;;) {
      const result = prepared.waiting.get(prepared.next);
      if (result === undefined || !this.#isComplete(device, prepared.next)) return done;
      prepared.waiting.delete(prepared.next++);
      done.push(result);
    }
  }

  #preparedBy(device: string): Prepared {
    const prepared = this.#prepared.get(device) ?? { next: this.#firstRound, waiting: new Map() };
    this.#prepared.set(device, prepared);
    return prepared;
  }

  #isComplete(device: string, round: number): boolean {
    return (this.#expectedAt(round).get(device)?.size ?? 0) <= this.#of(round, device).length;
  }

  /** Takes out the outputs of a whole round, in the order of its samples. */
  take(round: number): readonly Tensor[] {
    const pieces = [...(this.#pieces.get(round)?.values() ?? [])].flat();
    this.#pieces.delete(round);
    pieces.sort((a, b) => a.microBatch - b.microBatch || a.samples[0] - b.samples[0]);
    return this.#options.outputs.map(({ name, batchAxis }, index) =>
      joinSamples(
        pieces.map(({ tensors }) => defined(tensors[index], name)),
        batchAxis,
      ),
    );
  }

  #of(round: number, device: string): Piece[] {
    const byDevice = this.#pieces.get(round) ?? new Map<string, Piece[]>();
    this.#pieces.set(round, byDevice);
    const pieces = byDevice.get(device) ?? [];
    byDevice.set(device, pieces);
    return pieces;
  }

  #expectedAt(round: number): Expected {
    const sampleCount = this.#options.sampleCount(round);
    const known = this.#expected.get(sampleCount);
    if (known !== undefined) return known;
    const expected = new Map(
      this.#programFor(sampleCount).devices.map(({ device, instructions }) => [
        device,
        new Map(
          instructions.flatMap((step) => (step.kind === 'result' ? [[step.microBatch, step.samples] as const] : [])),
        ),
      ]),
    );
    this.#expected.set(sampleCount, expected);
    return expected;
  }
}
