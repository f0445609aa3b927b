// A worker's links to its peers, and what comes in over them: pipeline data go to the mailbox, state to the layout that
// waits for it, copies to the replicas. Frames of an earlier layout are dropped, those of a later one wait for it.

import { ProtocolError } from '../../errors.ts';
import type { Frame, Link } from '../../transport/link.ts';
import {
  type Message,
  messageSchemas,
  type PeerAddress,
  parseMessage,
  type ToPeer,
  type ToWorker,
} from '../protocol/messages.ts';
import type { WorkerContext } from './context.ts';
import { copyArrived, copyEnded } from './copies.ts';
import { EarlyFrames } from './early-frames.ts';
import type { LayoutSession } from './layout-session.ts';
import { earlier } from './model.ts';
import { type PeerNetwork, Peers } from './peers.ts';
import type { WorkReport } from './work-report.ts';

/** How long a peer may take to call. */
const callTimeoutMs = 10_000;

type PeerHandler<M> = (from: string, message: M, context: WorkerContext) => void;

/** A handler for each kind of message that a peer may send. */
const peerHandlers: {
  readonly [Kind in keyof ToPeer]: PeerHandler<Extract<Message<ToPeer>, { readonly kind: Kind }>>;
} = {
  state: (from, { control, frame }, { session }) => stateArrived(session, from, control, frame),
  'state-end': (from, { control }, { session }) => arrivalsOf(session, from).end(from, control),
  replica: (from, { control, frame }, context) => copyArrived(context, from, control, frame),
  'replica-end': (from, { control, frame }, context) => copyEnded(context, from, control, frame),
};

export class Links {
  readonly #context: WorkerContext;
  readonly #peers: Peers;
  readonly #early = new EarlyFrames();
  #network: PeerNetwork | undefined;
  /** Devices that left before all were linked. */
  readonly #gone = new Set<string>();
  /** The last round of fewer samples that has not committed; -1: none. */
  #smallerRound = -1;

  constructor(context: WorkerContext, work: WorkReport) {
    this.#context = context;
    const { name, clock } = context.options;
    this.#peers = new Peers(name, clock, {
      onFrame: (from, frame) => this.#received(from, frame),
      onEnd: (peer, lost) => context.peerLost(peer, lost),
      onReplaced: (peer, epoch) => {
        const reason = `${peer} called again, and what was sent to it before may be lost`;
        if (epoch === context.session.epoch) context.peerLost(peer, { reason, isFault: false });
      },
      // Nothing computes before the first layout: all that the main thread does is for its links.
      linkWorkMs: () => (context.model?.layouts.current === undefined ? work.mainMs() : undefined),
    });
  }

  get peers(): Pick<Peers, 'send' | 'rates' | 'rate' | 'measure'> {
    return this.#peers;
  }

  /** Listens for peers that know `token`; resolves with the address. */
  async listen(token: string): Promise<string> {
    const { createNetwork, name } = this.#context.options;
    this.#network ??= await createNetwork(name, token, (link: Link) => this.#peers.accept(link));
    return this.#network.url;
  }

  /** Links to all other workers of the run, and reports when that is done. */
  async connect(peers: readonly PeerAddress[]): Promise<void> {
    const names = peers.map(({ name }) => name).filter((name) => !this.#gone.has(name));
    const network = earlier(this.#network, 'connect', 'a model');
    await this.#context.guard(this.#peers.connect(network, peers, { names, waitMs: callTimeoutMs }));
    await this.#context.send('connected', {});
  }

  /** Links to all partners of the layout, again where a link was lost. One that cannot be had is reported as lost. */
  connectPartners(peers: readonly PeerAddress[]): Promise<void> {
    const { session } = this.#context;
    return this.#peers.connect(earlier(this.#network, 'deploy', 'a model'), peers, {
      names: [...session.partners],
      waitMs: callTimeoutMs,
      onFailure: (peer, reason) => {
        if (session === this.#context.session) this.#context.peerLost(peer, { reason, isFault: false });
      },
    });
  }

  /** A layout was announced: devices compile until its first round begins. */
  layoutBegins(): void {
    this.#smallerRound = -1;
    this.#peers.expectSilence(true);
  }

  /**
   * A round of the layout may begin. For one of fewer or shorter samples devices may have to compile, until it has
   * committed.
   */
  roundBegins({ round, sampleCount, length }: Pick<ToWorker['round'], 'round' | 'sampleCount' | 'length'>): void {
    if (sampleCount !== undefined || length !== undefined) this.#smallerRound = round;
    this.#peers.expectSilence(this.#smallerRound >= 0);
  }

  roundCommitted(round: number): void {
    if (round < this.#smallerRound) return;
    this.#smallerRound = -1;
    this.#peers.expectSilence(false);
  }

  /** A device left before it was linked to all others: nobody need wait for it. */
  gone(peer: string): void {
    this.#gone.add(peer);
    this.#peers.gone(peer);
  }

  /** A peer cannot reach this device, and waits for its call. */
  called(call: ToWorker['call']): void {
    earlier(this.#network, 'call', 'a model').called?.(call.peer, call.ticket);
  }

  /** A layout has been announced: takes in what peers sent for it before. */
  takeEarly(): void {
    for (const { from, frame } of this.#early.take()) this.#received(from, frame);
  }

  #received(from: string, frame: Frame): void {
    const { session } = this.#context;
    if (frame.epoch > session.epoch) {
      const { catalog, sequence } = this.#context.modelFor('deploy');
      return this.#early.keep(from, frame, catalog.stateBytes([0, sequence.layers.length]));
    }
    if (frame.epoch < session.epoch) return;
    if (!Object.hasOwn(messageSchemas.peer, frame.kind)) return fileData(session, from, frame);
    const message = parseMessage('peer', frame, from);
    const handle = peerHandlers[message.kind] as PeerHandler<Message<ToPeer>>;
    handle(from, message, this.#context);
  }

  async close(reason: string): Promise<void> {
    await Promise.all([this.#peers.close(reason), this.#network?.close()]);
  }
}

/** Files pipeline data; frames of another layout are late ones and dropped. */
export function fileData({ epoch, mailbox }: LayoutSession, from: string, frame: Frame): void {
  if (frame.epoch !== epoch) return;
  mailbox.put({ kind: frame.kind, round: frame.round, microBatch: frame.microBatch, from }, frame);
}

/** A piece of state has come for the layout, from a peer or (null) from the coordinator. Throws ProtocolError. */
export function stateArrived(
  session: LayoutSession,
  from: string | null,
  control: ToPeer['state'],
  { tensors }: Frame,
): void {
  arrivalsOf(session, from ?? 'The coordinator').add(from, control, tensors?.[0]);
}

function arrivalsOf({ arrivals }: LayoutSession, sender: string): NonNullable<LayoutSession['arrivals']> {
  if (arrivals === undefined) throw new ProtocolError(`${sender} sent state that nothing waits for.`);
  return arrivals;
}
