// What a run's settings leave open.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { correctionIn } from './settings.ts';

test("what makes up for old weights: nesterov, unless the optimizer cannot or a paper's remedy is asked for", () => {
  const plain = { aggregate: 0, planner: 'best', optimizer: 'sgd', momentum: 0 } as const;
  for (const [given, correction] of [
    [{ momentum: 0.9 }, 'nesterov'],
    [{ optimizer: 'adam' }, 'nesterov'],
    [{}, 'none'],
    [{ optimizer: 'adam', aggregate: 1 }, 'none'],
    [{ optimizer: 'adam', planner: 'ftpipehd' }, 'none'],
    [{ optimizer: 'adam', stalenessCorrection: 'predict' }, 'predict'],
    [{ momentum: 0.9, stalenessCorrection: 'none' }, 'none'],
    [{ optimizer: 'adam', aggregate: 1, stalenessCorrection: 'nesterov' }, 'nesterov'],
  ] as const)
    assert.equal(correctionIn({ ...plain, ...given }), correction, JSON.stringify(given));
});
