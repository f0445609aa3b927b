import type { OperatorDefinition } from './definition.ts';
import type { ShapeName } from './names.ts';

export const shapes: Readonly<Record<ShapeName, OperatorDefinition>> = {} as Record<ShapeName, OperatorDefinition>; // filled by the operators' owner
