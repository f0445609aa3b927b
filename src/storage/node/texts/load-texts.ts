// Texts as data sets: tables with a label for each text; conversations and plain texts for next-token training.

import { InputError } from '../../../errors.ts';
import type { Datasets } from '../../../training/data/arrays.ts';
import type { DataSettings } from '../../../training/data/data-settings.ts';
import type { Source } from '../../../training/data/source.ts';
import type { Table } from '../../../training/data/tables/table.ts';
import { labelColumnOf, labelledTexts, textColumnsOf } from '../../../training/data/texts/labelled-texts.ts';
import { type LanguagePiece, languageBlocks } from '../../../training/data/texts/language.ts';
import type { TextForm, TextInput } from '../../../training/data/texts/text-form.ts';
import { checkedIds } from '../../../training/data/texts/token-rows.ts';
import type { Disk } from '../../disk.ts';
import { isTableName, readTable } from '../tables/read-table.ts';
import { pieces } from '../tables/text-pieces.ts';
import { chatRenderer } from './chat.ts';
import { type LoadedTokenizer, loadTokenizer } from './tokenizer.ts';

/** How texts are loaded. */
export interface LoadTextOptions {
  readonly settings: DataSettings;
  readonly input: TextInput;
  readonly disk: Disk;
  readonly classNames: readonly string[] | undefined;
  /** The form of a trained model's texts; undefined: by the model's inputs and the data. */
  readonly form: TextForm | undefined;
}

/** Tokens of a text at most, where the model leaves it open. */
const defaultMaxLength = 256;

/** Loads a file of texts. Throws InputError. */
export async function loadTexts(source: Source, options: LoadTextOptions): Promise<Datasets> {
  const { settings, input, disk } = options;
  if (settings.tokenizer === undefined)
    throw new InputError('--tokenizer is missing: give the tokenizer.json that belongs to the model, or its folder.');
  const tokenizer = await loadTokenizer(settings.tokenizer, disk);
  const withTokenizer = (datasets: Datasets): Datasets => ({
    ...datasets,
    companions: { 'tokenizer.json': tokenizer.text },
  });
  if (!isTableName(source.name)) {
    const text = [...pieces(source)].join('');
    return withTokenizer(languageOf([piecesOfText(text, source.name, tokenizer, input)], source, options));
  }
  const table = await readTable(source);
  const label = labelColumnOf(table, settings.label);
  if (label === undefined) return withTokenizer(await languageTable(table, tokenizer, source, options));
  const columns = settings.columns?.split(',');
  return withTokenizer(
    labelledTexts(table, label, {
      encoder: tokenizer.encoder,
      input,
      maxLength: settings.maxLength ?? defaultMaxLength,
      ...(columns === undefined ? {} : { columns }),
      ...(options.classNames === undefined ? {} : { classNames: options.classNames }),
      ...(options.form === undefined ? {} : { form: options.form }),
    }),
  );
}

/** A table without labels: conversations, or texts. */
async function languageTable(
  table: Table,
  tokenizer: LoadedTokenizer,
  source: Source,
  options: LoadTextOptions,
): Promise<Datasets> {
  const { input, settings } = options;
  const conversations = table.columns.find(({ name }) => name === 'messages' || name === 'conversations');
  const column = conversations ?? textColumnsOf(table, settings.columns?.split(','))[0];
  const where = (row: number): string => `${table.source}, line ${table.lineOf(row)},`;
  const texts = Array.from({ length: table.rowCount }, (_, row) => String(column?.values[row] ?? ''));
  if (conversations === undefined) {
    const all = texts.map((text, row) => piecesOfText(text, where(row), tokenizer, input));
    return languageOf(all, source, options);
  }
  const { chatTemplate, specialTokens, encoder } = tokenizer;
  if (chatTemplate === undefined)
    throw new InputError(
      `${table.source} has conversations, and there is no chat template for them: put the model's ` +
        'tokenizer_config.json beside its tokenizer.json.',
    );
  const render = await chatRenderer(chatTemplate, specialTokens);
  const all = texts.map((text, row) =>
    render(text, where(row)).map(({ text: part, isLearnt }) => ({
      ids: checkedIds(encoder.encodePart(part), where(row), input),
      isLearnt,
    })),
  );
  return languageOf(all, source, options);
}

function piecesOfText(
  text: string,
  where: string,
  { encoder }: LoadedTokenizer,
  input: TextInput,
): readonly LanguagePiece[] {
  const ids = checkedIds(encoder.encodePart(text), where, input);
  return [{ ids: encoder.endId === undefined ? ids : [...ids, encoder.endId], isLearnt: true }];
}

function languageOf(
  texts: readonly (readonly LanguagePiece[])[],
  { name }: Source,
  { input, settings, form }: LoadTextOptions,
): Datasets {
  return languageBlocks(texts, {
    source: name,
    input: form === undefined ? input : { ...input, length: form.length },
    blockLength: settings.maxLength ?? defaultMaxLength,
    testFraction: settings.evalSplit,
    columns: [],
  });
}
