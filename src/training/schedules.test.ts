import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { InputError } from '../errors.ts';
import { learningRate, parseSchedule } from './schedules.ts';

function rates(text: string, rounds: readonly number[], totalRounds: number, base = 1): number[] {
  const schedule = parseSchedule(text);
  return rounds.map((round) => Number(learningRate(schedule, base, round, totalRounds).toFixed(6)));
}

describe('learning rates', () => {
  test('constant', () => assert.deepEqual(rates('constant', [0, 5, 9], 10, 0.3), [0.3, 0.3, 0.3]));
  test('step counts rounds from the start of training', () => {
    assert.deepEqual(rates('step:3:0.1', [0, 2, 3, 5, 6], 10, 2), [2, 2, 0.2, 0.2, 0.02]);
    assert.deepEqual(rates('step:3:0.1:warmup=2', [0, 1, 2, 3], 10, 2), [1, 2, 2, 0.2]);
  });
  test('cosine falls from the base to almost 0', () => {
    assert.deepEqual(rates('cosine', [0, 1, 2, 3], 4), [1, 0.853553, 0.5, 0.146447]);
  });
  test('linear falls evenly', () => assert.deepEqual(rates('linear', [0, 1, 2, 3], 4), [1, 0.75, 0.5, 0.25]));
  test('a warm-up rises to the base and the rest follows it', () => {
    assert.deepEqual(rates('constant:warmup=4', [0, 1, 2, 3, 4], 8, 2), [0.5, 1, 1.5, 2, 2]);
    assert.deepEqual(rates('cosine:warmup=2', [0, 1, 2, 3, 4, 5], 6), [0.5, 1, 1, 0.853553, 0.5, 0.146447]);
    assert.deepEqual(rates('linear:warmup=2', [0, 1, 2, 4, 5], 6), [0.5, 1, 1, 0.5, 0.25]);
  });
  test('a warm-up longer than training only rises', () =>
    assert.deepEqual(rates('cosine:warmup=10', [0, 4], 5), [0.1, 0.5]));
  test('beyond the last round the rate stays constant', () => assert.deepEqual(rates('cosine', [4, 9], 4), [0, 0]));
});

describe('parseSchedule', () => {
  test('reads every form', () => {
    assert.deepEqual(parseSchedule('constant'), { kind: 'constant', warmupRounds: 0 });
    assert.deepEqual(parseSchedule(' cosine:warmup=100 '), { kind: 'cosine', warmupRounds: 100 });
    assert.deepEqual(parseSchedule('linear:warmup=0'), { kind: 'linear', warmupRounds: 0 });
    assert.deepEqual(parseSchedule('step:30:0.1'), { kind: 'step', every: 30, factor: 0.1, warmupRounds: 0 });
    assert.deepEqual(parseSchedule('step:30:1e-1:warmup=5'), { kind: 'step', every: 30, factor: 0.1, warmupRounds: 5 });
  });
  const nonsense: Readonly<Record<string, RegExp>> = {
    '': /is not known/,
    Cosine: /is not known/,
    'warmup=5': /is not known/,
    'cosine:5': /has "5" too much/,
    'cosine:warmup=': /warm-up of ""/,
    'cosine:warmup=1.5': /warm-up of "1\.5"/,
    'cosine:warmup=-1': /warm-up of "-1"/,
    'cosine:warmup=5:3': /has "warmup=5:3" too much/,
    step: /needs two numbers/,
    'step:30': /needs two numbers/,
    'step:30:0.1:2': /needs two numbers/,
    'step:0:0.1': /every "0"/,
    'step:x:0.1': /every "x"/,
    'step:30:': /factor ""/,
    'step:30:0': /factor "0"/,
    'step:30:2': /factor "2"/,
    'step:30:NaN': /factor "NaN"/,
  };
  for (const [text, problem] of Object.entries(nonsense)) {
    test(`refuses "${text}"`, () => {
      const isClear = (error: unknown): boolean =>
        error instanceof InputError &&
        problem.test(error.message) &&
        /; write constant, step:EVERY:FACTOR/.test(error.message);
      assert.throws(() => parseSchedule(text), isClear);
    });
  }
});
