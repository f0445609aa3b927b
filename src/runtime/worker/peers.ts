// The links between a worker and its peers: who calls whom, which frames belong to a layout, and the answers by which a
// link is measured (probe-link.ts).

import type { Clock } from '../../clock.ts';
import { ProtocolError, RunError } from '../../errors.ts';
import { type Tensor, wrap } from '../../graph/tensor.ts';
import type { Frame, Link, LinkRate, Priority } from '../../transport/link.ts';
import { type LinkMeasurement, messageSchemas, type PeerAddress } from '../protocol/messages.ts';
import { type Echo, probeLink } from './probe-link.ts';

/**
 * The address of a worker that nobody can call, and that cannot have TLS: a page in a browser. Its links go over the
 * coordinator, sealed with the run's secret (transport/sealed-link.ts).
 */
export const pageUrl = 'page:';

/** Opens and accepts links to the other workers of a run. */
export interface PeerNetwork {
  /** The address at which peers reach this worker. */
  readonly url: string;
  /** Opens a link to a peer. Rejects with RunError when it cannot be reached. */
  connect(peer: PeerAddress): Promise<Link>;
  /**
   * A peer cannot reach this worker, and waits: for a link from here, or over the coordinator, which knows its wish by
   * this ticket. Absent where all reach each other.
   */
  called?(peer: PeerAddress, ticket: string): void;
  /** Gives up the links that are still being opened. */
  close(): Promise<void>;
}

/** Kinds of frames that belong to a layout: pipeline data, and state on its way to others. */
const layoutKinds = new Set([
  'activation',
  'gradient',
  'derivative',
  'all-reduce',
  ...Object.keys(messageSchemas.peer),
]);

/** Why a link has ended. */
export interface LostLink {
  readonly reason: string;
  /** The peer has sent what the protocol does not allow. */
  readonly isFault: boolean;
}

export interface ConnectOptions {
  readonly names: readonly string[];
  readonly waitMs: number;
  onFailure?(peer: string, reason: string): void;
}

/** A rate that was measured over less time is not reported yet. */
const leastRateMs = 10;

export interface PeersHandlers {
  /** Receives the frames of a layout. */
  onFrame(from: string, frame: Frame): void;
  /** Called when a link ends that was not closed here. */
  onEnd(peer: string, lost: LostLink): void;
  /**
   * Called when a peer has called again over whose former link, which the peer had lost, frames were sent; the last of
   * them had this epoch.
   */
  onReplaced?(peer: string, epoch: number): void;
  /**
   * Milliseconds of computing that this device has spent on its links so far; undefined while it computes, or if it is
   * not known.
   */
  linkWorkMs?(): number | undefined;
}

/** The links of one worker to all others. */
export class Peers {
  readonly #name: string;
  readonly #clock: Clock;
  readonly #handlers: PeersHandlers;
  /** Peers that have sent what the protocol does not allow. */
  readonly #faulty = new Set<string>();
  readonly #links = new Map<string, Link>();
  /** The epoch of the last frame that was sent over a link. */
  readonly #sentEpochs = new WeakMap<Link, number>();
  /** Called when a peer has called (true), or will not (false). */
  readonly #arrivals = new Map<string, (isThere: boolean) => void>();
  /** How much measured time each link's last reported rate covered. */
  readonly #reportedMs = new WeakMap<Link, number>();
  readonly #echoes = new Map<string, (peerLinkWorkMs: number | undefined) => void>();
  #echoCounter = 0;
  /** Before the first round devices read the model, profile and compile. */
  #isSilenceExpected = true;
  /** Why this worker has closed its links. */
  #closed: string | undefined;

  constructor(name: string, clock: Clock, handlers: PeersHandlers) {
    this.#name = name;
    this.#clock = clock;
    this.#handlers = handlers;
  }

  /**
   * Takes a link that a peer opened, perhaps before this worker knew its peers. A peer that calls again has lost the
   * former link.
   */
  accept(link: Link): void {
    this.#add(link);
  }

  /**
   * Links to those of `names` that have no link yet: this worker calls the peers before it in the list and is called by
   * those after it. All of them listen already. Resolves when all have been tried; `onFailure` gets those that did not
   * answer, or did not call within `waitMs`.
   */
  async connect(
    network: PeerNetwork,
    peers: readonly PeerAddress[],
    { names, waitMs, onFailure }: ConnectOptions,
  ): Promise<void> {
    const own = peers.findIndex((peer) => peer.name === this.#name);
    if (own < 0) throw new ProtocolError(`The list of peers lacks this worker, ${this.#name}.`);
    const wanted = new Set(names);
    const missing = [...peers.entries()].filter(
      ([index, { name }]) => index !== own && wanted.has(name) && !this.#links.has(name),
    );
    await Promise.all(
      missing.map(async ([index, peer]) => {
        try {
          if (index > own) await this.#arrival(peer.name, waitMs);
          else this.#add(await network.connect(peer));
        } catch (error) {
          if (!(error instanceof RunError)) throw error;
          onFailure?.(peer.name, error.message);
        }
      }),
    );
  }

  /** A peer will not call any more: the wait for it ends. */
  gone(peer: string): void {
    this.#arrivals.get(peer)?.(false);
    this.#arrivals.delete(peer);
  }

  async #arrival(peer: string, waitMs: number): Promise<void> {
    if (this.#links.has(peer)) return;
    let cancel = (): void => {};
    const arrived = new Promise<boolean>((resolve) => {
      const former = this.#arrivals.get(peer); // of a former layout, which may still wait
      this.#arrivals.set(peer, (isThere) => {
        former?.(isThere);
        resolve(isThere);
      });
      cancel = this.#clock.after(waitMs, () => resolve(false));
    });
    const isThere = await arrived;
    cancel();
    if (!isThere) throw new RunError(`${peer} did not call within ${waitMs / 1000} s`);
  }

  #add(link: Link): void {
    if (this.#closed !== undefined) {
      void link.close(this.#closed);
      return;
    }
    link.expectSilence?.(this.#isSilenceExpected);
    const former = this.#links.get(link.peer);
    this.#links.set(link.peer, link);
    if (former !== undefined) this.#replaced(former);
    link.receive((frame) => {
      try {
        this.#received(link, frame);
      } catch (error) {
        if (error instanceof ProtocolError) this.#faulty.add(link.peer);
        throw error; // ends the link
      }
    });
    void link.ended.then((end) => {
      if (this.#links.get(link.peer) !== link) return;
      this.#links.delete(link.peer);
      this.#handlers.onEnd(link.peer, { reason: end.reason, isFault: this.#faulty.has(link.peer) });
    });
    this.#arrivals.get(link.peer)?.(true);
    this.#arrivals.delete(link.peer);
  }

  #replaced(former: Link): void {
    void former.close('there is a newer link');
    const epoch = this.#sentEpochs.get(former);
    if (epoch !== undefined) this.#handlers.onReplaced?.(former.peer, epoch);
  }

  #received(link: Link, frame: Frame): void {
    if (layoutKinds.has(frame.kind)) this.#handlers.onFrame(link.peer, frame);
    else if (frame.kind === 'ping') {
      const linkWorkMs = this.#handlers.linkWorkMs?.();
      const tensors = linkWorkMs === undefined ? [] : [wrap('float64', [1], Float64Array.of(linkWorkMs))];
      void link
        .send({ kind: 'pong', epoch: 0, round: -1, microBatch: frame.microBatch, tensors }, 'pipeline')
        .catch(() => {}); // a lost link reports itself
    } else if (frame.kind === 'pong')
      this.#echoes.get(`${link.peer}/${frame.microBatch}`)?.(linkWorkOf(link.peer, frame));
    else if (frame.kind !== 'ballast')
      throw new ProtocolError(`${link.peer} sent a frame of the unknown kind "${frame.kind}".`);
  }

  /** Peers may keep their threads for a while, or no more: see Link. */
  expectSilence(isExpected: boolean): void {
    if (isExpected === this.#isSilenceExpected) return;
    this.#isSilenceExpected = isExpected;
    for (const link of this.#links.values()) link.expectSilence?.(isExpected);
  }

  /** Sends a frame to `peer`; resolves under back-pressure as Link.send does. */
  send(peer: string, frame: Frame, priority: Priority): Promise<void> {
    const link = this.#links.get(peer);
    if (link === undefined) return Promise.reject(new RunError(`There is no link from ${this.#name} to ${peer}.`));
    this.#sentEpochs.set(link, frame.epoch);
    return link.send(frame, priority);
  }

  /**
   * By peer, the Mbps that links carried while they were busy: links that were busy for long enough since their last
   * report.
   */
  rates(): Readonly<Record<string, number>> {
    const found: Record<string, number> = {};
    for (const [peer, link] of this.#links) {
      const rate = link.rate?.();
      if (rate === undefined || rate.measuredMs - (this.#reportedMs.get(link) ?? 0) < leastRateMs) continue;
      this.#reportedMs.set(link, rate.measuredMs);
      found[peer] = rate.mbps;
    }
    return found;
  }

  /** What the link to a peer carried of late; undefined where there is none, or nothing measures it. */
  rate(peer: string): LinkRate | undefined {
    return this.#links.get(peer)?.rate?.();
  }

  /** Measures the link to a peer. Rejects with RunError when it ends. */
  async measure(peer: string, priority: Priority = 'pipeline'): Promise<LinkMeasurement> {
    return { peer, ...(await probeLink((ballast) => this.#echo(peer, priority, ballast), this.#clock)) };
  }

  /** Sends ballast and, on the same queue behind it, a ping; resolves with the answer. */
  async #echo(peer: string, priority: Priority, ballast?: Tensor): Promise<Echo> {
    const link = this.#links.get(peer);
    if (link === undefined) throw new RunError(`There is no link from ${this.#name} to ${peer}.`);
    const lost = link.ended.then(({ reason }): never => {
      throw new RunError(`the link to ${peer} ended: ${reason}`);
    });
    lost.catch(() => {}); // the answer may have come before
    const id = this.#echoCounter++;
    const key = `${peer}/${id}`;
    const answered = new Promise<Echo>((resolve) =>
      this.#echoes.set(key, (peerLinkWorkMs) =>
        resolve({ atMs: this.#clock.now(), ownLinkWorkMs: this.#handlers.linkWorkMs?.(), peerLinkWorkMs }),
      ),
    );
    try {
      // Both are queued in this turn, so that no other piece comes between them.
      const sent =
        ballast &&
        this.send(peer, { kind: 'ballast', epoch: 0, round: -1, microBatch: id, tensors: [ballast] }, priority);
      const ping = this.send(peer, { kind: 'ping', epoch: 0, round: -1, microBatch: id }, priority);
      await Promise.all([sent, ping]);
      return await Promise.race([answered, lost]);
    } finally {
      this.#echoes.delete(key);
    }
  }

  async close(reason: string): Promise<void> {
    this.#closed = reason;
    for (const arrived of this.#arrivals.values()) arrived(false);
    await Promise.all([...this.#links.values()].map((link) => link.close(reason)));
  }
}

/** The computing that a peer has spent on its links, as its answer says; undefined: not known. Throws ProtocolError. */
function linkWorkOf(peer: string, { tensors = [] }: Frame): number | undefined {
  const [tensor, ...others] = tensors;
  if (tensor === undefined) return undefined;
  const linkWorkMs = Number(tensor.data[0]);
  if (
    others.length > 0 ||
    tensor.type !== 'float64' ||
    tensor.data.length !== 1 ||
    !(linkWorkMs >= 0 && Number.isFinite(linkWorkMs))
  )
    throw new ProtocolError(`${peer} answered with something that is no time.`);
  return linkWorkMs;
}
