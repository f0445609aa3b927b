// Token ids as the arrays that transformers take: padded to one length, with masks.

import { InputError } from '../../../errors.ts';
import { type Tensor, wrap } from '../../../graph/tensor.ts';
import type { Field } from '../dataset.ts';
import { lengthStep } from '../lengths.ts';
import type { TextForm, TextInput } from './text-form.ts';
import { tokenInputs } from './text-form.ts';

/** The token ids of a sample, and their types. */
export interface TokenRow {
  readonly ids: readonly number[];
  readonly types: readonly number[];
}

/** The names of the model's inputs if it takes tokens; its single input is the ids, whatever its name. */
export function inputNames({ names }: TextInput): readonly string[] {
  if (names.length === 0) return ['input_ids'];
  const foreign = names.find((name) => !(tokenInputs as readonly string[]).includes(name));
  if (names.length === 1 || foreign === undefined) return names;
  throw new InputError(
    `The model's input ${foreign} is none that texts are made into (${tokenInputs.join(', ')}): export it with these.`,
  );
}

/** Fields [rows, length] of int64: ids, 1 for tokens and 0 for padding, types, and positions. */
export function tokenFields(
  rows: readonly TokenRow[],
  form: TextForm,
  { padId, source }: { padId: number; source: string },
): Field[] {
  const { inputs, length } = form;
  const makers: Readonly<Record<string, (row: TokenRow, place: number) => number>> = {
    attention_mask: ({ ids }, place) => (place < ids.length ? 1 : 0),
    token_type_ids: ({ types }, place) => types[place] ?? 0,
    position_ids: (_, place) => place,
  };
  return inputs.map((name) => {
    const make = makers[name] ?? (({ ids }, place) => ids[place] ?? padId);
    return { name, values: filled(rows, length, make), type: 'int64', divisor: 1, source };
  });
}

function filled(rows: readonly TokenRow[], length: number, make: (row: TokenRow, place: number) => number): Tensor {
  const data = new Int32Array(rows.length * length);
  for (const [index, row] of rows.entries())
    for (let place = 0; place < length; place++) data[index * length + place] = make(row, place);
  return wrap('int32', [rows.length, length], data);
}

/** The tokens of a sample: the model's, else the longest text's within `maxLength`. */
export function lengthFor(longest: number, { length }: TextInput, maxLength: number): number {
  if (length !== undefined) return length;
  return Math.min(maxLength, Math.max(1, Math.ceil(longest / lengthStep) * lengthStep));
}

/** Cuts a text's tokens to a length; the last, which closes it, stays. */
export function cut({ ids, types }: TokenRow, length: number): TokenRow {
  if (ids.length <= length) return { ids, types };
  const last = ids.at(-1);
  return { ids: [...ids.slice(0, length - 1), ...(last === undefined ? [] : [last])], types: types.slice(0, length) };
}

/** Ids that the model can embed. Throws InputError that names the place. */
export function checkedIds(
  ids: readonly (number | undefined)[],
  where: string,
  { vocabularySize = Number.POSITIVE_INFINITY }: TextInput,
): readonly number[] {
  for (const id of ids) {
    if (id === undefined)
      throw new InputError(
        `${where} has a token that the tokenizer does not know, and it has none for unknown ones: take the tokenizer ` +
          'that belongs to the model.',
      );
    if (id >= vocabularySize)
      throw new InputError(
        `${where} has the token ${id}, and the model embeds ${vocabularySize} tokens: this tokenizer is another ` +
          "model's; take its own.",
      );
  }
  return ids as readonly number[];
}
