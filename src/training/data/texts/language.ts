// Texts for next-token training: all texts in a row, each with an end, cut into blocks of one length; the labels of a
// block are its tokens shifted by one. Tokens that are not to be learnt, such as a user's questions, have the label
// −100.

import { InputError } from '../../../errors.ts';
import { wrap } from '../../../graph/tensor.ts';
import type { Datasets } from '../arrays.ts';
import { createDataset, labelField, subset } from '../dataset.ts';
import type { TextForm, TextInput } from './text-form.ts';
import { inputNames, type TokenRow, tokenFields } from './token-rows.ts';

/** A text's tokens in pieces; those of a piece are learnt or only read. */
export interface LanguagePiece {
  readonly ids: readonly number[];
  readonly isLearnt: boolean;
}

/** PyTorch's `ignore_index`. */
const leftOut = -100;

export interface LanguageOptions {
  readonly source: string;
  readonly input: TextInput;
  /** Tokens of a block where the model leaves it open. */
  readonly blockLength: number;
  /** The part of the blocks, the last ones, to test on: a random choice would test on what was just read. */
  readonly testFraction: number;
  readonly columns: readonly string[];
}

/** Blocks of all texts. Throws InputError for fewer tokens than two blocks take. */
export function languageBlocks(texts: Iterable<readonly LanguagePiece[]>, options: LanguageOptions): Datasets {
  const { source, input, blockLength, testFraction, columns } = options;
  const { ids, labels, learntCount, textCount } = inARow(texts);
  const length = input.length ?? blockLength;
  const blockCount = Math.floor((ids.length - 1) / length);
  if (blockCount < 2)
    throw new InputError(
      `${source} has ${ids.length} tokens, too few for two blocks of ${length}; take more text, or a shorter ` +
        '--max-length.',
    );
  if (learntCount === 0) throw new InputError(`${source} has no tokens to learn: no message has the role "assistant".`);
  const rows = Array.from({ length: blockCount }, (_, block): TokenRow => {
    return { ids: ids.slice(block * length, (block + 1) * length), types: [] };
  });
  const form: TextForm = { task: 'language', length, columns, inputs: inputNames(input) };
  const shifted = Int32Array.from(labels.slice(1, 1 + blockCount * length));
  const field = labelField(wrap('int32', [blockCount, length], shifted), source);
  const dataset = createDataset(source, tokenFields(rows, form, { padId: 0, source }), field);
  const all = { ...dataset, preparation: { kind: 'text', form } } as const;
  const share = Math.round((100 * learntCount) / ids.length);
  const findings = [
    `${textCount} texts of ${ids.length} tokens make ${blockCount} blocks of ${length}; ${share} % are learnt.`,
  ];
  const testCount =
    testFraction === 0 ? 0 : Math.min(blockCount - 1, Math.max(1, Math.round(blockCount * testFraction)));
  if (testCount === 0) return { train: all, findings };
  const blocks = Uint32Array.from({ length: blockCount }, (_, block) => block);
  return {
    train: subset(all, blocks.slice(0, blockCount - testCount)),
    test: subset(all, blocks.slice(blockCount - testCount)),
    findings,
  };
}

function inARow(texts: Iterable<readonly LanguagePiece[]>): {
  readonly ids: readonly number[];
  readonly labels: readonly number[];
  readonly learntCount: number;
  readonly textCount: number;
} {
  const [ids, labels]: [number[], number[]] = [[], []];
  let [learntCount, textCount] = [0, 0];
  for (const text of texts) {
    textCount++;
    for (const { ids: part, isLearnt } of text) {
      if (isLearnt) learntCount += part.length;
      for (const id of part) {
        ids.push(id);
        labels.push(isLearnt ? id : leftOut);
      }
    }
  }
  return { ids, labels, learntCount, textCount };
}
