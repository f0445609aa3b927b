// Operators on shapes and positions, without arithmetic on elements (except for Scatter's reductions).

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
