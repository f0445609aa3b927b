// The data of rounds: each batch is cut to what the devices of a program receive, and sent in the order in which they
// need it.

import { defined } from '../../assert.ts';
import type { Program, SampleRange } from '../../schedule/program.ts';
import type { Frame } from '../../transport/link.ts';
import { sliceSamples } from '../device/samples.ts';
import type { FedBatch, PiecewiseBatch } from './options.ts';

/** A piece of a batch, and who gets it. */
interface Delivery {
  readonly device: string;
  readonly payload: 'input' | 'label';
  readonly microBatch: number;
  /** Samples of the batch. */
  readonly samples: SampleRange;
}

export interface DataFeedOptions {
  batch(round: number): FedBatch | PiecewiseBatch | Promise<FedBatch>;
  /** Resolves when more may be sent: where a link is full, it waits. */
  send(device: string, frame: Frame): Promise<void>;
  /** No batch can be had. */
  onError(error: unknown): void;
}

/** Sends one round after the other, for one layout at a time. */
export class DataFeed {
  readonly #options: DataFeedOptions;
  /** Of the layout; undefined between two. */
  #deliveries: readonly Delivery[] | undefined;
  /** The program of a batch of fewer samples. */
  #programFor: ((sampleCount: number) => Program) | undefined;
  #wholeCount = 0;
  #sent: Promise<void> = Promise.resolve();

  constructor(options: DataFeedOptions) {
    this.#options = options;
  }

  /**
   * A layout begins, with the program of a whole batch and, if there may be smaller ones, theirs. What is left of
   * rounds of the layout before is not sent any more.
   */
  begin(program: Program, programFor?: (sampleCount: number) => Program): void {
    this.#deliveries = deliveriesOf(program);
    this.#wholeCount = program.microBatchSize * program.microBatchCount;
    this.#programFor = programFor;
    this.#sent = Promise.resolve();
  }

  /** Nothing more is sent before the next layout. */
  stop(): void {
    this.#deliveries = undefined;
  }

  /** Sends a round's data behind those of the rounds before. */
  feed(round: number, epoch: number): void {
    const deliveries = this.#deliveries;
    this.#sent = this.#sent
      .then(() => this.#send(round, epoch, deliveries))
      .catch((error: unknown) => this.#options.onError(error));
  }

  async #send(round: number, epoch: number, deliveries: readonly Delivery[] | undefined): Promise<void> {
    if (deliveries === undefined || this.#deliveries !== deliveries) return;
    const given = this.#options.batch(round);
    const batch = given instanceof Promise ? await given : given;
    if (this.#deliveries !== deliveries) return;
    const { sampleCount, piece } = 'piece' in batch ? batch : piecesOf(batch);
    const rest = sampleCount === this.#wholeCount ? undefined : this.#programFor?.(sampleCount);
    const due = rest === undefined ? deliveries : deliveriesOf(rest);
    for (const { device, payload, microBatch, samples } of due) {
      const tensors = piece(payload, samples);
      await this.#options.send(device, { kind: payload, epoch, round, microBatch, tensors });
      if (this.#deliveries !== deliveries) return;
    }
  }
}

/** A batch that is there as a whole. */
function piecesOf({ inputs, labels }: FedBatch): PiecewiseBatch {
  return {
    sampleCount: inputs[0]?.shape[0] as number,
    piece: (payload, samples) =>
      (payload === 'input' ? inputs : [defined(labels, 'labels')]).map((value) => sliceSamples(value, 0, ...samples)),
  };
}

/** What a program's devices receive from the data feed, micro-batch by micro-batch. */
function deliveriesOf({ devices, microBatchSize }: Program): readonly Delivery[] {
  const deliveries = devices.flatMap(({ device, instructions }) =>
    instructions.flatMap((instruction): Delivery[] => {
      if (instruction.kind !== 'receive' || instruction.from !== null) return [];
      const { payload, microBatch, samples } = instruction;
      const start = microBatch * microBatchSize;
      return payload === 'input' || payload === 'label'
        ? [{ device, payload, microBatch, samples: [start + samples[0], start + samples[1]] }]
        : [];
    }),
  );
  return deliveries.sort((a, b) => a.microBatch - b.microBatch);
}
