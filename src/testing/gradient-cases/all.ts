// The cases of all operators that have a gradient rule, by operator.

import type { CaseGenerator } from './case.ts';
import { elementwiseCases } from './elementwise.ts';
import { neuralCases } from './neural.ts';
import { reductionCases } from './reductions.ts';
import { shapeCases } from './shapes.ts';

export const gradientCases: Readonly<Record<string, CaseGenerator>> = {
  ...elementwiseCases,
  ...reductionCases,
  ...shapeCases,
  ...neuralCases,
};
