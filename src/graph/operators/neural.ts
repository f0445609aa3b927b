import type { OperatorDefinition } from './definition.ts';
import type { NeuralName } from './names.ts';

export const neural: Readonly<Record<NeuralName, OperatorDefinition>> = {} as Record<NeuralName, OperatorDefinition>; // filled by the operators' owner
