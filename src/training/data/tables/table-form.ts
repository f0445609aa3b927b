// How the columns of a table become a model's inputs: plain data, which travel in the trained model.

import { z } from 'zod';

/** How one column becomes inputs. */
export type ColumnForm =
  | {
      readonly name: string;
      readonly kind: 'number';
      /** (value − mean) / deviation; a missing value is the mean. */
      readonly mean: number;
      readonly deviation: number;
    }
  | {
      readonly name: string;
      readonly kind: 'category';
      /** Each is an input, 1 where the cell is this text; missing and unknown texts are none. */
      readonly values: readonly string[];
    };

export interface TableForm {
  readonly columns: readonly ColumnForm[];
}

export const tableFormSchema: z.ZodType<TableForm> = z.object({
  columns: z.array(
    z.discriminatedUnion('kind', [
      z.object({ name: z.string(), kind: z.literal('number'), mean: z.number(), deviation: z.number().gt(0) }),
      z.object({ name: z.string(), kind: z.literal('category'), values: z.array(z.string()) }),
    ]),
  ),
});
