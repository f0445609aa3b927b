// WebSocket links for Node, the caller's side: `connect` dials a server (websocket-server.ts), says hello and waits for
// its answer; `connectStream` does, for a stream of bytes instead of a link. Certificates (tls/) and credentials are
// the caller's business; policy comes in as options.

import type { IncomingMessage } from 'node:http';
import { connect as connectSocket, isIP, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { type ConnectionOptions, connect as connectTls, type PeerCertificate } from 'node:tls';
import { type RawData, WebSocket } from 'ws';
import { defined } from '../../assert.ts';
import { type Clock, systemClock } from '../../clock.ts';
import { InputError, ProtocolError, RunError } from '../../errors.ts';
import { encodeHandshake, type Hello, parseAnswer, type Welcome } from '../handshake.ts';
import type { Link } from '../link.ts';
import type { LinkLimits } from '../wire-link.ts';
import { WebSocketBytes } from './websocket-bytes.ts';
import { createWebSocketLink, type Heartbeat, maxPayloadBytes } from './websocket-link.ts';
import { streamOver } from './websocket-stream.ts';

/** What both ends may set. */
export interface WebSocketOptions {
  /** Default: defaultLinkLimits. */
  readonly limits?: LinkLimits;
  /** Default: a ping every 2 s, dead after 10 s, or 30 where silence is expected. */
  readonly heartbeat?: Heartbeat;
  /** Default: the system's. */
  readonly clock?: Clock;
}

/** Keys and certificates in PEM, as node:tls takes them. Always TLS 1.3. */
export interface TlsOptions {
  readonly cert?: string;
  readonly key?: string;
  /** Whom to trust; on a server it also asks callers for a certificate. */
  readonly ca?: string;
  /**
   * On a server: callers without a certificate may say hello too; `authenticate` sees that they have none. Default
   * false.
   */
  readonly unknownCallers?: boolean;
  /**
   * On a caller: judges the server's trusted certificate by itself, instead of by the address; an error is the reason
   * for refusing.
   */
  checkServerIdentity?(host: string, certificate: PeerCertificate): Error | undefined;
  /** On a caller: `ca` may hold a certificate that is not its own issuer's. */
  readonly allowPartialTrustChain?: boolean;
}

/** Options of connect. */
export interface ConnectOptions extends WebSocketOptions {
  readonly hello: Hello;
  readonly abortSignal?: AbortSignal;
  /** For everything up to the server's answer. Default 10 s. */
  readonly timeoutMs?: number;
  /** Of that, for reaching the server at all. Default: all of it. */
  readonly reachMs?: number;
  readonly tls?: TlsOptions;
  /** A stream that leads to the server, instead of a new connection to the URL's address. */
  readonly through?: Duplex;
}

/** A link and what the server said. The link's peer is `welcome.server`. */
export interface Connection {
  readonly link: Link;
  readonly welcome: Welcome;
}

/** TLS 1.3's ciphers; its mandatory one first, which costs a fifth less than the default, AES with keys of 256 bits. */
export const ciphers = 'TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256';

const maxErrorBodyBytes = 1024;

/**
 * Dials a server, says hello, and resolves to the link once welcome. Throws InputError when the URL or the credential
 * is wrong, RunError when the server cannot be reached, is another program, or asks to try later.
 */
export function connect(url: string, options: ConnectOptions): Promise<Connection> {
  return dial(url, options, (socket, bytes, welcome) => ({
    link: createWebSocketLink(socket, bytes, { peer: welcome.server, ...options }),
    welcome,
  }));
}

/** As `connect`, for a server that takes a stream of bytes from callers with this hello. */
export function connectStream(url: string, options: ConnectOptions): Promise<Duplex> {
  return dial(url, options, (socket) => streamOver(socket));
}

/** `take` gets the open socket as soon as the server has said welcome. */
function dial<T>(
  url: string,
  options: ConnectOptions,
  take: (socket: WebSocket, bytes: WebSocketBytes, welcome: Welcome) => T,
): Promise<T> {
  return new Promise((resolve, reject) => {
    const address = parseUrl(url);
    const { clock = systemClock, timeoutMs = 10_000, reachMs = timeoutMs, abortSignal } = options;
    let stream: Socket | undefined;
    let bytes: WebSocketBytes | undefined;
    let cancelReach = (): void => {};
    const socket = openSocket(address, options, () => cancelReach());
    const finish = (): void => {
      cancelTimeout();
      cancelReach();
      abortSignal?.removeEventListener('abort', onAbort);
      socket.removeAllListeners();
      socket.on('error', () => {}); // late errors of a connection that was given up
    };
    const fail = (error: Error): void => {
      finish();
      socket.terminate();
      reject(error);
    };
    const onAbort = (): void => fail(new RunError(`connecting to ${url} was cancelled`));
    const cancelTimeout = clock.after(timeoutMs, () =>
      fail(new RunError(`${url} did not answer within ${timeoutMs / 1000} s`)),
    );
    if (options.through === undefined)
      cancelReach = clock.after(reachMs, () => fail(new RunError(`${url} was not reached within ${reachMs / 1000} s`)));
    abortSignal?.addEventListener('abort', onAbort);

    socket.on('error', (error) => fail(connectError(url, error)));
    socket.on('unexpected-response', (_request, response) => {
      void readBody(response).then((body) => fail(rejectionError(url, response.statusCode ?? 0, body)));
    });
    socket.on('upgrade', (response) => {
      stream = response.socket;
    });
    socket.on('open', () => {
      bytes = new WebSocketBytes(socket, defined(stream, 'the socket of an upgrade'), {
        isServer: false,
        maxMessageBytes: maxPayloadBytes,
      });
      socket.send(encodeHandshake(options.hello));
    });
    socket.on('close', (_code, reason) =>
      fail(new RunError(`${url} ended the connection before its answer${reason.length > 0 ? `: ${reason}` : ''}`)),
    );
    socket.on('message', (data: RawData) => {
      try {
        const welcome = welcomeIn(data as Buffer, url);
        finish();
        resolve(take(socket, defined(bytes, 'an open WebSocket'), welcome));
      } catch (error) {
        fail(error as Error);
      }
    });
    if (abortSignal?.aborted) onAbort();
  });
}

/** `onReached`: the server's machine has answered. */
function openSocket(address: URL, { tls, through }: ConnectOptions, onReached: () => void): WebSocket {
  const isSecure = address.protocol === 'wss:';
  const open = ({ host = '', port = '' }: { readonly host?: string; readonly port?: string | number }): Duplex => {
    const target: ConnectionOptions = through === undefined ? { host, port: Number(port) } : { socket: through };
    if (isSecure)
      return connectTls({
        ...clientTls(tls),
        ...target,
        ...(isIP(host) === 0 ? { servername: host } : {}),
        minVersion: 'TLSv1.3',
        ciphers,
      });
    return through ?? connectSocket({ host, port: Number(port) });
  };
  return new WebSocket(address, {
    perMessageDeflate: false,
    maxPayload: maxPayloadBytes,
    // Masks of zeros, as websocket-bytes.ts has them: ws leaves them out.
    generateMask: () => {},
    createConnection: ((options: { readonly host?: string; readonly port?: string | number }) => {
      const stream = open(options);
      stream.once('connect', onReached);
      return stream;
    }) as never,
  });
}

/** The server's answer, if it is a welcome. Throws InputError or RunError with the reason if it is not. */
function welcomeIn(data: Buffer, url: string): Welcome {
  try {
    const answer = parseAnswer(data);
    if (answer.kind === 'refused') throw answer.retry ? new RunError(answer.reason) : new InputError(answer.reason);
    return answer;
  } catch (error) {
    if (!(error instanceof ProtocolError)) throw error;
    throw new RunError(`${url} is no Asteroid of this release: ${error.message}`);
  }
}

/** For node:tls. */
function clientTls({ unknownCallers: _, ...tls }: TlsOptions = {}): ConnectionOptions {
  return tls;
}

function parseUrl(url: string): URL {
  const parsed = URL.canParse(url) ? new URL(url) : undefined;
  if (parsed === undefined || !['ws:', 'wss:'].includes(parsed.protocol) || parsed.hash !== '') {
    throw new InputError(`"${url}" is not an address to connect to: write it as ws://HOST:PORT`);
  }
  return parsed;
}

function connectError(url: string, error: Error & { readonly code?: string }): Error {
  if (error instanceof RunError) return error; // of checkServerIdentity
  const code = error.code ?? error.message;
  if (/ALERT/.test(code)) return new RunError(`${url} does not accept the certificate of this device (${code})`);
  if (/CERT|UNABLE_TO_VERIFY/.test(code)) return new RunError(`the certificate of ${url} is not trusted (${code})`);
  if (code === 'ECONNREFUSED')
    return new RunError(`nothing listens at ${url}: start it there first, or check the address`);
  return new RunError(`${url} cannot be reached (${code}): check the address and the network`);
}

function rejectionError(url: string, status: number, body: string): Error {
  if (status === 403) return new InputError(`${url} refuses this connection: ${body}`);
  if (status === 429) return new RunError(`${url} refuses this connection: ${body}`);
  return new RunError(`${url} answers with HTTP status ${status}: another program seems to listen there`);
}

/** The first bytes of a response as one line of text. */
async function readBody(response: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  let byteCount = 0;
  try {
    for await (const chunk of response as AsyncIterable<Buffer>) {
      chunks.push(chunk);
      byteCount += chunk.length;
      if (byteCount >= maxErrorBodyBytes) break;
    }
  } catch {
    // A body that breaks off: what came is enough.
  }
  return Buffer.concat(chunks)
    .toString('utf8', 0, maxErrorBodyBytes)
    .replace(/\p{Cc}+/gu, ' ')
    .trim();
}
