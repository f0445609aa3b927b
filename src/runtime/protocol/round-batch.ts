// What a round's batch is, where it is not simply whole: the last one of an epoch may have fewer samples, and labels
// that are left out do not count in its mean. Losses and gradients are summed as if for the mean over a whole batch
// with all its labels (training/losses.ts); one factor makes of such a sum the mean over what is really there, whatever
// the plan.

/** A round's batch. */
export interface RoundBatch {
  /** Samples: those of a whole batch, or fewer. */
  readonly sampleCount: number;
  /**
   * Labels of a whole batch over labels that count in this one: what sums of losses and gradients are multiplied by. 0
   * where none counts: such a round changes weights by momentum and weight decay alone.
   */
  readonly factor: number;
  /** Tokens of its samples, where they are fewer than the model takes (`LayerSequence.shorter`). */
  readonly length?: number;
}

/** The batches of a run by round. Absent: all are whole, and all labels count. */
export interface RoundBatches {
  readonly batchSize: number;
  readonly batchAt?: (round: number) => RoundBatch;
}

/** The batch of a round. */
export function batchAt({ batchSize, batchAt: at }: RoundBatches, round: number): RoundBatch {
  return at?.(round) ?? { sampleCount: batchSize, factor: 1 };
}

/** Whether a round is of the usual shape: others need passes of their own, and say nothing of what rounds take. */
export function isUsualRound(batches: RoundBatches, round: number): boolean {
  const { sampleCount, length } = batchAt(batches, round);
  return sampleCount === batches.batchSize && length === undefined;
}

/** The scale of a round's gradients: its factor, and that of clipping by the norm of what the factor makes of them. */
export function scaleOf(
  { factor }: Pick<RoundBatch, 'factor'>,
  squaredNorm: number,
  clipScale: (squaredNorm: number) => number,
): number {
  return factor * clipScale(squaredNorm * factor ** 2);
}
