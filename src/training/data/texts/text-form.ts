// How texts become a model's inputs: plain data, which travel in the trained model beside its tokenizer.

import { z } from 'zod';

/** What is learnt from texts: a class or number for each, or its next tokens. */
export type TextTask = 'labels' | 'language';

export interface TextForm {
  readonly task: TextTask;
  /** Tokens of a sample, padding included. */
  readonly length: number;
  /** The columns of texts, one or two; none of a file that is plain text. */
  readonly columns: readonly string[];
  /** The model's inputs, among `tokenInputs`. */
  readonly inputs: readonly string[];
}

export const textFormSchema: z.ZodType<TextForm> = z.object({
  task: z.enum(['labels', 'language']),
  length: z.number().int().min(1).max(1e6),
  columns: z.array(z.string()).max(2),
  inputs: z.array(z.string()).min(1),
});

/** The inputs of transformers that are made of texts. */
export const tokenInputs = ['input_ids', 'attention_mask', 'token_type_ids', 'position_ids'] as const;

/** What a model takes as texts. */
export interface TextInput {
  /** Its inputs' names. */
  readonly names: readonly string[];
  /** Tokens of a sample, if it leaves them not open. */
  readonly length?: number;
  /** Rows of its embedding of tokens, if they are known. */
  readonly vocabularySize?: number;
}

/** Texts to numbers. */
export interface TokenEncoder {
  /** Ids with special tokens and, of two texts, the type of each token. Undefined ids are unknown tokens. */
  encode(
    text: string,
    pair?: string,
  ): { readonly ids: readonly (number | undefined)[]; readonly types: readonly number[] };
  /** Ids without special tokens. */
  encodePart(text: string): readonly (number | undefined)[];
  /** Fills up samples. */
  readonly padId: number;
  /** What stands for unknown tokens, if the tokenizer has it. */
  readonly unknownId: number | undefined;
  /** What ends a text in language models, if there is such a token. */
  readonly endId: number | undefined;
}
