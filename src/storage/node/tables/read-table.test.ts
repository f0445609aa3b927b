// Tables from files, and as data sets: what is read, what is made of it, and one sentence for what is wrong.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { gzipSync } from 'node:zlib';
import { InputError } from '../../../errors.ts';
import { toNumbers } from '../../../graph/tensor.ts';
import { createRandom } from '../../../random.ts';
import { mutate } from '../../../testing/mutations.ts';
import { fixtureFolder } from '../../../testing/pytorch-fixtures.ts';
import type { Datasets } from '../../../training/data/arrays.ts';
import { type Dataset, gather } from '../../../training/data/dataset.ts';
import { type TableTask, tableDataset, unlabelledRows } from '../../../training/data/tables/table-dataset.ts';
import { readTable } from './read-table.ts';

async function load(bytes: Uint8Array | string, task: Partial<TableTask> = {}, name = 't.csv'): Promise<Datasets> {
  const contents = typeof bytes === 'string' ? new TextEncoder().encode(bytes) : new Uint8Array(bytes);
  return tableDataset(await readTable({ name, bytes: contents }), { standardizes: false, ...task });
}

/** Inputs, labels and their types, in the file's order. */
function contents(dataset: Dataset): unknown {
  const { inputs, labels } = gather(
    dataset,
    Uint32Array.from({ length: dataset.sampleCount }, (_, index) => index),
  );
  return [
    inputs.map((input) => [input.type, input.shape, toNumbers(input)]),
    [labels.type, labels.shape, toNumbers(labels)],
    dataset.classCount,
  ];
}

async function read(text: Uint8Array | string, task: Partial<TableTask> = {}, name = 't.csv'): Promise<unknown> {
  return contents((await load(text, task, name)).train);
}

const expected = [[['float32', [2, 2], [1, -0.5, 2000, 0.25]]], ['int64', [2], [0, 2]], 3];

test('the last column is the label; integers are classes', async () => {
  assert.deepEqual(await read('1,-.5,0\n2e3,0.25,2\n'), expected);
});

test('column names, delimiters, CRLF, a byte order mark, UTF-16, gzip, blank lines and quotes', async () => {
  assert.deepEqual(await read('\ufeffa;b;label\r\n1;-0.5;0\r\n\r\n 2000 ;.25;2'), expected);
  assert.deepEqual(await read('1\t-0.5\t0\n2.0e+3\t0.25\t2'), expected);
  assert.deepEqual(await read('a|b|c\n1|-0.5|0\n2000|0.25|2'), expected);
  assert.deepEqual(await read('"a, ""x""","b\nc",label\n"1","-0.5",0\n2000, "0.25" ,2'), expected);
  assert.deepEqual(await read(Buffer.from('\ufeffa,b,c\n1,-0.5,0\n2000,0.25,2', 'utf16le')), expected);
  assert.deepEqual(await read(gzipSync('a,b,c\n1,-0.5,0\n2000,0.25,2'), {}, 't.csv.gz'), expected);
});

test('JSON lines and Parquet hold the same table', async () => {
  const lines = '{"a":1,"b":-0.5,"label":0}\n\n{"label":2,"a":2000,"b":0.25}\n';
  assert.deepEqual(await read(lines, {}, 't.jsonl'), expected);
  const folder = fixtureFolder('tables');
  const parquet = readFileSync(join(folder, 'snappy.parquet'));
  assert.deepEqual(await read(parquet, {}, 'snappy.parquet'), expected);
});

test('a named column is the label, or one that is called label; several are numbers', async () => {
  assert.deepEqual(await read('a,kind,b\n1,0,-0.5\n2000,2,0.25\n', { labels: ['kind'] }), expected);
  assert.deepEqual(await read('a,Label,b\n1,0,-0.5\n2000,2,0.25\n'), expected);
  assert.deepEqual(await read('a,b,c,kind\n1,-0.5,9,0\n2000,0.25,9,2\n', { columns: ['a', 'b'] }), expected);
  assert.deepEqual(await read('a,b,c\n1,0,1\n2,1,0\n', { labels: ['b', 'c'] }), [
    [['float32', [2, 1], [1, 2]]],
    ['float32', [2, 2], [0, 1, 1, 0]],
    undefined,
  ]);
});

test('labels that are not all classes are regression targets, [n, 1]', async () => {
  assert.deepEqual(await read('1,0.5\n2,3\n'), [
    [['float32', [2, 1], [1, 2]]],
    ['float32', [2, 1], [0.5, 3]],
    undefined,
  ]);
  assert.deepEqual(await read('1,-1\n'), [[['float32', [1, 1], [1]]], ['float32', [1, 1], [-1]], undefined]);
});

const people = 'age,city,label\n10,Rome,no\n30,Oslo,yes\n,Rome,no\n20,,yes\n';

test('numbers are standardised, texts become categories, missing values are said and neutral', async () => {
  const { train, findings } = await load(people, { standardizes: true });
  const scale = 10 / Math.sqrt(200 / 3);
  const rounded = (values: readonly number[]): number[] => values.map((value) => Number(value.toFixed(4)));
  const { inputs, labels } = gather(train, Uint32Array.of(0, 1, 2, 3));
  const [first] = inputs;
  assert.deepEqual(rounded(toNumbers(first ?? assert.fail())), rounded([-scale, 0, 1, scale, 1, 0, 0, 0, 1, 0, 0, 0]));
  assert.deepEqual(
    [train.classNames, toNumbers(labels)],
    [
      ['no', 'yes'],
      [0, 1, 0, 1],
    ],
  );
  assert.deepEqual(findings, [
    "age has 1 missing values (line 4): the column's mean stands for them.",
    'city has 1 missing values (line 5): they are in no category.',
  ]);
  assert.ok(train.preparation?.kind === 'table');
  const table = await readTable({ name: 'n', bytes: new TextEncoder().encode('city,age\nOslo,30\nParis,20\n') });
  const rows = gather(unlabelledRows(table, train.preparation.form), Uint32Array.of(0, 1)).inputs[0];
  assert.deepEqual(rounded(toNumbers(rows ?? assert.fail())), rounded([scale, 1, 0, 0, 0, 0]));
});

test('statistics and categories are those of the rows to train on, whatever the rows to test on hold', async () => {
  // Ages 0 to 9, one city each; both parts together are all rows.
  const rows = Array.from({ length: 10 }, (_, row) => `${row},c${row},${row % 2 === 0 ? 'no' : 'yes'}\n`);
  const parts = await load(`age,city,label\n${rows.join('')}`, {
    standardizes: true,
    testPart: { fraction: 0.4, seed: 3 },
  });
  const { train, test: tested } = parts;
  assert.ok(train.preparation?.kind === 'table' && tested !== undefined);
  assert.deepEqual([train.sampleCount, tested.sampleCount], [6, 4]);
  const ages = [...(train.rows ?? [])];
  assert.deepEqual(
    [...ages, ...(tested.rows ?? [])].sort((a, b) => a - b),
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
  );
  const mean = ages.reduce((sum, age) => sum + age, 0) / 6;
  const deviation = Math.sqrt(ages.reduce((sum, age) => sum + (age - mean) ** 2, 0) / 6);
  const [age, city] = train.preparation.form.columns;
  assert.ok(age?.kind === 'number' && city?.kind === 'category');
  assert.ok(Math.abs(age.mean - mean) < 1e-12 && Math.abs(age.deviation - deviation) < 1e-12);
  assert.ok(mean !== 4.5, 'the test rows would not be missed');
  assert.deepEqual(
    city.values,
    ages.map((value) => `c${value}`),
  );
  const [input] = gather(tested, Uint32Array.of(0)).inputs;
  const first = tested.rows?.[0] ?? 0;
  assert.ok(Math.abs((toNumbers(input ?? assert.fail())[0] ?? 0) - (first - mean) / deviation) < 1e-6);
});

test('what is no such table is one sentence with its line', async () => {
  const cases: readonly (readonly [text: string, message: string, task?: Partial<TableTask>])[] = [
    ['', 't.csv is empty; a table with one line a sample is needed.'],
    ['a,b\n', 't.csv holds no samples; at least one is needed.'],
    ['1\n2\n', 't.csv has a single column; inputs and a label are needed, separated by commas.'],
    ['a,b\n1,2\n\n1,2,3', 't.csv, line 4, has 3 columns, but the first line has 2; every line needs the same.'],
    ['1,2\n1e39,4', 't.csv, line 2, column 1, is "1e39", which is not a finite number; correct or remove that line.'],
    ['1,2\n"3,4', 't.csv, line 2, has a quotation mark that does not close; correct that line.'],
    ['1,2\n3,4\n"5,6\n7,8\n9,1\n', 't.csv, line 3, has a quotation mark that does not close; correct that line.'],
    ['1,2\n"3"x,4', 't.csv, line 2, has a quotation mark that does not close; correct that line.'],
    ['a,b\n1,\n2,3', 't.csv, line 2, has no value in the label column b: complete or remove them.'],
    [
      'a,b\n1,x',
      't.csv has one class only (x) in the column b, and nothing can be told apart: add rows of another, or name ' +
        'another column with --label.',
    ],
    ['a,a\n1,2', 't.csv has two columns named "a": rename one of them.'],
    ['a,b\n1,2\n', 't.csv has no column kind; its columns are a, b.', { labels: ['kind'] }],
    ['a,b,c\n,1,2\n', 't.csv has no value in the column a: leave it out with --columns.'],
    [
      'a,b\n1,dog\n2,cat\n3,cow',
      't.csv, line 4, has the label "cow", which the training data do not have; these have cat, dog: correct ' +
        'that label, or train with rows of it.',
      { classNames: ['cat', 'dog'] },
    ],
    [
      '1,2\n',
      't.csv has no line of column names, so the column kind of --label cannot be found; add one.',
      { labels: ['kind'] },
    ],
  ];
  for (const [text, message, task] of cases) await assert.rejects(load(text, task), new InputError(message), text);
  await assert.rejects(
    load(Uint8Array.of(0x31, 10, 0x31, 0xff, 0xfe)),
    new InputError('t.csv, line 2, is not UTF-8 text; save the file as UTF-8.'),
  );
  await assert.rejects(load('{"a":1}\nx\n', {}, 't.jsonl'), /InputError: t\.jsonl, line 2, is no JSON object/);
  await assert.rejects(load('PAR1', {}, 't.parquet'), /InputError: t\.parquet is not a Parquet file that can be read/);
});

test('long cells of digits and of quotation marks take linear time', async () => {
  await assert.rejects(load(`1,2\n${'1'.repeat(2_000_000)}x,2`, { labels: ['3'] }), InputError);
  await assert.rejects(load(`1,2\n"${'""'.repeat(2_000_000)},2`), InputError);
});

test('500 mutations give tables or InputError', async () => {
  const original = new TextEncoder().encode('a;"b";label\r\n1;"-0.5";0\n2000;.25;2\n');
  for (let seed = 0; seed < 500; seed++) {
    const bytes = mutate(original, createRandom(seed));
    await load(bytes).catch((error: unknown) => assert.ok(error instanceof InputError, `seed ${seed}: ${error}`));
  }
});
