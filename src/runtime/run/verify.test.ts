// What may differ between runs that compute the same.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { batchNormNet, regressionNet, sgd, subjectOf } from '../../testing/training-subjects.ts';
import { tolerancesOf } from './verify.ts';

test('tolerances: losses are held strictly with Adam, whose steps amplify rounding in weights alone', () => {
  const adam = { ...sgd, kind: 'adam' } as const;
  assert.deepEqual(tolerancesOf(subjectOf(regressionNet(), 4)), { losses: 1e-5, weights: 1e-5 });
  assert.deepEqual(tolerancesOf(subjectOf(regressionNet(), 4, { optimizer: adam })), { losses: 1e-5, weights: 1e-3 });
  assert.deepEqual(tolerancesOf(subjectOf(batchNormNet(), 4)), { losses: 1e-3, weights: 1e-3 });
});
