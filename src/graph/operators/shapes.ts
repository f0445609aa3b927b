// Operators about shapes and places: no arithmetic on elements (but for what Scatter's reductions add up).

import { construction } from './construction.ts';
import { cutting } from './cutting.ts';
import type { OperatorDefinition } from './definition.ts';
import { indexed } from './indexed.ts';
import { movement } from './movement.ts';
import type { ShapeName } from './names.ts';

export const shapes: Readonly<Record<ShapeName, OperatorDefinition>> = {
  ...construction,
  ...cutting,
  ...indexed,
  ...movement,
};
