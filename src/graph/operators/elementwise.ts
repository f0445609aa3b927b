import type { OperatorDefinition } from './definition.ts';
import type { ElementwiseName } from './names.ts';

export const elementwise: Readonly<Record<ElementwiseName, OperatorDefinition>> = {} as Record<ElementwiseName, OperatorDefinition>; // filled by the operators' owner
