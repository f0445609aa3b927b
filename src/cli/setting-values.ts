// What a setting is, and the schemas of single ones, with the words for what is wrong with a value.

import { z } from 'zod';

/** Accepts the text of a flag and the number of a YAML file; true, null and '' are refused. */
export function numeric(schema: z.ZodNumber): z.ZodType {
  return z.preprocess((value) => (typeof value === 'string' && value.trim() !== '' ? Number(value) : value), schema);
}

export const whole: z.ZodType = numeric(
  z.number().int('must be a whole number').min(1, 'must be at least 1').max(1e9, 'must be at most 1e9'),
);
export const wholeOrZero: z.ZodType = numeric(
  z.number().int('must be a whole number').min(0, 'must not be negative').max(1e9, 'must be at most 1e9'),
);
export const port: z.ZodType = numeric(
  z.number().int('must be a whole number').min(0, 'must not be negative').max(65535, 'must be at most 65535'),
);
export const amount: z.ZodType = numeric(z.number().min(0, 'must not be negative'));
export const positive: z.ZodType = numeric(z.number().gt(0, 'must be above 0'));
export const fraction: z.ZodType = numeric(z.number().min(0, 'must be 0 to 1').max(1, 'must be 0 to 1'));
export const toggle: z.ZodBoolean = z.boolean();
export const text: z.ZodString = z.string().min(1, 'must not be empty');

/** One row of the table of settings (settings.ts). */
export interface Setting {
  /** The flag's argument, such as 'N'; absent for switches. */
  readonly argument?: string;
  readonly description: string;
  readonly schema: z.ZodType;
  readonly default?: unknown;
  readonly isRequired?: boolean;
  readonly isList?: boolean;
  /** Only `--no-NAME` exists as a flag. */
  readonly isNegated?: boolean;
}
