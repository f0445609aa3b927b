// Devices that come during the run: each gets the model, links to the others and is measured, while these train; then
// it may be given work. Part of the coordinator's state machine; pure.

import type { Answer, JoinStep, MachineConfig, MachineEffect, MachineState, Member, Step } from './machine-types.ts';
import { fullMembers } from './members.ts';
import { profileRequest } from './profiling.ts';

/** A newcomer. One that comes and goes costs the others nothing until it has stayed for a while. */
export function joinLater(state: MachineState, device: string, isCooling: boolean): Step {
  const member: Member = { name: device, listenUrl: '', joining: isCooling ? 'cooling' : 'queued' };
  const next = { ...state, members: [...state.members, member] };
  return isCooling ? [next, []] : startUnlessEarly(next);
}

/** A device has stayed for a while, unless it is needed and was started before. */
export function cooled(state: MachineState, device: string): Step {
  const isCooling = state.members.some(({ name, joining }) => name === device && joining === 'cooling');
  return isCooling ? startUnlessEarly(at(state, device, { joining: 'queued' })) : [state, []];
}

/** Before the first layout stands, newcomers wait: the others are measured without being disturbed. */
function startUnlessEarly(state: MachineState): Step {
  return state.plan === undefined && state.pending === undefined ? [state, []] : startQueued(state);
}

/** Nobody else is left: those that cool down are needed. */
export function startAll(state: MachineState): Step {
  return startQueued({
    ...state,
    members: state.members.map(
      (member): Member => (member.joining === 'cooling' ? { ...member, joining: 'queued' } : member),
    ),
  });
}

/** Sends the model to those that waited. */
export function startQueued(state: MachineState): Step {
  const queued = state.members.filter(({ joining }) => joining === 'queued');
  const members = state.members.map(
    (member): Member => (member.joining === 'queued' ? { ...member, joining: 'preparing' } : member),
  );
  return [{ ...state, members }, queued.map(({ name }) => ({ kind: 'send-model', device: name }))];
}

/** A newcomer has done a step: the next one. An answer out of turn ends its part. */
export function joinerAnswered(config: MachineConfig, state: MachineState, device: string, answer: Answer): Step {
  const joining = state.members.find(({ name }) => name === device)?.joining;
  if (answer.kind === 'ready' && joining === 'preparing') {
    const next = at(state, device, { joining: 'connecting', listenUrl: answer.listenUrl });
    const self = next.members.filter(({ name }) => name === device);
    return [next, [{ kind: 'send-peers', device, members: [...fullMembers(state), ...self] }]];
  }
  if (answer.kind === 'connected' && joining === 'connecting') {
    if (config.planGiven) return welcomed(state, device);
    const peers = fullMembers(state).map(({ name }) => name);
    return [
      at(state, device, { joining: 'measuring' }),
      [{ kind: 'send', device, message: 'measure', control: { peers } }],
    ];
  }
  if (answer.kind === 'measured' && joining === 'measuring') {
    const control = profileRequest(config);
    return [
      at(state, device, { joining: 'profiling' }),
      [
        { kind: 'links-measured', device, links: answer.links },
        { kind: 'send', device, message: 'profile', control },
      ],
    ];
  }
  if (answer.kind === 'profiled' && joining === 'profiling') {
    const [next, effects] = welcomed(state, device);
    return [next, [{ kind: 'profiled', device, profile: answer.profile }, ...effects]];
  }
  const reason = `it answered "${answer.kind}" while ${joining ?? 'training'}, which the protocol does not allow`;
  return [
    { ...state, members: state.members.filter(({ name }) => name !== device) },
    [{ kind: 'dismiss', device, reason }],
  ];
}

function at(
  state: MachineState,
  device: string,
  change: { readonly joining: JoinStep; readonly listenUrl?: string },
): MachineState {
  return {
    ...state,
    members: state.members.map((member) => (member.name === device ? { ...member, ...change } : member)),
  };
}

/** The newcomer may be given work, last in the order. */
function welcomed(state: MachineState, device: string): Step {
  const member = state.members.find(({ name }) => name === device);
  const rest = state.members.filter(({ name }) => name !== device);
  const members = [...rest, { name: device, listenUrl: member?.listenUrl ?? '' }];
  const next = { ...state, members };
  const effect: MachineEffect = { kind: 'consider', devices: fullMembers(next).map(({ name }) => name) };
  return [next, [effect]];
}
