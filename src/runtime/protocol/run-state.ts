// The state of a run between rounds: all that training changes, by role and name.

import type { Tensor } from '../../graph/tensor.ts';
import type { StateRole } from './messages.ts';

/**
 * Parameters, buffers and optimizer state. Optimizer state is named "parameter/kind", such as "conv1.weight/momentum".
 */
export type RunState = Readonly<Record<StateRole, ReadonlyMap<string, Tensor>>>;

/** The parameter that an optimizer state's name belongs to. */
export function optimizedParameter(name: string): string {
  return name.slice(0, name.lastIndexOf('/'));
}

/** The parameters of a state that are not frozen. */
export function trainedParameters({ parameter }: RunState, frozen: readonly string[]): ReadonlyMap<string, Tensor> {
  const kept = new Set(frozen);
  return new Map([...parameter].filter(([name]) => !kept.has(name)));
}

/** A state with the parameters that it lacks, which are frozen, as they were at the start. */
export function withFrozen(state: RunState, start: RunState): RunState {
  return { ...state, parameter: new Map([...start.parameter, ...state.parameter]) };
}

/** The parameters' moving averages, where the optimizer's state has any; else the parameters. */
export function averagedParameters(
  parameters: ReadonlyMap<string, Tensor>,
  optimizerState: ReadonlyMap<string, Tensor>,
): ReadonlyMap<string, Tensor> {
  return new Map([...parameters].map(([name, value]) => [name, optimizerState.get(`${name}/average`) ?? value]));
}
