// What a run trains, in plain data that travels to every device: loss, optimizer, clipping, seed. Validated wherever it is read.

import { z } from 'zod';

/** The settings of a run that every device must agree on. */
export const trainingSpecSchema = z.object({
  batchSize: z.number().int().positive(),
  loss: z.enum(['cross-entropy', 'mse']),
  optimizer: z.object({
    kind: z.enum(['sgd', 'adam', 'adamw']),
    momentum: z.number().min(0).max(1),
    nesterov: z.boolean(),
    weightDecay: z.number().min(0),
    beta1: z.number().min(0).max(1),
    beta2: z.number().min(0).max(1),
    epsilon: z.number().positive(),
  }),
  /** Largest global gradient norm; null: no clipping. */
  clipNorm: z.number().positive().nullable(),
  /** Seeds dropout, together with the round and each sample's index. */
  seed: z.number().int(),
  /** Parameters that stay as they are. */
  frozen: z.array(z.string()),
});

export type TrainingSpec = Readonly<z.infer<typeof trainingSpecSchema>>;

/** How many copies of each weight the optimizer keeps beside it (eq. 3's s): momentum 1, Adam 2. */
export function optimizerStateCount(spec: TrainingSpec): 0 | 1 | 2 {
  if (spec.optimizer.kind !== 'sgd') return 2;
  return spec.optimizer.momentum > 0 ? 1 : 0;
}
