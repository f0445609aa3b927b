// What was done to data before a model saw them, and what its outputs mean: plain data that travel in the trained
// model's metadata, so that `predict` and `eval` do and know the same. Validated when read back.

import { z } from 'zod';
import { type LossKind, lossKinds } from '../losses.ts';
import { type PictureForm, pictureFormSchema } from './pictures/picture-form.ts';
import { type TableForm, tableFormSchema } from './tables/table-form.ts';
import { type TextForm, textFormSchema } from './texts/text-form.ts';

/** How samples were made of files. */
export type Preparation =
  | { readonly kind: 'pictures'; readonly form: PictureForm }
  | { readonly kind: 'table'; readonly form: TableForm }
  | { readonly kind: 'text'; readonly form: TextForm };

const preparationSchema: z.ZodType<Preparation> = z.discriminatedUnion('kind', [
  z.object({ kind: z.literal('pictures'), form: pictureFormSchema }),
  z.object({ kind: z.literal('table'), form: tableFormSchema }),
  z.object({ kind: z.literal('text'), form: textFormSchema }),
]);

/** What the user of a trained model needs to know. */
export interface ModelUse {
  readonly loss: LossKind;
  readonly preparation?: Preparation | undefined;
  /** The classes' names, in the order of the outputs. */
  readonly classNames?: readonly string[] | undefined;
}

const useSchema: z.ZodType<Pick<ModelUse, 'loss' | 'preparation'>> = z.object({
  loss: z.enum(lossKinds),
  preparation: preparationSchema.optional(),
});
const namesSchema = z.record(z.string().regex(/^\d{1,9}$/), z.string());

const useKey = 'asteroid.use';
/** The key by which Ultralytics and tools that read its models find the classes: {"0": "cat", …}. */
const namesKey = 'names';

/** The entries of an ONNX file's metadata; none where only the loss is known. */
export function useEntries({ loss, preparation, classNames }: ModelUse): ReadonlyMap<string, string> {
  if (preparation === undefined && classNames === undefined) return new Map();
  const use = preparation === undefined ? { loss } : { loss, preparation };
  const entries = new Map([[useKey, JSON.stringify(use)]]);
  if (classNames !== undefined) entries.set(namesKey, JSON.stringify(Object.fromEntries(classNames.entries())));
  return entries;
}

/** Reads {@link useEntries}; undefined for a file without them, or with another program's. */
export function readUse(entries: ReadonlyMap<string, string>): ModelUse | undefined {
  const use = useSchema.safeParse(parsed(entries.get(useKey)));
  if (!use.success) return undefined;
  const names = namesSchema.safeParse(parsed(entries.get(namesKey)));
  if (!names.success) return use.data;
  const classNames = Object.keys(names.data).map((_, index) => names.data[index]);
  return classNames.every((name) => name !== undefined) ? { ...use.data, classNames } : use.data;
}

function parsed(text: string | undefined): unknown {
  if (text === undefined) return undefined;
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}
