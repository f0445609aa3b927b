// What was done to data before a model saw them, as plain data that travel in the trained model, so that `predict` and
// `eval` do the same. Validated when read back.

import { z } from 'zod';
import { type PictureForm, pictureFormSchema } from './pictures/picture-form.ts';

/** How samples were made of files. */
export type Preparation = { readonly kind: 'pictures'; readonly form: PictureForm };

export const preparationSchema: z.ZodType<Preparation> = z.discriminatedUnion('kind', [
  z.object({ kind: z.literal('pictures'), form: pictureFormSchema }),
]);
