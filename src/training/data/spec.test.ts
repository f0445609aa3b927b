import assert from 'node:assert/strict';
import test from 'node:test';
import { InputError } from '../../errors.ts';
import { dataSpecForms, parseDataSpec } from './spec.ts';

test('every form is accepted', () => {
  assert.deepEqual(
    [
      'mnist',
      'cifar10:/data/c',
      'idx:C:\\data',
      'images:x',
      'npy:x.npy,dir/y.npy',
      'npz:x.npz',
      'csv:t.csv',
      'csv:t.csv,label',
      'tokens:t.txt',
      'tokens:t.npy,64',
      'synthetic:3x32x32',
      'synthetic:8:3',
      'synthetic:1x4:2:500',
      'synthetic-tokens:128:30522',
      'synthetic-tokens:16:50:3:64',
    ].map(parseDataSpec),
    [
      { kind: 'mnist' },
      { kind: 'cifar10', folder: '/data/c' },
      { kind: 'idx', folder: 'C:\\data' },
      { kind: 'images', path: 'x' },
      { kind: 'npy', inputs: 'x.npy', labels: 'dir/y.npy' },
      { kind: 'npz', file: 'x.npz' },
      { kind: 'csv', file: 't.csv' },
      { kind: 'csv', file: 't.csv', labelColumn: 'label' },
      { kind: 'tokens', file: 't.txt', blockLength: 128 },
      { kind: 'tokens', file: 't.npy', blockLength: 64 },
      { kind: 'synthetic', shape: [3, 32, 32], classCount: 10 },
      { kind: 'synthetic', shape: [8], classCount: 3 },
      { kind: 'synthetic', shape: [1, 4], classCount: 2, sampleCount: 500 },
      { kind: 'synthetic-tokens', length: 128, vocabularySize: 30522, classCount: 2, sampleCount: 1024 },
      { kind: 'synthetic-tokens', length: 16, vocabularySize: 50, classCount: 3, sampleCount: 64 },
    ],
  );
});

test('a mix is of whole data sets or shares of them; a plus in a path stays there', () => {
  assert.deepEqual(parseDataSpec('mix:npz:a+b.npz+mnist@0.1'), {
    kind: 'mix',
    parts: [
      { spec: { kind: 'npz', file: 'a+b.npz' }, share: 1, text: 'npz:a+b.npz' },
      { spec: { kind: 'mnist' }, share: 0.1, text: 'mnist' },
    ],
  });
});

test('anything else is refused with the list of forms', () => {
  const problems: Record<string, string> = {
    '': 'its kind is unknown',
    cifar: 'its kind is unknown',
    '__proto__:x': 'its kind is unknown',
    'mnist:x': 'mnist takes nothing after it',
    cifar10: 'the folder is missing',
    'idx:': 'the folder is missing',
    'npy:x.npy': 'the two files, inputs and labels, are needed',
    'npy:x.npy,': 'the two files, inputs and labels, are needed',
    'npy:a,b,c': 'there is more than one comma (a path with a comma must be renamed)',
    'npz:': 'the file is missing',
    'csv:': 'the file is missing',
    'tokens:t,x': 'the block length "x" is not a positive integer',
    'tokens:t,0': 'the block length "0" is not a positive integer',
    'synthetic:': 'the dimension "" is not a positive integer',
    'synthetic:3x-2': 'the dimension "-2" is not a positive integer',
    'synthetic:3:1.5': 'the number of classes "1.5" is not a positive integer',
    'synthetic:3:2:0': 'the number of samples "0" is not a positive integer',
    'synthetic:3:2:1:1': 'SHAPE, CLASSES and SAMPLES are all it takes',
    'synthetic:999999999x999999999': 'the shape is too large',
    'synthetic-tokens:16': 'the vocabulary "" is not a positive integer',
    'mix:mnist': 'a mix needs two parts at least, with + between them',
    'mix:mnist+mnist@1.5': 'the share "1.5" is not above 0 and at most 1',
    'mix:mnist+mix:mnist+mnist': 'a mix cannot be part of a mix',
    'synthetic-tokens:16:9:2:8:1': 'LENGTH, VOCABULARY, CLASSES and SAMPLES are all it takes',
  };
  for (const [text, problem] of Object.entries(problems)) {
    assert.throws(
      () => parseDataSpec(text),
      new InputError(
        `The data spec ${JSON.stringify(text)} cannot be read: ${problem}; valid are ${dataSpecForms.join(', ')}.`,
      ),
      text,
    );
  }
});
