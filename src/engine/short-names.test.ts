import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Emitter } from '../graph/emitter.ts';
import { evaluateGraph } from '../testing/evaluate-graph.ts';
import { randomGraph } from '../testing/random-graph.ts';
import { shortNames } from './short-names.ts';

test('values inside get short names that nobody has, the border and nodes keep theirs', () => {
  const e = new Emitter('a long prefix/');
  const x = e.input('0', 'float32', [2]);
  const y = e.emit('Exp', [e.emit('Neg', [x])]);
  const { graph, nameOf } = shortNames(e.build('graph', [y]));
  assert.deepEqual(
    graph.nodes.map(({ name, inputs, outputs }) => [name, ...inputs, ...outputs]),
    [
      ['a long prefix/Neg_0', '0', '1'],
      ['a long prefix/Exp_1', '1', y],
    ],
  );
  assert.equal(nameOf('a long prefix/Neg_0'), '1');
});

test('random graphs compute the same', () => {
  for (let seed = 0; seed < 40; seed++) {
    const { graph, inputs } = randomGraph(seed, 20);
    assert.deepEqual(
      evaluateGraph(shortNames(graph).graph, inputs),
      evaluateGraph(graph, inputs),
      `random graph ${seed}`,
    );
  }
});
