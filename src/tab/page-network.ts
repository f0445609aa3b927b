// The links between a worker in a tab and its peers. A tab cannot listen, and others cannot call it: all its links go
// over the coordinator, to which both ends have a socket each, and are sealed with the run's secret.

import type { Clock } from '../clock.ts';
import { InputError, RunError } from '../errors.ts';
import type { PeerAddress } from '../runtime/protocol/messages.ts';
import { type PeerNetwork, pageUrl } from '../runtime/worker/peers.ts';
import { protocolVersion } from '../transport/handshake.ts';
import type { Link } from '../transport/link.ts';
import { sealLink } from '../transport/sealed-link.ts';
import { dial, type OpenSocket, socketChannel } from './browser-socket.ts';

export interface PageNetworkOptions {
  readonly name: string;
  /** The coordinator's address for pages. */
  readonly url: string;
  readonly open: OpenSocket;
  /** The secret by which a run's workers know each other. */
  readonly token: string;
  /** By which the coordinator knows this worker when it asks for a way. */
  readonly relaySecret: string;
  readonly clock: Clock;
  onLink(link: Link): void;
}

/** The network of a worker in a tab. */
export function createPageNetwork(options: PageNetworkOptions): PeerNetwork {
  const { name, url, open, token: secret, relaySecret: credential, clock } = options;
  let isClosed = false;
  const meet = async (peer: PeerAddress, wish: Readonly<Record<string, string>>): Promise<Link> => {
    const hello = { protocol: protocolVersion, purpose: 'relay', name, credential, facts: wish } as const;
    const { socket } = await dial(open, url, hello, clock).catch((error: unknown) => {
      throw error instanceof InputError ? new RunError(error.message) : error;
    });
    const channel = socketChannel(socket, clock);
    const link = await sealLink(channel, { name, peer: peer.name, isInitiator: 'to' in wish, secret, clock });
    if (!isClosed) return link;
    await link.close('the worker has ended');
    throw new RunError('the worker has ended');
  };
  return {
    url: pageUrl,
    connect: (peer) => meet(peer, { to: peer.name }),
    called(peer, ticket) {
      meet(peer, { ticket }).then(options.onLink, (error: unknown) => {
        // Whoever waits gives up by itself.
        if (!(error instanceof RunError)) throw error;
      });
    },
    async close() {
      isClosed = true;
    },
  };
}
