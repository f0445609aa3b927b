// What devices say: one handler for each kind of message. A handler notes what concerns snapshots, plans and observers,
// and returns what the protocol depends on, the machine's input.

import { ProtocolError } from '../../errors.ts';
import type { Tensor } from '../../graph/tensor.ts';
import type { Frame } from '../../transport/link.ts';
import { type Message, parseMessage, type ToCoordinator } from '../protocol/messages.ts';
import { checkMeasured, checkProfile } from './answer-checks.ts';
import type { CoordinatorContext } from './context.ts';
import type { DecisionsAtLeisure } from './decisions-at-leisure.ts';
import type { Answer } from './machine-types.ts';
import { notAsked } from './snapshots.ts';

interface Parts {
  readonly context: CoordinatorContext;
  readonly decisions: DecisionsAtLeisure;
}

type Handler<M> = (parts: Parts, device: string, received: M) => Answer | undefined;

/** Messages about a layout: those of an earlier one are late and dropped. */
const layoutKinds: ReadonlySet<string> = new Set<keyof ToCoordinator>([
  'deployed',
  'prepared',
  'output',
  'state',
  'snapshot-end',
  'replicated',
  'lost-peer',
  'trace',
  'statistics',
]);

/** Throws ProtocolError for what the protocol does not allow; the link ends with it. */
const handlers: {
  readonly [Kind in keyof ToCoordinator]: Handler<Extract<Message<ToCoordinator>, { readonly kind: Kind }>>;
} = {
  ready: (_, __, { control }) => ({ kind: 'ready', listenUrl: control.listenUrl }),
  connected: () => ({ kind: 'connected' }),
  measured({ context }, device, { control: { links } }) {
    checkMeasured(device, links, context.state.members);
    return { kind: 'measured', links };
  },
  'profile-progress'({ context }, device, { control }) {
    context.observe({ kind: 'profile-progress', device, ...control });
    return undefined;
  },
  profiled({ context: { options } }, device, { control }) {
    const { subject, machine } = options;
    checkProfile(device, control, subject.sequence.layers.length, machine.batchSizesToProfile.length);
    return { kind: 'profiled', profile: control };
  },
  deployed({ context }, device, { control }) {
    context.observe({ kind: 'deployed', device, valueMiB: control.valueBytes / 2 ** 20 });
    return { kind: 'deployed' };
  },
  prepared({ context }, device, { control: result }) {
    const { results } = context;
    for (const [to, bits] of Object.entries(result.activationBits ?? {}))
      context.observe({ kind: 'activation-bits', from: device, to, bits });
    if (results === undefined || !isInProgress(context, result.round)) return { kind: 'prepared', result };
    results.prepared(device, result);
    return deliverPrepared(context, device);
  },
  output({ context }, device, { frame }) {
    const { results } = context;
    if (results === undefined || !isInProgress(context, frame.round))
      throw new ProtocolError(`${device} sent outputs of round ${frame.round}, which nobody asked for.`);
    results.add(device, frame);
    return deliverPrepared(context, device);
  },
  state({ context }, device, { control, frame }) {
    collect(context, device, control, frame.tensors?.[0]);
    return undefined;
  },
  'snapshot-end': ({ context }, device, { control }) => snapshotEnd(context, device, control.round),
  replicated: (_, __, { control }) => ({ kind: 'replicated', ...control }),
  'lost-peer'({ context }, _, { control }) {
    context.changeBegins();
    return { kind: 'lost-peer', ...control };
  },
  'link-measured'({ context, decisions }, device, { control }) {
    checkMeasured(device, [control], context.state.members);
    const drift = context.planner.measuredAgain(device, control);
    if (drift !== undefined) decisions.drifted(drift);
    return undefined;
  },
  alive: () => ({ kind: 'alive' }),
  reserved({ context }, device, { control }) {
    context.readiness.answered(device, control.id);
    return undefined;
  },
  leaving: () => ({ kind: 'leaving' }),
  heartbeat({ context }, device, { control: { load } }) {
    if (load !== undefined) context.observe({ kind: 'load', device, ...load });
    return undefined;
  },
  failed: (_, __, { control }) => ({ kind: 'failed', message: control.message }),
  statistics({ context }, device, { control }) {
    context.observe({ kind: 'statistics', device, ...control });
    return undefined;
  },
  trace({ context }, device, { control: { round, times } }) {
    context.observe({ kind: 'trace', device, round, times });
    return undefined;
  },
};

/** Handles a frame of a device that is there. */
export function receive(parts: Parts, device: string, frame: Frame): void {
  const { context } = parts;
  const received = parseMessage('coordinator', frame, device);
  if (!context.state.members.some((member) => member.name === device)) return; // released, or one too many
  if (layoutKinds.has(received.kind) && frame.epoch !== context.epoch) return; // about a layout that is no more
  const handle: Handler<Message<ToCoordinator>> = handlers[received.kind] as Handler<Message<ToCoordinator>>;
  const answer = handle(parts, device, received);
  if (answer !== undefined) context.input({ kind: 'answer', device, answer });
}

function isInProgress({ state }: CoordinatorContext, round: number): boolean {
  return round >= state.round && round <= state.grantedRound;
}

/** Rounds that a device has prepared and whose outputs are all here. */
function deliverPrepared(context: CoordinatorContext, device: string): undefined {
  for (const result of context.results?.takePrepared(device) ?? [])
    context.input({ kind: 'answer', device, answer: { kind: 'prepared', result } });
}

/** The first device of a stage has sent all of it. */
function snapshotEnd({ state, snapshots }: CoordinatorContext, device: string, round: number): Answer {
  const isOwner = state.plan?.stages.some(({ devices }) => devices[0] === device) === true;
  const [missing] = isOwner ? snapshots.missing(device) : [];
  if (missing !== undefined && round === state.round) return { kind: 'failed', message: `it sent no ${missing}` };
  return { kind: 'snapshot-end', round };
}

/** Keeps a piece of a snapshot, if it is one that was asked for. */
function collect(
  { state, snapshots }: CoordinatorContext,
  device: string,
  control: ToCoordinator['state'],
  value: Tensor | undefined,
): void {
  const { phase, waitingFor } = state;
  if (phase !== 'snapshotting' || !waitingFor.includes(device)) throw notAsked(device, control);
  snapshots.collect(device, control, value);
}
