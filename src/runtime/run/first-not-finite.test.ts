import assert from 'node:assert/strict';
import { test } from 'node:test';
import { systemClock } from '../../clock.ts';
import { createReferenceEngine } from '../../engine/reference.ts';
import { RunError } from '../../errors.ts';
import { GraphBuilder } from '../../graph/builder.ts';
import { layers } from '../../graph/layers.ts';
import { tensor } from '../../graph/tensor.ts';
import { labelCases, prepareCase } from '../../testing/label-cases.ts';
import { subjectOf } from '../../testing/training-subjects.ts';
import { runPrepared } from '../host/session-here.ts';
import { explainNotFinite } from './first-not-finite.ts';

/** Dropout, batch normalization, and an exponential that overflows for large inputs: in the layer `middle`. */
function explain(more: { readonly x?: number; readonly middle?: number; readonly last?: number }): Promise<string> {
  const b = new GraphBuilder('net', { seed: 1 });
  const x = b.linear(b.input('x', 'float32', ['N', 2]), { name: 'first', outFeatures: 3 });
  const normed = b.batchNorm(b.dropout(x, 0.5), { name: 'norm' });
  const middle = b.node('Exp', [b.linear(normed, { name: 'middle', outFeatures: 3 })]);
  const graph = b.build([b.linear(middle, { name: 'last', outFeatures: 2 })]);
  const { sequence: _, ...subject } = subjectOf({ graph, loss: 'cross-entropy', classCount: 2 }, 4);
  const parameter = new Map(subject.state.parameter);
  const spoil = (name: string, value: number | undefined): void => {
    const { shape, data } = parameter.get(name) ?? { shape: [], data: [] };
    if (value !== undefined) parameter.set(name, tensor('float32', shape, new Array(data.length).fill(value)));
  };
  spoil('middle.weight', more.middle);
  spoil('last.bias', more.last);
  return explainNotFinite(
    createReferenceEngine(),
    { ...subject, sequence: layers(graph) },
    {
      round: 3,
      batch: {
        inputs: [tensor('float32', [4, 2], [1, 2, 3, 4, 5, 6, 7, more.x ?? 8])],
        labels: tensor('int64', [4], [0, 1, 0, 1]),
      },
      microBatchSize: 3,
      state: { ...subject.state, parameter },
    },
  );
}

test('the first layer whose output is not finite is named, and its weight if that was not', async () => {
  assert.equal(
    await explain({ middle: 1e4 }),
    'the first layer whose output is not finite is middle, and its weights were finite',
  );
  assert.equal(
    await explain({ middle: Number.NaN }),
    'the first layer whose output is not finite is middle, and its middle.weight was not finite before that round',
  );
  // The last layer gives its output here, not its loss; the fourth sample is a micro-batch of its own.
  assert.equal(
    await explain({ last: Number.POSITIVE_INFINITY }),
    'the first layer whose output is not finite is last, and its last.bias was not finite before that round',
  );
  assert.equal(
    await explain({ x: Number.POSITIVE_INFINITY }),
    'the first layer whose output is not finite is first, and its weights were finite',
  );
});

test('where every output is finite, the loss or a gradient is not', async () => {
  assert.equal(await explain({}), 'the output of every layer is finite: the loss of it, or a gradient, is not');
});

test('a run that diverges says so', async () => {
  const [labelCase] = labelCases('tokens');
  assert.ok(labelCase !== undefined);
  const prepared = await prepareCase(labelCase, { lr: '1e30' });
  const environment = { clock: systemClock, observe: () => {}, signal: new AbortController().signal };
  await assert.rejects(
    runPrepared(prepared, environment),
    (error) =>
      error instanceof RunError &&
      error.message ===
        'Training ended: the loss or a gradient of round 1 is not a finite number (the first layer whose output is ' +
          'not finite is w, and its weights were finite): lower the learning rate (--lr) or ' +
          'clip gradients (--clip-norm).',
  );
});
