// A worker's side of the network on Node: it joins a coordinator by URL and code, and listens for its peers on the interface that leads there.

import { createSocket } from 'node:dgram';
import { isIP } from 'node:net';
import { RunError } from '../../errors.ts';
import { isLoopback } from '../../transport/admission.ts';
import { protocolVersion } from '../../transport/handshake.ts';
import { sameSecret } from '../../transport/join-code.ts';
import type { Link } from '../../transport/link.ts';
import { connect, listen } from '../../transport/websocket.ts';
import type { PeerNetwork } from './peers.ts';

/** Listens on `host` for peers that present the run's token. */
export async function createPeerNetwork(name: string, host: string, token: string, onLink: (link: Link) => void): Promise<PeerNetwork> {
  const server = await listen({
    host,
    port: 0,
    name,
    authenticate: (hello) =>
      hello.purpose === 'peer' && sameSecret(hello.credential, token)
        ? { kind: 'accepted', name: hello.name }
        : { kind: 'refused', reason: 'this worker only talks to the other workers of its run', retry: false },
    onLink,
  });
  return {
    url: server.url,
    async connect(peer) {
      const hello = { protocol: protocolVersion, purpose: 'peer', name, credential: token } as const;
      const { link } = await connect(peer.url, { hello });
      if (link.peer !== peer.name) {
        await link.close('another worker answered');
        throw new RunError(`${link.peer} answered at ${peer.url} instead of ${peer.name}.`);
      }
      return link;
    },
    close: () => server.close('the worker has ended'),
  };
}

/** The address of this machine from which `host` is reached: 127.0.0.1 for this machine itself. Sends nothing. */
export async function addressTowards(host: string): Promise<string> {
  if (host === 'localhost' || isLoopback(host)) return '127.0.0.1';
  const socket = createSocket(isIP(host) === 6 ? 'udp6' : 'udp4');
  try {
    await new Promise<void>((resolve, reject) => {
      socket.once('error', reject);
      socket.connect(9, host, resolve);
    });
    return socket.address().address;
  } catch (error) {
    throw new RunError(`No interface of this machine leads to ${host}: ${error instanceof Error ? error.message : String(error)}.`);
  } finally {
    socket.close();
  }
}
