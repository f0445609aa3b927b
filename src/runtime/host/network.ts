// A worker's network to its peers on Node: it listens on the interface that leads to the coordinator, and calls peers.

import type { X509Certificate } from 'node:crypto';
import { createSocket } from 'node:dgram';
import { isIP } from 'node:net';
import { ProtocolError, RunError } from '../../errors.ts';
import { isLoopback } from '../../transport/admission.ts';
import { type Hello, protocolVersion } from '../../transport/handshake.ts';
import type { Link } from '../../transport/link.ts';
import { sameSecret } from '../../transport/node/join-code.ts';
import { deviceOf, type Identity } from '../../transport/node/tls/identity.ts';
import { connect, listen } from '../../transport/node/websocket.ts';
import type { PeerNetwork } from '../worker/peers.ts';
import { peerServerTls, peerTls } from './security/enrolment.ts';

/**
 * Listens on `host` for peers that present the run's token and, if this worker has a certificate, a certificate of the
 * same cluster for their name.
 */
export async function createPeerNetwork(
  name: string,
  host: string,
  token: string,
  onLink: (link: Link) => void,
  identity?: Identity,
): Promise<PeerNetwork> {
  const isPeer = (hello: Hello, certificate: X509Certificate | undefined): boolean => {
    const device = deviceOf(certificate?.subjectAltName);
    const isNamed = identity === undefined || (device?.role === 'worker' && device.name === hello.name);
    return hello.purpose === 'peer' && isNamed && sameSecret(hello.credential, token);
  };
  const server = await listen({
    host,
    port: 0,
    name,
    authenticate: (hello, _address, certificate) =>
      isPeer(hello, certificate)
        ? { kind: 'accepted', name: hello.name }
        : { kind: 'refused', reason: 'this worker only talks to the other workers of its run', retry: false },
    onLink,
    ...(identity && { tls: peerServerTls(identity) }),
  });
  const ending = new AbortController();
  return {
    url: server.url,
    async connect(peer) {
      const hello = { protocol: protocolVersion, purpose: 'peer', name, credential: token } as const;
      if (identity !== undefined && !peer.url.startsWith('wss:'))
        throw new ProtocolError(`${peer.name} does not encrypt its links.`);
      const { link } = await connect(peer.url, {
        hello,
        abortSignal: ending.signal,
        ...(identity && { tls: peerTls(identity, { role: 'worker', name: peer.name }) }),
      });
      if (link.peer !== peer.name) {
        await link.close('another worker answered');
        throw new RunError(`${link.peer} answered at ${peer.url} instead of ${peer.name}.`);
      }
      return link;
    },
    close() {
      ending.abort();
      return server.close('the worker has ended');
    },
  };
}

/** The address of this machine on the way to `host`: 127.0.0.1 for this machine itself. Sends nothing. */
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
    throw new RunError(
      `No interface of this machine leads to ${host}: ${error instanceof Error ? error.message : String(error)}.`,
    );
  } finally {
    socket.close();
  }
}
