// A worker's links to its peers: who connects to whom, which frames are pipeline data, and the measurement of a link's
// bandwidth and latency.

import { defined } from '../../assert.ts';
import type { Clock } from '../../clock.ts';
import { ProtocolError, RunError } from '../../errors.ts';
import { type Tensor, wrap } from '../../graph/tensor.ts';
import type { Frame, Link, Priority } from '../../transport/link.ts';
import { type LinkMeasurement, messageSchemas, type PeerAddress } from '../protocol/messages.ts';

/** How a worker opens and accepts links to the other workers of its run. */
export interface PeerNetwork {
  /** Where peers reach this worker. */
  readonly url: string;
  /** Opens a link to a peer. Rejects with RunError when it cannot be reached. */
  connect(peer: PeerAddress): Promise<Link>;
  /** Gives up the links that are still being opened. */
  close(): Promise<void>;
}

/** Frames of these kinds are of a layout: pipeline data, and state on its way to others. */
const layoutKinds = new Set(['activation', 'gradient', 'all-reduce', ...Object.keys(messageSchemas.peer)]);

/** Why a link is no more. */
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

/** Small frames that are sent there and back, one right behind the other. */
const tripCount = 15;

/**
 * The rate of a link is taken over pieces of this size, for this time or so many of them (48 MiB). On a slow link it
 * takes longer, until a lump of 64 KiB, as shapers and network cards let them through, is little of what was counted.
 */
const pieceBytes = 2 ** 18;
const pieceLimit = 192;
const rateMs = 300;
const countedPieces = 8;
const longestRateMs = 1_000;
/** Pieces on their way; more where a window of them arrives within `fastMs`. */
const smallestWindow = 4;
/** A rate that was measured over less time is not told yet. */
const leastRateMs = 10;
const largestWindow = 32;
const fastMs = 60;

/** When a piece's answer came, and what both ends had lost by then (`linkWorkMs`). */
interface Echo {
  readonly atMs: number;
  readonly ownLinkWorkMs: number | undefined;
  readonly peerLinkWorkMs: number | undefined;
}

export interface PeersHandlers {
  /** Receives what is of a layout. */
  onFrame(from: string, frame: Frame): void;
  /** Told when a link ends that was not closed here. */
  onEnd(peer: string, lost: LostLink): void;
  /**
   * Milliseconds of computing that this device has lost to its links so far; undefined while it computes, or where that
   * is not known.
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
  /** Who waits for a peer to call; false: in vain. */
  readonly #arrivals = new Map<string, (isThere: boolean) => void>();
  /** Up to where each link's rate has been told. */
  readonly #toldMs = new WeakMap<Link, number>();
  readonly #echoes = new Map<string, (peerLinkWorkMs: number | undefined) => void>();
  #echoCounter = 0;
  /** Why this worker talks to nobody any more. */
  #closed: string | undefined;

  constructor(name: string, clock: Clock, handlers: PeersHandlers) {
    this.#name = name;
    this.#clock = clock;
    this.#handlers = handlers;
  }

  /**
   * Takes in a link that a peer opened, perhaps before this worker heard of its peers. A peer that calls again has lost
   * the link before.
   */
  accept(link: Link): void {
    this.#add(link);
  }

  /**
   * Links to those of `names` that have no link yet: this worker calls the peers before it in the list and is called by
   * those after it. All of them listen already. Resolves when all have been tried; `onFailure` hears of those that did
   * not answer, or did not call within `waitMs`.
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

  /** A peer will not call any more: whoever waits for it goes on. */
  gone(peer: string): void {
    this.#arrivals.get(peer)?.(false);
    this.#arrivals.delete(peer);
  }

  async #arrival(peer: string, waitMs: number): Promise<void> {
    if (this.#links.has(peer)) return;
    let cancel = (): void => {};
    const arrived = new Promise<boolean>((resolve) => {
      const former = this.#arrivals.get(peer); // of a layout before, which may still wait
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
    const former = this.#links.get(link.peer);
    this.#links.set(link.peer, link);
    void former?.close('there is a newer link');
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

  #received(link: Link, frame: Frame): void {
    if (layoutKinds.has(frame.kind)) this.#handlers.onFrame(link.peer, frame);
    else if (frame.kind === 'ping') {
      const linkWorkMs = this.#handlers.linkWorkMs?.();
      const tensors = linkWorkMs === undefined ? [] : [wrap('float64', [1], Float64Array.of(linkWorkMs))];
      void link
        .send({ kind: 'pong', epoch: 0, round: -1, microBatch: frame.microBatch, tensors }, 'pipeline')
        .catch(() => {}); // a lost link reports itself
    } else if (frame.kind === 'pong') this.#echoes.get(`${link.peer}/${frame.microBatch}`)?.(lossOf(link.peer, frame));
    else if (frame.kind !== 'ballast')
      throw new ProtocolError(`${link.peer} sent a frame of the unknown kind "${frame.kind}".`);
  }

  /** Hands a frame to the link to `peer`; resolves under back-pressure as Link.send does. */
  send(peer: string, frame: Frame, priority: Priority): Promise<void> {
    const link = this.#links.get(peer);
    if (link === undefined) return Promise.reject(new RunError(`There is no link from ${this.#name} to ${peer}.`));
    return link.send(frame, priority);
  }

  /**
   * What links to peers carried while they were busy, in Mbps: those that have been for long enough since they were
   * last told.
   */
  rates(): Readonly<Record<string, number>> {
    const found: Record<string, number> = {};
    for (const [peer, link] of this.#links) {
      const rate = link.rate?.();
      if (rate === undefined || rate.measuredMs - (this.#toldMs.get(link) ?? 0) < leastRateMs) continue;
      this.#toldMs.set(link, rate.measuredMs);
      found[peer] = rate.mbps;
    }
    return found;
  }

  /**
   * Measures the link to a peer: half of the shortest round trip of 15 small frames (what others take longer, queues
   * and processors that a quota stops, is no part of the way), the rate at which pieces arrive one behind the other,
   * and what these cost both ends. Counting begins with the arrival of a piece, when what a shaper or a buffer takes at
   * once is behind, and ends after `rateMs` and `countedPieces`, `longestRateMs`, or `pieceLimit` pieces.
   */
  async measure(peer: string, priority: Priority = 'pipeline'): Promise<LinkMeasurement> {
    let shortestMs = Number.POSITIVE_INFINITY;
    for (let count = 0; count < tripCount; count++) {
      const sentMs = this.#clock.now();
      const { atMs } = await this.#echo(peer, priority);
      shortestMs = Math.min(shortestMs, atMs - sentMs);
    }
    return { peer, latencyMs: shortestMs / 2, ...(await this.#rate(peer, priority)) };
  }

  /**
   * Keeps a window of pieces on their way, small at first, so that a slow link holds no more than it must; where one
   * arrives fast, at any time, it doubles and counting begins anew, so that neither a long way nor processors that
   * quotas stop by turns look like a slow one: these pass a window in each period of theirs.
   */
  async #rate(peer: string, priority: Priority): Promise<Omit<LinkMeasurement, 'peer' | 'latencyMs'>> {
    const onTheirWay: Promise<Echo>[] = [];
    const ballast = wrap('uint8', [pieceBytes], new Uint8Array(pieceBytes));
    let [window, sentCount, countedFrom] = [smallestWindow, 0, 1];
    let first: Echo | undefined;
    const arrivalsMs: number[] = [];
    for (let arrivedCount = 1; ; arrivedCount++) {
      while (onTheirWay.length < window && sentCount < pieceLimit) {
        const arrival = this.#echo(peer, priority, ballast);
        arrival.catch(() => {}); // awaited in its turn
        onTheirWay.push(arrival);
        sentCount++;
      }
      const latest = await defined(onTheirWay.shift(), 'a piece on its way');
      if (first === undefined || arrivedCount <= countedFrom) first = latest;
      arrivalsMs.push(latest.atMs);
      const elapsedMs = latest.atMs - first.atMs;
      const count = arrivedCount - countedFrom;
      const isLong = elapsedMs >= (count >= countedPieces ? rateMs : longestRateMs);
      const isOver = arrivedCount === pieceLimit || (isLong && count >= 2);
      if (isOver) return measurementOf(first, latest, count * pieceBytes);
      // From the first of a window to its last: what passes before the first is a pause, or part of the way.
      const windowMs = latest.atMs - (arrivalsMs.at(-window) ?? first.atMs);
      if (count < window || windowMs >= fastMs || window === largestWindow) continue;
      window *= 2;
      countedFrom = arrivedCount + window; // those before left when the window was small
    }
  }

  /** Sends ballast and, on the same queue behind it, a ping; resolves with the time of the answer. */
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

/** The rate of a link and what its bytes cost, between the arrivals of two pieces. */
function measurementOf(first: Echo, last: Echo, bytes: number): Omit<LinkMeasurement, 'peer' | 'latencyMs'> {
  const [sendingMsPerMiB, receivingMsPerMiB] = costsBetween(first, last, bytes / 2 ** 20);
  return {
    bandwidthMbps: (bytes * 8) / (Math.max(last.atMs - first.atMs, 1e-3) * 1e3),
    ...(sendingMsPerMiB === undefined ? {} : { sendingMsPerMiB }),
    ...(receivingMsPerMiB === undefined ? {} : { receivingMsPerMiB }),
  };
}

/** Of one's own device and its peer's, where they are known. */
type Costs = readonly [ownMs: number | undefined, peerMs: number | undefined];

/** What each of so many things between two echoes cost this device and its peer. */
function costsBetween(first: Echo, last: Echo, count: number): Costs {
  const cost = (from: number | undefined, to: number | undefined): number | undefined =>
    from === undefined || to === undefined ? undefined : Math.max(0, to - from) / count;
  return [cost(first.ownLinkWorkMs, last.ownLinkWorkMs), cost(first.peerLinkWorkMs, last.peerLinkWorkMs)];
}

/** What a peer says that it has lost. Throws ProtocolError. */
function lossOf(peer: string, { tensors = [] }: Frame): number | undefined {
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
