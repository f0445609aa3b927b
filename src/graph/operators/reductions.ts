import type { OperatorDefinition } from './definition.ts';
import type { ReductionName } from './names.ts';

export const reductions: Readonly<Record<ReductionName, OperatorDefinition>> = {} as Record<ReductionName, OperatorDefinition>; // filled by the operators' owner
