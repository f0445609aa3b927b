// The network of the virtual world: hosts, the paths between them, and faults of paths. It behaves as TCP does: what is
// sent arrives whole and in order or the connection ends; a cut path holds everything back until it is whole again; an
// end that receives nothing for too long gives up.

import { RunError } from '../errors.ts';
import type { Random } from '../random.ts';
import type { Frame, Link } from '../transport/link.ts';
import { defaultHeartbeat } from '../transport/node/websocket-link.ts';
import { VirtualLink } from './virtual-link.ts';
import { type Path, type PathConditions, Pipe } from './virtual-pipe.ts';
import type { VirtualProcess } from './virtual-process.ts';
import type { VirtualTime } from './virtual-time.ts';

/** How long to call an address that does not answer. */
const dialMs = 10_000;
/** One end of a connection, as the network sees it. */
export interface Connection {
  readonly link: Link;
  readonly from: VirtualProcess;
  readonly to: VirtualProcess;
  readonly outgoing: Pipe;
  /** Ends it at once, as a reset does. */
  abort(reason: string): void;
}

export interface NetworkOptions {
  readonly conditions: PathConditions;
  /** The bytes that may be on their way before a sender has to wait. */
  readonly windowBytes: number;
  /** The frames that a process receives for one that has arrived. Default: that frame. */
  taken?(frame: Frame, from: string, to: string): readonly Frame[];
}

/** All hosts, paths and connections. */
export class VirtualNetwork {
  readonly time: VirtualTime;
  readonly random: Random;
  readonly options: NetworkOptions;
  readonly #paths = new Map<string, Path>();
  readonly #listeners = new Map<string, { readonly process: VirtualProcess; readonly accept: (link: Link) => void }>();
  readonly #connections = new Set<Connection>();
  readonly #darkHosts = new Set<string>();

  constructor(time: VirtualTime, random: Random, options: NetworkOptions) {
    this.time = time;
    this.random = random;
    this.options = options;
  }

  /** The path from one host to another. */
  path(from: string, to: string): Path {
    const key = `${from}→${to}`;
    const known = this.#paths.get(key);
    if (known !== undefined) return known;
    const path = { ...this.options.conditions, cutSinceMs: undefined, holding: new Set<Pipe>() };
    this.#paths.set(key, path);
    return path;
  }

  /** Ends of open connections. */
  get connections(): ReadonlySet<Connection> {
    return this.#connections;
  }

  /** Nothing passes from one host to another, until `fix`. */
  cut(from: string, to: string): void {
    const path = this.path(from, to);
    if (path.cutSinceMs !== undefined) return;
    path.cutSinceMs = this.time.nowMs;
    for (const connection of this.#connections) {
      if (connection.outgoing.path === path) this.#watchSilence(connection);
    }
  }

  fix(from: string, to: string): void {
    const path = this.path(from, to);
    path.cutSinceMs = undefined;
    for (const pipe of path.holding) pipe.resume();
    path.holding.clear();
  }

  /** Resets all connections between two hosts: both sides are informed, and everything on its way is lost. */
  reset(a: string, b: string): void {
    for (const connection of [...this.#connections]) {
      const { from, to } = connection;
      if ((from.host === a && to.host === b) || (from.host === b && to.host === a)) {
        from.run(() => connection.abort('the connection was lost: read ECONNRESET'));
      }
    }
  }

  /**
   * The next frame that arrives at one host from another on each connection is damaged.
   */
  damage(from: string, to: string): void {
    for (const connection of this.#connections) {
      if (connection.from.host === from && connection.to.host === to)
        (connection.link as VirtualLink).other?.damageNext();
    }
  }

  /** A process was stopped: its peers receive nothing from it. */
  frozen(process: VirtualProcess): void {
    for (const connection of this.#connections) if (connection.from === process) this.#watchSilence(connection);
  }

  /**
   * A process has ended. Its system closes its connections, unless the whole host went dark: then nobody is informed.
   * `isDataLost`: everything on its way is lost.
   */
  ended(
    process: VirtualProcess,
    { isDark, isDataLost }: { readonly isDark: boolean; readonly isDataLost: boolean },
  ): void {
    if (isDark) this.#darkHosts.add(process.host);
    for (const [url, listener] of this.#listeners) if (listener.process === process) this.#listeners.delete(url);
    for (const connection of [...this.#connections]) {
      if (connection.from !== process) continue;
      this.#connections.delete(connection);
      const opposite = this.#opposite(connection);
      if (opposite === undefined) continue;
      if (isDark) this.#watchSilence(connection);
      else {
        if (isDataLost) connection.outgoing.close();
        const { outgoing } = isDataLost
          ? { outgoing: new Pipe(this, connection.outgoing.path, opposite.from) }
          : connection;
        outgoing.carryLast(() => opposite.abort('the connection was lost'));
      }
    }
  }

  /** Closes a process's connections; resolves when all are closed. */
  async closeAll(process: VirtualProcess, reason: string): Promise<void> {
    const own = [...this.#connections].filter(({ from }) => from === process);
    await Promise.all(own.map(({ link }) => link.close(reason)));
  }

  /** A dark host has power again. */
  lit(host: string): void {
    this.#darkHosts.delete(host);
  }

  /** Takes calls to `url` until the returned function is called, or the process ends. */
  listen(url: string, process: VirtualProcess, accept: (link: Link) => void): () => void {
    this.#listeners.set(url, { process, accept });
    return () => {
      if (this.#listeners.get(url)?.process === process) this.#listeners.delete(url);
    };
  }

  /** Calls `url`, of a process on `host`. Rejects with RunError if nobody answers, or the call is given up. */
  dial(
    caller: VirtualProcess,
    host: string,
    { url, abortSignal }: { readonly url: string; readonly abortSignal?: AbortSignal },
  ): Promise<Link> {
    const [there, back] = [this.path(caller.host, host), this.path(host, caller.host)];
    return new Promise((resolve, reject) => {
      let isSettled = false;
      const settle = (action: () => void): void => {
        if (isSettled) return;
        isSettled = true;
        action();
      };
      let made: VirtualLink | undefined;
      const giveUp = (): void =>
        settle(() => {
          made?.abort('the caller has given up');
          reject(new RunError(`${url} does not answer`));
        });
      caller.takes(dialMs, giveUp);
      abortSignal?.addEventListener('abort', giveUp, { once: true });
      const answer = (action: () => void): void => {
        this.time.at(this.time.nowMs + back.latencyMs, () => {
          if (back.cutSinceMs === undefined) caller.run(() => settle(action));
        });
      };
      this.time.at(this.time.nowMs + there.latencyMs, () => {
        if (there.cutSinceMs !== undefined || this.#darkHosts.has(host)) return;
        const listener = this.#listeners.get(url);
        if (listener === undefined) return answer(() => reject(new RunError(`nothing listens at ${url}`)));
        listener.process.run(() => {
          if (isSettled || caller.state === 'dead' || this.#listeners.get(url) !== listener) return;
          const [own, other] = this.#connect(caller, listener.process);
          made = own;
          listener.accept(other);
          answer(() => resolve(own));
        });
      });
    });
  }

  #connect(a: VirtualProcess, b: VirtualProcess): [VirtualLink, VirtualLink] {
    const toB = new Pipe(this, this.path(a.host, b.host), b);
    const toA = new Pipe(this, this.path(b.host, a.host), a);
    const ends = [
      { from: a, to: b, outgoing: toB },
      { from: b, to: a, outgoing: toA },
    ] as const;
    const links = ends.map(
      ({ from, to, outgoing }) =>
        new VirtualLink(from, to, outgoing, {
          windowBytes: this.options.windowBytes,
          taken: (frame) => this.options.taken?.(frame, to.name, from.name) ?? [frame],
        }),
    ) as [VirtualLink, VirtualLink];
    links[0].connect(links[1]);
    links[1].connect(links[0]);
    for (const [index, end] of ends.entries()) {
      const link = links[index] as VirtualLink;
      const connection: Connection = { ...end, link, abort: (reason) => link.abort(reason) };
      this.#connections.add(connection);
      void link.ended.then(() => this.#connections.delete(connection));
    }
    return links;
  }

  /** The other end, if it is still open. */
  #opposite({ from, to, link }: Connection): Connection | undefined {
    const other = (link as VirtualLink).other;
    for (const connection of this.#connections) {
      if (connection.from === to && connection.to === from && connection.link === other) return connection;
    }
    return undefined;
  }

  /** Nothing comes from this end any more. If that lasts, the other end gives up. */
  #watchSilence(connection: Connection): void {
    const { from, to, outgoing } = connection;
    const sinceMs = this.time.nowMs;
    const { deadAfterMs, intervalMs } = defaultHeartbeat;
    const isSilent = (): boolean => {
      if (from.state === 'frozen' || from.state === 'dead') return true;
      return outgoing.path.cutSinceMs !== undefined && outgoing.path.cutSinceMs <= sinceMs;
    };
    this.time.at(sinceMs + deadAfterMs + intervalMs * this.random.uniform(), () => {
      const opposite = this.#opposite(connection);
      if (opposite === undefined || !isSilent()) return;
      // A stopped process counts from its continuation: it has not read yet what came.
      if (to.state === 'frozen') to.run(() => this.#watchSilence(connection));
      else opposite.abort(`no sign of life from ${from.name} for ${((this.time.nowMs - sinceMs) / 1000).toFixed(1)} s`);
    });
  }
}
