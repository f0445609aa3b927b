// How many outputs a classifier of a config.json has, and what they are called.

import { z } from 'zod';

/** The fields of labels in config.json. */
export const labelFields: {
  readonly id2label: z.ZodOptional<z.ZodNullable<z.ZodRecord<z.ZodString, z.ZodString>>>;
  readonly num_labels: z.ZodOptional<z.ZodNullable<z.ZodNumber>>;
} = {
  id2label: z.record(z.string(), z.string()).nullish(),
  num_labels: z.number().int().min(1).max(1_000_000).nullish(),
};

export interface LabelFields {
  readonly id2label?: Readonly<Record<string, string>> | null | undefined;
  readonly num_labels?: number | null | undefined;
}

/** Outputs of the head: as chosen, else the checkout's, which are 2 where it says nothing. */
export function labelCount({ id2label, num_labels: count }: LabelFields, { classes }: { classes?: number }): number {
  return classes ?? count ?? (id2label ? Object.keys(id2label).length : 2);
}
