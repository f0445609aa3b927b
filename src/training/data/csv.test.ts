import assert from 'node:assert/strict';
import test from 'node:test';
import { InputError } from '../../errors.ts';
import { toNumbers } from '../../graph/tensor.ts';
import { fuzz } from '../../testing/mutations.ts';
import { readCsv } from './csv.ts';
import { type Dataset, gather } from './dataset.ts';

const read = (text: string, labelColumn?: string): Dataset =>
  readCsv({ name: 't.csv', bytes: new TextEncoder().encode(text) }, labelColumn);

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

const expected = [[['float32', [2, 2], [1, -0.5, 2000, 0.25]]], ['int64', [2], [0, 2]], 3];

test('the last column is the label; integers are classes', () => {
  assert.deepEqual(contents(read('1,-.5,0\n2e3,0.25,2\n')), expected);
});

test('column names, semicolons, tabs, CRLF, a byte order mark, blank lines and quotes are accepted', () => {
  assert.deepEqual(contents(read('\ufeffa;b;label\r\n1;-0.5;0\r\n\r\n 2000 ;.25;2')), expected);
  assert.deepEqual(contents(read('1\t-0.5\t0\n2.0e+3\t0.25\t2')), expected);
  assert.deepEqual(contents(read('"a, ""x""","b",label\n"1","-0.5",0\n2000, "0.25" ,2')), expected);
});

test('a named column is the label', () => {
  assert.deepEqual(contents(read('a,kind,b\n1,0,-0.5\n2000,2,0.25\n', 'kind')), expected);
  assert.throws(() => read('a,b\n1,2\n', 'kind'), new InputError('t.csv has no column kind; its columns are a, b.'));
  assert.throws(
    () => read('1,2\n', 'kind'),
    /^InputError: t.csv has no line of column names, so the label column kind cannot be found/,
  );
});

test('labels that are not all classes are regression targets, [n, 1]', () => {
  assert.deepEqual(contents(read('1,0.5\n2,3\n')), [
    [['float32', [2, 1], [1, 2]]],
    ['float32', [2, 1], [0.5, 3]],
    undefined,
  ]);
  assert.deepEqual(contents(read('1,-1\n')), [[['float32', [1, 1], [1]]], ['float32', [1, 1], [-1]], undefined]);
});

test('anything but a table of finite numbers is reported by line and column', () => {
  const cases: [string, string][] = [
    ['', 't.csv is empty; a table with one line a sample is needed.'],
    ['a,b\n', 't.csv holds no samples; at least one is needed.'],
    ['1\n2\n', 't.csv has a single column; inputs and a label are needed, separated by commas.'],
    ['a,b\n1,2\n\n1,2,3', 't.csv, line 4, has 3 columns, but the first line has 2; every line needs the same.'],
    ['a,b\n1,x', 't.csv, line 2, column 2, is "x", which is not a finite number; correct or remove that line.'],
    ['1,2\n,4', 't.csv, line 2, column 1, is "", which is not a finite number; correct or remove that line.'],
    ['1,2\nnan,4', 't.csv, line 2, column 1, is "nan", which is not a finite number; correct or remove that line.'],
    ['1,2\n0x10,4', 't.csv, line 2, column 1, is "0x10", which is not a finite number; correct or remove that line.'],
    ['1,2\n1e39,4', 't.csv, line 2, column 1, is "1e39", which is not a finite number; correct or remove that line.'],
    ['1,2\n"3,4', 't.csv, line 2, has a quotation mark that does not close; correct that line.'],
    ['1,2\n"3"x,4', 't.csv, line 2, has a quotation mark that does not close; correct that line.'],
  ];
  for (const [text, message] of cases) assert.throws(() => read(text), new InputError(message), text);
  assert.throws(
    () => readCsv({ name: 't.csv', bytes: Uint8Array.of(0xff, 0xfe, 0x31) }),
    new InputError('t.csv, line 1, is not UTF-8 text; save the table as plain CSV.'),
  );
});

test('long cells of digits and of quotation marks take linear time', () => {
  assert.throws(() => read(`1,2\n${'1'.repeat(2_000_000)}x,2`), InputError);
  assert.throws(() => read(`1,2\n"${'""'.repeat(2_000_000)},2`), InputError);
});

test('3,000 mutations give tables or InputError', () => {
  const { refusedCount } = fuzz([new TextEncoder().encode('a;"b";label\r\n1;"-0.5";0\n2000;.25;2\n')], 3000, (bytes) =>
    readCsv({ name: 'x', bytes }),
  );
  assert.ok(refusedCount > 1000, `${refusedCount} refused`);
});
