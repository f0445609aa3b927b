// Texts as data sets: ids as Hugging Face's tokenizers make them, padding and masks, blocks for next-token training,
// conversations of which the assistant's part is learnt, and one sentence for what is wrong.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { toNumbers } from '../../../graph/tensor.ts';
import { fixtureFolder } from '../../../testing/pytorch-fixtures.ts';
import type { Datasets } from '../../../training/data/arrays.ts';
import { type DataSettings, defaultDataSettings } from '../../../training/data/data-settings.ts';
import { type Dataset, gather } from '../../../training/data/dataset.ts';
import type { TextInput } from '../../../training/data/texts/text-form.ts';
import { nodeDisk } from '../disk.ts';
import { loadTexts } from './load-texts.ts';
import { loadTokenizer } from './tokenizer.ts';

const folder = fixtureFolder('texts');
const bert = { names: ['input_ids', 'attention_mask', 'token_type_ids'] };

function load(
  name: string,
  text: string,
  settings: Partial<DataSettings> = {},
  { input = bert, classNames }: { readonly input?: TextInput; readonly classNames?: readonly string[] } = {},
): Promise<Datasets> {
  return loadTexts(
    { name, bytes: new TextEncoder().encode(text) },
    {
      settings: { ...defaultDataSettings, tokenizer: folder, ...settings },
      input,
      disk: nodeDisk,
      classNames,
      form: undefined,
    },
  );
}

/** Inputs and labels of the first samples. */
function rows(dataset: Dataset, count = dataset.sampleCount): readonly (readonly number[])[] {
  const { inputs, labels } = gather(
    dataset,
    Uint32Array.from({ length: count }, (_, index) => index),
  );
  return [...inputs, labels].map((value) => toNumbers(value));
}

test('ids and types are those of the tokenizers package', async () => {
  const { encoder } = await loadTokenizer(folder, nodeDisk);
  const cases = JSON.parse(readFileSync(join(folder, 'expected.json'), 'utf8')) as readonly {
    readonly texts: readonly [string, string?];
    readonly ids: readonly number[];
    readonly types: readonly number[];
  }[];
  for (const { texts, ids, types } of cases) assert.deepEqual(encoder.encode(...texts), { ids, types }, texts.join());
  assert.deepEqual([encoder.padId, encoder.unknownId, encoder.endId], [0, 1, 3]);
});

test('texts of a table are padded to one length, with masks; classes have names', async () => {
  const table = 'text,label\n"The film, was good",yes\nbadly,no\n';
  const { train, findings, companions } = await load('t.csv', table);
  assert.deepEqual(rows(train), [
    [2, 7, 8, 1, 9, 4, 3, 0, 2, 5, 6, 3, 0, 0, 0, 0],
    [1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0],
    new Array(16).fill(0),
    [1, 0],
  ]);
  assert.deepEqual(train.classNames, ['no', 'yes']);
  assert.deepEqual(findings, [
    'Texts are filled up to 8 tokens; 69 % of these are texts.',
    '1 texts have words that the tokenizer does not know.',
  ]);
  assert.ok(companions?.['tokenizer.json']?.includes('WordPiece'));
  const cut = await load('t.csv', table, { maxLength: 4 });
  assert.deepEqual(rows(cut.train)[0], [2, 7, 8, 3, 2, 5, 6, 3]);
});

test('pairs of texts, numbers as labels, JSON lines', async () => {
  const lines = '{"question":"good","answer":"is it bad?","label":0.5}\n';
  const { train } = await load('t.jsonl', lines, { columns: 'question,answer' });
  assert.deepEqual(rows(train), [
    [2, 4, 3, 11, 12, 5, 13, 3],
    [1, 1, 1, 1, 1, 1, 1, 1],
    [0, 0, 0, 1, 1, 1, 1, 1],
    [0.5],
  ]);
});

test('plain text makes blocks whose labels are the next tokens; the last are for tests', async () => {
  const options = { input: { names: ['input_ids'] } };
  const { train, test: held } = await load(
    't.txt',
    'the film was good '.repeat(3),
    { maxLength: 4, evalSplit: 0.4 },
    options,
  );
  assert.deepEqual(rows(train), [
    [7, 8, 9, 4, 7, 8, 9, 4],
    [8, 9, 4, 7, 8, 9, 4, 7],
  ]);
  assert.deepEqual(held && rows(held), [
    [7, 8, 9, 4],
    [8, 9, 4, 3],
  ]);
});

test('of conversations the assistant’s part is learnt, after the template’s prompt', async () => {
  const line = JSON.stringify({
    messages: [
      { role: 'user', content: 'is film' },
      { role: 'assistant', content: 'good' },
    ],
  });
  const { train } = await load('t.jsonl', `${line}\n${line}\n`, { maxLength: 6 }, { input: { names: ['input_ids'] } });
  // what is film [SEP] it good [SEP]: ids 10 11 8 3 12 4 3
  assert.deepEqual(rows(train), [
    [10, 11, 8, 3, 12, 4, 3, 10, 11, 8, 3, 12],
    [-100, -100, -100, -100, 4, 3, -100, -100, -100, -100, -100, 4],
  ]);
});

test('what is wrong with texts is one sentence', async () => {
  const table = 'text,label\ngood,yes\nbad,no\n';
  const cases: readonly (readonly [loading: Promise<unknown>, says: RegExp])[] = [
    [
      load('t.csv', table, { tokenizer: join(folder, 'nothing.json') }),
      /nothing\.json cannot be read: there is no such/,
    ],
    [
      load('t.csv', table, { tokenizer: join(folder, 'expected.json') }),
      /expected\.json is no tokenizer\.json that can be/,
    ],
    [
      load('t.csv', table, {}, { input: { ...bert, vocabularySize: 4 } }),
      /line 2, has the token 4, and the model embeds 4/,
    ],
    [
      load('t.csv', table, {}, { input: { names: ['input_ids', 'bbox'] } }),
      /The model's input bbox is none that texts/,
    ],
    [
      load('t.csv', table, {}, { classNames: ['no', 'maybe'] }),
      /line 2, has the label "yes", which the training data do/,
    ],
    [load('t.csv', 'a,label\n1,2\n'), /t\.csv has no column of texts; name one with --columns\./],
    [load('t.txt', 'good'), /t\.txt has 2 tokens, too few for two blocks of 256; take more text/],
    [load('t.jsonl', '{"messages":[{"role":"user"}]}\n'), /t\.jsonl, line 1, is no conversation; it is a list of/],
  ];
  for (const [loading, says] of cases) await assert.rejects(loading, says);
});
