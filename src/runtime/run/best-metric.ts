// By what the models of a run are compared.

import { InputError } from '../../errors.ts';
import { countsCorrect, type LossKind } from '../../training/losses.ts';
import { classScores, macro } from '../../training/scores.ts';
import type { Evaluation } from './evaluate.ts';

/** What may say which model is the best. */
export const bestMetrics = ['loss', 'accuracy', 'balanced-accuracy', 'macro-f1', 'mean-absolute-error'] as const;

export type BestMetric = (typeof bestMetrics)[number];

/** The value of a metric; undefined where this test has none. */
export function metricOf(metric: BestMetric, { loss, accuracy, details }: Evaluation): number | undefined {
  const classes = details?.confusion === undefined ? undefined : classScores(details.confusion);
  switch (metric) {
    case 'loss':
      return loss;
    case 'accuracy':
      return accuracy ?? undefined;
    case 'balanced-accuracy':
      return classes && macro(classes, 'recall');
    case 'macro-f1':
      return classes && macro(classes, 'f1');
    case 'mean-absolute-error':
      return details?.meanAbsoluteError;
  }
}

/** Whether a value is better than another; a number that is none is never. */
export function isBetter(metric: BestMetric, value: number, than: number | undefined): boolean {
  if (!Number.isFinite(value)) return false;
  if (than === undefined) return true;
  return metric === 'loss' || metric === 'mean-absolute-error' ? value < than : value > than;
}

/** Throws InputError for a metric that the loss and the data cannot have. */
export function checkBest(
  settings: { readonly keepBest?: BestMetric; readonly patience?: number; readonly loss: LossKind },
  { hasTest, evaluateEvery }: { readonly hasTest: boolean; readonly evaluateEvery: number },
): void {
  const { keepBest, patience, loss } = settings;
  if (keepBest === undefined && patience === undefined) return;
  const flag = keepBest === undefined ? `--patience ${patience}` : `--keep-best ${keepBest}`;
  if (!hasTest)
    throw new InputError(`${flag} goes by tests, and the data have no test part: give --eval-split or --eval-data.`);
  if (evaluateEvery === 0)
    throw new InputError(`${flag} goes by tests while training, and --eval-every 0 has none: leave it out.`);
  if (keepBest === undefined || keepBest === 'loss') return;
  const needsNumbers = keepBest === 'mean-absolute-error';
  if (needsNumbers === countsCorrect(loss))
    throw new InputError(
      `--keep-best ${keepBest} does not go with --loss ${loss}, which learns ` +
        (needsNumbers
          ? 'classes: use loss, accuracy, balanced-accuracy or macro-f1.'
          : 'numbers: use loss or mean-absolute-error.'),
    );
}
