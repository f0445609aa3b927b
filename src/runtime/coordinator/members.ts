// Questions about the members of a run, and its failure. Part of the coordinator's state machine; pure.

import type { MachineEffect, MachineState, Member, Step } from './machine-types.ts';

/** The members that may be given work, in their order. */
export function fullMembers({ members }: MachineState): readonly Member[] {
  return members.filter(({ joining }) => joining === undefined);
}

/** The devices of the layout that stands, in the order of the members. */
export function activeDevices(state: MachineState): string[] {
  const used = new Set(state.plan?.stages.flatMap(({ devices }) => devices));
  return fullMembers(state)
    .map(({ name }) => name)
    .filter((name) => used.has(name));
}

/** The run ends with this sentence. */
export function fail(state: MachineState, message: string): Step {
  const effects = state.members.map(
    ({ name }): MachineEffect => ({ kind: 'send', device: name, message: 'end', control: { reason: message } }),
  );
  const { notFiniteRound } = state;
  const failure: MachineEffect =
    notFiniteRound === state.round ? { kind: 'fail', message, notFiniteRound } : { kind: 'fail', message };
  return [{ ...state, phase: 'ended' }, [...effects, failure]];
}
