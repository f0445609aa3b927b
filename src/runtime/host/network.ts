// A worker's network to its peers on Node: it listens where it is told, and calls peers; one that it cannot reach is
// asked, by way of the coordinator, to call here, and else met over the coordinator (relay.ts).

import type { X509Certificate } from 'node:crypto';
import { createSocket } from 'node:dgram';
import { isIP } from 'node:net';
import type { Duplex } from 'node:stream';
import { defined } from '../../assert.ts';
import { type Clock, systemClock } from '../../clock.ts';
import { InputError, ProtocolError, RunError } from '../../errors.ts';
import { type Hello, protocolVersion } from '../../transport/handshake.ts';
import type { Link } from '../../transport/link.ts';
import { channelOver } from '../../transport/node/duplex-channel.ts';
import { sameSecret } from '../../transport/node/join-code.ts';
import { nativeAead } from '../../transport/node/native-aead.ts';
import { deviceOf, type Identity } from '../../transport/node/tls/identity.ts';
import { connect, connectStream, type TlsOptions } from '../../transport/node/websocket.ts';
import { type LinkServer, listen } from '../../transport/node/websocket-server.ts';
import { sealLink } from '../../transport/sealed-link.ts';
import type { PeerAddress } from '../protocol/messages.ts';
import { type PeerNetwork, pageUrl } from '../worker/peers.ts';
import { type AdvertisedAddress, dialledAt, isThisMachine } from './addresses.ts';
import { peerServerTls, peerTls } from './security/enrolment.ts';

export interface PeerNetworkOptions {
  /** This worker's. */
  readonly name: string;
  /** The address to listen on. */
  readonly host: string;
  /** Default 0: any free one. */
  readonly port?: number;
  /** Where peers reach it. Default: where it listens. */
  readonly advertised?: AdvertisedAddress;
  /** The secret by which a run's workers know each other. */
  readonly token: string;
  /** With its certificate all links are encrypted, and peers show certificates of the same cluster for their names. */
  readonly identity?: Identity;
  /** The coordinator, for peers that cannot be reached (relay.ts). Absent: none is. */
  readonly relay?: { readonly url: string; readonly tls?: TlsOptions };
  /** Default: the system's. */
  readonly clock?: Clock;
  onLink(link: Link): void;
}

/** Listens for peers that present the run's token and, where links are encrypted, a certificate for their name. */
export async function createPeerNetwork(options: PeerNetworkOptions): Promise<PeerNetwork> {
  const { name, host, port = 0, advertised, token, identity } = options;
  const isPeer = (hello: Hello, certificate: X509Certificate | undefined): boolean => {
    const device = deviceOf(certificate?.subjectAltName);
    const isNamed = identity === undefined || (device?.role === 'worker' && device.name === hello.name);
    return hello.purpose === 'peer' && isNamed && hello.name !== name && sameSecret(hello.credential, token);
  };
  const server = await listen({
    host,
    port,
    name,
    authenticate: (hello, _address, certificate) =>
      isPeer(hello, certificate)
        ? { kind: 'accepted', name: hello.name }
        : { kind: 'refused', reason: 'this worker only talks to the other workers of its run', retry: false },
    onLink: (link) => network.arrived(link),
    ...(advertised === undefined ? {} : { allowedHosts: [advertised.host] }),
    ...(identity && { tls: peerServerTls(identity) }),
  });
  const seen = advertised ?? { host: dialledAt(host) };
  const network = new NodePeerNetwork(server, server.urlAt(seen.host, seen.port), options);
  return network;
}

/** How long an address of a peer may take to answer at all; it may be behind something that swallows what comes. */
const reachMs = 3_000;
/** How long a peer may take for its hello, once it has come over the relay. */
const helloMs = 10_000;
/** Where a peer's server is, at the other end of a stream. */
const throughHost = 'localhost';

class NodePeerNetwork implements PeerNetwork {
  readonly url: string;
  readonly #server: LinkServer;
  readonly #options: PeerNetworkOptions;
  readonly #clock: Clock;
  readonly #ending = new AbortController();
  /** Addresses that did not answer in time: no time is lost on them again. */
  readonly #silent = new Set<string>();
  /** By peer that was asked to call: what takes its link. */
  readonly #awaited = new Map<string, (link: Link) => void>();
  /** By peer that waits for a call: the last ticket that came for it. */
  readonly #tickets = new Map<string, string>();
  /** By peer that has come over the relay and has not said hello: ends the wait for it. */
  readonly #greeting = new Map<string, () => void>();

  constructor(server: LinkServer, url: string, options: PeerNetworkOptions) {
    this.#server = server;
    this.url = url;
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
  }

  /** A peer has called. */
  arrived(link: Link): void {
    this.#greeting.get(link.peer)?.();
    this.#greeting.delete(link.peer);
    const take = this.#awaited.get(link.peer);
    this.#awaited.delete(link.peer);
    if (take === undefined) this.#options.onLink(link);
    else take(link);
  }

  async connect(peer: PeerAddress): Promise<Link> {
    if (peer.url === pageUrl) return this.#sealed(peer, { to: peer.name });
    try {
      return await this.#call(peer);
    } catch (error) {
      if (this.#options.relay === undefined || !isUnreachable(error) || this.#ending.signal.aborted) throw error;
      return this.#overRelay(peer, error);
    }
  }

  /** Calls a peer at its address. */
  async #call(peer: PeerAddress): Promise<Link> {
    if (this.#options.identity !== undefined && !peer.url.startsWith('wss:'))
      throw new ProtocolError(`${peer.name} does not encrypt its links.`);
    if (this.#silent.has(peer.url)) throw new RunError(`${peer.url} did not answer before`);
    const startMs = this.#clock.now();
    try {
      return await this.#dial(peer, peer.url);
    } catch (error) {
      if (this.#clock.now() - startMs >= reachMs) this.#silent.add(peer.url);
      throw error;
    }
  }

  /** Asks the coordinator for a way to a peer: the peer calls, or both come to the coordinator. */
  async #overRelay(peer: PeerAddress, direct: Error): Promise<Link> {
    const stream = await this.#openStream({ to: peer.name }).catch((error: unknown) => {
      throw isUnreachable(error)
        ? new RunError(`${direct.message}; nor over the coordinator: ${error.message}`)
        : error;
    });
    const called = new Promise<Link>((resolve) => this.#awaited.set(peer.name, resolve));
    const isSecure = this.#options.identity !== undefined;
    const relayed = this.#dial(peer, `${isSecure ? 'wss' : 'ws'}://${throughHost}`, stream).catch((error: unknown) => {
      throw isUnreachable(error)
        ? new RunError(`${direct.message}; nor does ${peer.name} come over the coordinator`)
        : error;
    });
    relayed.catch(() => {}); // it ends with its stream where the peer has called
    try {
      return await Promise.race([called.finally(() => stream.destroy()), relayed]);
    } finally {
      this.#awaited.delete(peer.name);
    }
  }

  called(peer: PeerAddress, ticket: string): void {
    const isUnderWay = this.#tickets.has(peer.name);
    this.#tickets.set(peer.name, ticket);
    if (isUnderWay) return;
    this.#answer(peer)
      .catch((error: unknown) => {
        // Whoever waits gives up by itself.
        if (!isUnreachable(error) && !(error instanceof ProtocolError)) throw error;
      })
      .finally(() => this.#tickets.delete(peer.name));
  }

  async #answer(peer: PeerAddress): Promise<void> {
    if (peer.url === pageUrl) {
      const ticket = defined(this.#tickets.get(peer.name), 'a ticket');
      return this.#options.onLink(await this.#sealed(peer, { ticket }));
    }
    try {
      return this.#options.onLink(await this.#call(peer));
    } catch (error) {
      if (!isUnreachable(error)) throw error;
    }
    const stream = await this.#openStream({ ticket: defined(this.#tickets.get(peer.name), 'a ticket') });
    this.#greeting.get(peer.name)?.();
    this.#greeting.set(
      peer.name,
      this.#clock.after(helloMs, () => stream.destroy()),
    );
    this.#server.take(stream);
  }

  /** A link to a page, over the coordinator. */
  async #sealed(peer: PeerAddress, wish: { readonly to: string } | { readonly ticket: string }): Promise<Link> {
    const { name, token: secret } = this.#options;
    const channel = channelOver(await this.#openStream(wish));
    const isInitiator = 'to' in wish;
    return sealLink(channel, { name, peer: peer.name, isInitiator, secret, aead: nativeAead, clock: this.#clock });
  }

  #openStream(wish: Readonly<Record<string, string>>): Promise<Duplex> {
    const { name, token: credential, relay } = this.#options;
    const { url, tls } = defined(relay, 'a relay');
    const hello = { protocol: protocolVersion, purpose: 'relay', name, credential, facts: wish } as const;
    return connectStream(url, { hello, abortSignal: this.#ending.signal, ...(tls && { tls }) });
  }

  async #dial(peer: PeerAddress, url: string, through?: Duplex): Promise<Link> {
    const { name, token: credential, identity } = this.#options;
    const { link } = await connect(url, {
      hello: { protocol: protocolVersion, purpose: 'peer', name, credential },
      abortSignal: this.#ending.signal,
      reachMs,
      ...(through && { through }),
      ...(identity && { tls: peerTls(identity, { role: 'worker', name: peer.name }) }),
    });
    if (link.peer === peer.name) return link;
    await link.close('another worker answered');
    throw new RunError(`${link.peer} answered at ${url} instead of ${peer.name}.`);
  }

  close(): Promise<void> {
    this.#ending.abort();
    for (const stop of this.#greeting.values()) stop();
    return this.#server.close('the worker has ended');
  }
}

/** Nobody answers at an address, or somebody else does: another network may have the same addresses. */
function isUnreachable(error: unknown): error is InputError | RunError {
  return error instanceof InputError || error instanceof RunError;
}

/** The address of this machine on the way to `host`: 127.0.0.1 for this machine itself. Sends nothing. */
export async function addressTowards(host: string): Promise<string> {
  if (isThisMachine(host)) return '127.0.0.1';
  const socket = createSocket(isIP(host) === 6 ? 'udp6' : 'udp4');
  try {
    await new Promise<void>((resolve, reject) => {
      socket.once('error', reject);
      socket.connect(9, host, resolve);
    });
    return socket.address().address;
  } catch (error) {
    throw new RunError(
      `No interface of this machine leads to ${host}: ${error instanceof Error ? error.message : String(error)}.`,
    );
  } finally {
    socket.close();
  }
}
