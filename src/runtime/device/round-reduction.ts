// The AllReduces of one round on one device: gradients out of the stage, over the ring, and the group's sums back in.
// Those of buckets run while passes compute, one after the other; one of all layers runs in its place.

import { assert, defined } from '../../assert.ts';
import { ProtocolError } from '../../errors.ts';
import type { AllReduce } from '../../schedule/program.ts';
import { type RingPort, ringAllReduce, ringFrameCount } from './all-reduce.ts';
import { pieceCodec } from './codec.ts';
import { orderedAllReduce, orderedFrameCount } from './ordered-all-reduce.ts';
import type { RoundPorts } from './round-ports.ts';
import { SegmentedVector } from './segmented-vector.ts';
import type { GradientPort, OwnGradients } from './stage.ts';

/** An AllReduce of this device. */
interface RingPlace {
  readonly memberIndex: number;
  readonly memberCount: number;
  readonly bucket: number | undefined;
  readonly encoding: AllReduce['encoding'];
}

/** Reduces the gradients of one round. */
export class RoundReduction {
  readonly #device: string;
  readonly #gradients: GradientPort;
  readonly #round: number;
  readonly #ports: RoundPorts;
  /** The AllReduces of buckets, one after the other. */
  #reducing: Promise<void> = Promise.resolve();
  /** Frames of the round's AllReduces so far: the next one's are numbered from here, on all members alike. */
  #frameCount = 0;
  /** What this process did during the AllReduce of all layers, in milliseconds; undefined if nobody knows. */
  reducingMs: number | undefined;

  constructor(device: string, gradients: GradientPort, round: number, ports: RoundPorts) {
    this.#device = device;
    this.#gradients = gradients;
    this.#round = round;
    this.#ports = ports;
  }

  /**
   * Takes the bucket's gradients at once, before anything else is queued on the engine, and reduces them after the
   * bucket before. `onReduced` gets the time at which reducing began.
   */
  overlapped(reduction: AllReduce, bucket: number, onReduced: (beganMs: number) => void): void {
    const taken = this.#gradients.takeGradients(bucket, this.#round);
    taken.catch(() => {}); // seen by done()
    this.#reducing = this.#reducing.then(async () => {
      await this.#ports.failure.guard(taken);
      const beganMs = this.#ports.clock.now();
      await this.#allReduce(reduction, bucket, taken);
      onReduced(beganMs);
    });
    this.#reducing.catch(() => {}); // seen by done()
  }

  /**
   * Reduces all layers at once. Nothing else runs meanwhile, so that its cost can be measured: all that the process
   * does, the collection of garbage that gradients leave included.
   */
  async whole(reduction: AllReduce): Promise<void> {
    const taken = this.#gradients.takeGradients(undefined, this.#round);
    await this.#ports.failure.guard(taken);
    const beforeMs = this.#ports.processWorkMs?.();
    await this.#allReduce(reduction, undefined, taken);
    const afterMs = this.#ports.processWorkMs?.();
    if (beforeMs !== undefined && afterMs !== undefined) this.reducingMs = Math.max(0, afterMs - beforeMs);
  }

  /** Resolves when every AllReduce is done. */
  done(): Promise<void> {
    return this.#reducing;
  }

  async #allReduce(
    { group, encoding }: AllReduce,
    bucket: number | undefined,
    taken: Promise<OwnGradients>,
  ): Promise<void> {
    const memberIndex = group.indexOf(this.#device);
    assert(memberIndex >= 0, 'the device is in its own group');
    const next = defined(group[(memberIndex + 1) % group.length], 'the next of the ring');
    const previous = defined(group[(memberIndex + group.length - 1) % group.length], 'the previous of the ring');
    const values = await this.#ports.failure.guard(taken);
    const ring = { memberIndex, memberCount: group.length };
    const isVector = values instanceof SegmentedVector;
    const port = this.#portTo(next, previous);
    this.#frameCount += isVector ? ringFrameCount(values.length, group.length) : orderedFrameCount(values.total.length);
    const sum = isVector
      ? this.#sumOnRing(values, { ...ring, bucket, encoding }, port)
      : orderedAllReduce(values, { ...ring, port });
    await sum.catch((error: unknown) => {
      throw error instanceof ProtocolError ? new ProtocolError(error.message, { peer: previous }) : error;
    });
    this.#gradients.putGradients(isVector ? values : values.total, bucket, this.#round);
  }

  /** The links of an AllReduce whose frames are numbered from the next number on. */
  #portTo(next: string, previous: string): RingPort {
    const firstFrame = this.#frameCount;
    const name = (piece: number) =>
      ({ kind: 'all-reduce', round: this.#round, microBatch: firstFrame + piece }) as const;
    return {
      send: (piece, tensors) => this.#ports.send(next, { ...name(piece), tensors }, 'pipeline'),
      receive: (piece) => this.#ports.receive({ ...name(piece), from: previous }),
    };
  }

  /**
   * Sums a vector of gradients as the plan says. Statistics, at its end, travel as they are: they are no sums of
   * changes, and of other sizes than gradients.
   */
  async #sumOnRing(values: SegmentedVector, { bucket, encoding, ...ring }: RingPlace, port: RingPort): Promise<void> {
    const { statisticCount, residuals } = this.#gradients;
    const plain = pieceCodec(undefined);
    // Which of a bucket's elements are statistics is not known here.
    if (encoding === undefined || (bucket !== undefined && statisticCount > 0)) {
      await ringAllReduce(values, { ...ring, codec: plain }, port);
      return;
    }
    const gradientCount = values.length - statisticCount;
    const part = `bucket ${bucket ?? 'whole'}`;
    const codec = pieceCodec(encoding, () => residuals.of(part, this.#round, gradientCount));
    const firstPiece = await ringAllReduce(values.part(0, gradientCount), { ...ring, codec }, port);
    await ringAllReduce(values.part(gradientCount, values.length), { ...ring, codec: plain, firstPiece }, port);
  }
}
