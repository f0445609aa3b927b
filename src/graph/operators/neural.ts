// The operators of neural networks: products, convolutions, pools, normalizations.

import { convolutions } from './conv.ts';
import type { OperatorDefinition } from './definition.ts';
import { matmul } from './matmul.ts';
import type { NeuralName } from './names.ts';
import { normalizations } from './normalization.ts';
import { pools } from './pool.ts';
import { resize } from './resize.ts';

export const neural: Readonly<Record<NeuralName, OperatorDefinition>> = {
  ...convolutions,
  ...matmul,
  ...normalizations,
  ...pools,
  Resize: resize,
};
