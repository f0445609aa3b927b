// What travels between the passes of a device and other devices, in tensors: checks of received pieces against what the
// plan says, the received pieces of each micro-batch until its pass takes them, and the results that are still to be
// sent. Micro-batches of several rounds may be here at once.

import { defined } from '../../assert.ts';
import { ProtocolError } from '../../errors.ts';
import type { CutTensor } from '../../graph/layers.ts';
import { sameShape, type Tensor } from '../../graph/tensor.ts';
import type { Payload, StagePayload } from '../../schedule/passes.ts';
import type { SampleRange } from '../../schedule/program.ts';
import { giveMemory } from '../../transport/tensor-memory.ts';
import { decodeTensors } from './codec.ts';
import { joinSamples, owned } from './samples.ts';

/** The name under which the data feed's frames are filed. */
export const feedName = '(feed)';

/** A micro-batch of a stream: its round, and its place in the round's batch. */
export interface MicroBatchId {
  readonly round: number;
  readonly index: number;
}

/** Rounds [first, end). */
export type RoundRange = readonly [first: number, end: number];

/** A micro-batch as a key of maps. */
export function keyOf({ round, index }: MicroBatchId): string {
  return `${round}/${index}`;
}

interface Piece {
  readonly samples: SampleRange;
  readonly tensors: readonly Tensor[];
}

/** A piece as it arrived. */
export interface ArrivedPiece {
  readonly payload: Payload;
  readonly microBatch: MicroBatchId;
  readonly samples: SampleRange;
  readonly from: string;
  readonly isEncoded: boolean;
}

/** Received pieces, by payload and micro-batch. */
export class ReceivedPieces {
  readonly #pieces = new Map<string, Piece[]>();

  /** Files a piece of `expected` tensors. Throws ProtocolError if it is something else. */
  add(
    { payload, microBatch, samples, from, isEncoded }: ArrivedPiece,
    expected: readonly CutTensor[],
    arrived: readonly Tensor[],
  ): void {
    const what = { what: `${payload} ${microBatch.index}`, from };
    const tensors = isEncoded ? decodedPiece(arrived, expected, samples) : arrived;
    checkPiece(tensors, expected, samples, what);
    const key = pieceKey(payload, microBatch);
    const pieces = this.#pieces.get(key) ?? [];
    pieces.push({ samples, tensors });
    this.#pieces.set(key, pieces);
  }

  /**
   * Takes out the pieces of one micro-batch, in the order of their samples, joined tensor by tensor; each in a buffer
   * that the engine may take.
   */
  take(payload: Payload, microBatch: MicroBatchId, expected: readonly CutTensor[]): readonly Tensor[] {
    const key = pieceKey(payload, microBatch);
    const pieces = defined(this.#pieces.get(key), `${payload} ${microBatch.index}`);
    this.#pieces.delete(key);
    pieces.sort((a, b) => a.samples[0] - b.samples[0]);
    return expected.map((cut, index) => {
      const parts = pieces.map((piece) => defined(piece.tensors[index], cut.name));
      const whole = owned(joinSamples(parts, cut.batchAxis));
      for (const { data } of parts) if (data.buffer !== whole.data.buffer) giveMemory(data);
      return whole;
    });
  }
}

/** A payload that a device sends. */
type Sent = StagePayload;

/** Results of passes, until the last of their receivers has them. */
export class Results {
  readonly #results = new Map<string, Promise<readonly Tensor[]>>();
  /** Sends that are to come of each result. */
  readonly #sendCounts = new Map<string, number>();

  /** A result will be sent once more. */
  expectSend(payload: Sent, microBatch: MicroBatchId): void {
    const key = pieceKey(payload, microBatch);
    this.#sendCounts.set(key, (this.#sendCounts.get(key) ?? 0) + 1);
  }

  /** Files a result; a failure is seen by `all` or by the send, never as an unhandled rejection. */
  keep(payload: Sent, microBatch: MicroBatchId, result: Promise<readonly Tensor[]>): void {
    result.catch(() => {});
    this.#results.set(pieceKey(payload, microBatch), result);
  }

  get(payload: Sent, microBatch: MicroBatchId): Promise<readonly Tensor[]> {
    return defined(this.#results.get(pieceKey(payload, microBatch)), `${payload} ${microBatch.index}`);
  }

  /** One receiver more has a result; with the last its memory is free. */
  sent(payload: Sent, microBatch: MicroBatchId, result: readonly Tensor[]): void {
    const key = pieceKey(payload, microBatch);
    const leftCount = defined(this.#sendCounts.get(key), key) - 1;
    this.#sendCounts.set(key, leftCount);
    if (leftCount > 0) return;
    this.#sendCounts.delete(key);
    this.#results.delete(key);
    for (const { data } of result) giveMemory(data);
  }

  /** The results that are still here, to wait until they are computed. What nobody sends is forgotten. */
  all(): readonly Promise<readonly Tensor[]>[] {
    const all = [...this.#results.values()];
    for (const key of this.#results.keys()) if (!this.#sendCounts.has(key)) this.#results.delete(key);
    return all;
  }
}

function pieceKey(payload: Payload, microBatch: MicroBatchId): string {
  return `${payload}/${keyOf(microBatch)}`;
}

/** The tensors of a piece that travelled encoded. Throws ProtocolError where it is no such piece. */
export function decodedPiece(
  arrived: readonly Tensor[],
  expected: readonly CutTensor[],
  samples: SampleRange,
): readonly Tensor[] {
  return decodeTensors(
    arrived,
    expected.map((cut) => ({ type: cut.type, shape: shapeOf(cut, samples) })),
  );
}

function shapeOf({ shape }: CutTensor, [first, end]: SampleRange): readonly number[] {
  return shape.map((dimension) => (dimension === 'N' ? end - first : dimension));
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
    const shape = shapeOf(cut, samples);
    if (found.type !== cut.type || !sameShape(found.shape, shape)) {
      refuse(`${cut.name} as ${cut.type}[${shape}], not ${found.type}[${found.shape}]`);
    }
  }
}
