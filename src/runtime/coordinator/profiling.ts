// Who measures links and the model at the start of a run. In a full profile each pair of members measures its link, and
// all members the model, at once: devices that share a machine then see each other's load, as they will in training. In
// a quick one, one measures for all that nothing tells apart on its machine, and rounds show the rest. Part of the
// coordinator's state machine; pure.

import type { LinkMeasurement, ToWorker } from '../protocol/messages.ts';
import type { Answer, MachineConfig, MachineEffect, MachineState, Member, Step } from './machine-types.ts';
import { fullMembers } from './members.ts';

/** What a device is asked to measure of the model. */
export function profileRequest({ batchSizesToProfile, thoroughness }: MachineConfig): ToWorker['profile'] {
  return { batchSizes: batchSizesToProfile, ...(thoroughness === undefined ? {} : { thoroughness }) };
}

/** Whether one of these devices may measure for the other. */
function areAlike(one: Member, other: Member): boolean {
  return one.likeness !== undefined && one.likeness === other.likeness;
}

/** Whether the link of the first two members is like all others: inside one machine there is little to find out. */
export function measuresOnePair({ thoroughness }: MachineConfig, members: readonly Member[]): boolean {
  const [first] = members;
  return thoroughness === 'quick' && first !== undefined && members.every((member) => areAlike(first, member));
}

/** The members to which a member measures its links: those behind it. */
export function peersToMeasure(config: MachineConfig, members: readonly Member[], measurerIndex: number): string[] {
  const peers = members.slice(measurerIndex + 1).map(({ name }) => name);
  if (!measuresOnePair(config, members)) return peers;
  return measurerIndex === 0 ? peers.slice(0, 1) : [];
}

/** A device has measured its links; where one pair measures for all, these are all pairs' links. */
export function linksMeasured(
  config: MachineConfig,
  members: readonly Member[],
  device: string,
  links: readonly LinkMeasurement[],
): readonly MachineEffect[] {
  const [link] = links;
  if (link === undefined || !measuresOnePair(config, members)) return [{ kind: 'links-measured', device, links }];
  return members.slice(0, -1).map(({ name }, index) => {
    const peers = members.slice(index + 1);
    return {
      kind: 'links-measured',
      device: name,
      links: peers.map((peer) => ({ ...link, peer: peer.name })),
    } as const;
  });
}

/** Asks for the profiles that are missing; nobody is waited for where there is none. */
export function askForProfiles(config: MachineConfig, state: MachineState): Step {
  const missing = fullMembers(state).filter(({ isProfiled }) => isProfiled !== true);
  const asked = missing.filter(
    (member, index) => config.thoroughness !== 'quick' || !missing.slice(0, index).some((one) => areAlike(one, member)),
  );
  const waitingFor = asked.map(({ name }) => name);
  const control = profileRequest(config);
  const effects: MachineEffect[] = state.phase === 'profiling' ? [] : [{ kind: 'phase', phase: 'profiling' }];
  effects.push(...waitingFor.map((device) => ({ kind: 'send', device, message: 'profile', control }) as const));
  return [{ ...state, phase: 'profiling', waitingFor }, effects];
}

/** A device has measured, for itself and in a quick profile for those like it. */
export function profiled(
  config: MachineConfig,
  state: MachineState,
  device: string,
  { profile }: Extract<Answer, { kind: 'profiled' }>,
): Step {
  const measurer = state.members.find(({ name }) => name === device);
  const isMeant = (member: Member): boolean =>
    member === measurer || (config.thoroughness === 'quick' && measurer !== undefined && areAlike(member, measurer));
  const meant = fullMembers(state).filter(isMeant);
  const members = state.members.map((member) => (meant.includes(member) ? { ...member, isProfiled: true } : member));
  return [{ ...state, members }, meant.map(({ name }) => ({ kind: 'profiled', device: name, profile }) as const)];
}
