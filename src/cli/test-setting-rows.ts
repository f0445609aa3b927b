// The settings of tests while training, and of what is kept, as rows of the table in settings.ts.

import { z } from 'zod';
import { bestMetrics } from '../runtime/run/best-metric.ts';
import type { TrainSettings } from '../runtime/run/settings.ts';
import { type Setting, toggle, whole, wholeOrZero } from './setting-values.ts';

type TestSetting = keyof Pick<TrainSettings, 'evalEvery' | 'keepBest' | 'patience' | 'tensorboard'>;

/** The rows, by name. */
export const testRows: Readonly<Record<TestSetting, Setting>> = {
  evalEvery: {
    argument: 'N',
    description: 'updates between tests; 0 tests at the end only (default: one epoch, or more for at most 20 tests)',
    schema: wholeOrZero,
  },
  keepBest: {
    argument: 'METRIC',
    description: `keep the best model of all tests, by ${bestMetrics.join(' | ')} (default: the last model)`,
    schema: z.enum(bestMetrics),
  },
  patience: {
    argument: 'N',
    description: 'end after N tests in a row without a better one, and keep the best (default: by loss)',
    schema: whole,
  },
  tensorboard: {
    description: 'write metrics for TensorBoard, too, into the folder tensorboard of the run',
    schema: toggle,
    default: false,
  },
};
