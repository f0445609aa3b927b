// The settings of tests while training, and of what is kept, as rows of the table in settings.ts.

import { z } from 'zod';
import { bestMetrics } from '../runtime/run/best-metric.ts';
import type { TrainSettings } from '../runtime/run/settings.ts';
import { numeric, type Setting, toggle, whole, wholeOrZero } from './setting-values.ts';

type TestSetting = keyof Pick<TrainSettings, 'evalEvery' | 'ema' | 'keepBest' | 'patience' | 'tensorboard'>;

/** The rows, by name. */
export const testRows: Readonly<Record<TestSetting, Setting>> = {
  evalEvery: {
    argument: 'N',
    description: 'updates between tests; 0 tests at the end only (default: one epoch, or more for at most 20 tests)',
    schema: wholeOrZero,
  },
  ema: {
    argument: 'D',
    description: 'test and keep the moving average of the weights, of which D stays in each update, such as 0.999',
    schema: numeric(z.number().min(0, 'must be 0 to below 1').lt(1, 'must be 0 to below 1')),
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
