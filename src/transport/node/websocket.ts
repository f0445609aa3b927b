// WebSocket links for Node: `connect` dials, `listen` serves. Before a caller has shown a valid credential it costs the
// server a bounded little: one message of 4 KiB, five seconds, one of a few places. Certificates (tls/) and credentials
// are the caller's business; policy comes in as options.

import type { X509Certificate } from 'node:crypto';
import { createServer as createHttpServer, type IncomingMessage, type Server, STATUS_CODES } from 'node:http';
import { createServer as createHttpsServer } from 'node:https';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { type PeerCertificate, TLSSocket } from 'node:tls';
import { type RawData, WebSocket, WebSocketServer } from 'ws';
import { defined } from '../../assert.ts';
import { type Clock, systemClock } from '../../clock.ts';
import { InputError, ProtocolError, RunError } from '../../errors.ts';
import { createFailureLimiter, judgeUpgrade, plainAddress } from '../admission.ts';
import {
  encodeHandshake,
  type Hello,
  maxHandshakeBytes,
  parseAnswer,
  parseHello,
  type Refused,
  type Welcome,
} from '../handshake.ts';
import type { Link } from '../link.ts';
import type { LinkLimits, WireLink } from '../wire-link.ts';
import { WebSocketBytes } from './websocket-bytes.ts';
import { createWebSocketLink, type Heartbeat, maxPayloadBytes } from './websocket-link.ts';

/** What both ends may set. */
export interface WebSocketOptions {
  /** Default: defaultLinkLimits. */
  readonly limits?: LinkLimits;
  /** Default: a ping every 2 s, dead after 10 s. */
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
  readonly tls?: TlsOptions;
}

/** A link and what the server said. The link's peer is `welcome.server`. */
export interface Connection {
  readonly link: Link;
  readonly welcome: Welcome;
}

/** The yes of `authenticate`: the caller's name from here on, and facts for it. */
export interface Accepted {
  readonly kind: 'accepted';
  readonly name: string;
  readonly facts?: Readonly<Record<string, unknown>>;
}

/** Options of listen. */
export interface ListenOptions extends WebSocketOptions {
  /** The address to listen on. */
  readonly host: string;
  /** 0: any free one. */
  readonly port: number;
  /** This server's name, for its callers. */
  readonly name: string;
  /**
   * Decides about a caller, by its credential and its certificate, which is trusted. A refusal without `retry` counts
   * as a failure of that address.
   */
  authenticate(
    hello: Hello,
    address: string,
    certificate?: X509Certificate,
  ): Accepted | Refused | Promise<Accepted | Refused>;
  /** A caller was accepted. A ProtocolError thrown here, such as over its facts, closes the link with its message. */
  onLink(link: Link, hello: Hello): void;
  /** A caller was turned away; for a log or a counter. The reason holds nothing secret. */
  onRefused?(address: string, reason: string): void;
  /** Host names by which callers may call this server, besides `host`, localhost and the address they reached. */
  readonly allowedHosts?: readonly string[];
  readonly tls?: TlsOptions;
  /** From the connection to a valid credential. Default 5 s. */
  readonly authenticationMs?: number;
  /** Connections without a valid credential yet; when there are more, the oldest is closed. Default 64. */
  readonly unauthenticatedCount?: number;
  /** Wrong credentials that an address may show at once, and the time in which it regains one. Default 10 and 6 s. */
  readonly failures?: { readonly burstCount: number; readonly regainMs: number };
}

/** A server of links. */
export interface LinkServer {
  readonly host: string;
  readonly port: number;
  /** ws:// or wss:// with host and port. */
  readonly url: string;
  /** Accepts nobody any more and ends all links with this reason; resolves when all is closed. */
  close(reason: string): Promise<void>;
}

/** TLS 1.3's ciphers; its mandatory one first, which costs a fifth less than the default, AES with keys of 256 bits. */
const ciphers = 'TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256';

const refusedCode = 4401;
const tooManyFailures = 'too many wrong codes: try again in a minute';
const maxErrorBodyBytes = 1024;
/** What a WebSocket adds to the one message before authentication, and a ping or a close. */
const handshakeSlackBytes = 256;

/**
 * Dials a server, says hello, and resolves to the link once welcome. Throws InputError when the URL or the credential
 * is wrong, RunError when the server cannot be reached, is another program, or asks to try later.
 */
export function connect(url: string, options: ConnectOptions): Promise<Connection> {
  return new Promise((resolve, reject) => {
    const address = parseUrl(url);
    const { clock = systemClock, timeoutMs = 10_000, abortSignal } = options;
    let stream: Socket | undefined;
    let bytes: WebSocketBytes | undefined;
    const socket = new WebSocket(address, {
      perMessageDeflate: false,
      maxPayload: maxPayloadBytes,
      ...clientTls(options.tls),
      minVersion: 'TLSv1.3',
      ciphers,
    });
    const finish = (): void => {
      cancelTimeout();
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
        const answer = parseAnswer(data as Buffer);
        if (answer.kind === 'refused') throw answer.retry ? new RunError(answer.reason) : new InputError(answer.reason);
        finish();
        resolve({
          link: createWebSocketLink(socket, defined(bytes, 'an open WebSocket'), { peer: answer.server, ...options }),
          welcome: answer,
        });
      } catch (error) {
        fail(
          error instanceof ProtocolError
            ? new RunError(`${url} is no Asteroid of this release: ${error.message}`)
            : (error as Error),
        );
      }
    });
    if (abortSignal?.aborted) onAbort();
  });
}

/** For node:tls, to which ws passes what it does not know itself. */
function clientTls({ unknownCallers: _, ...tls }: TlsOptions = {}): object {
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

/** Starts a server. Throws InputError when the address cannot be listened on. */
export async function listen(options: ListenOptions): Promise<LinkServer> {
  const http = options.tls === undefined ? createHttpServer({ maxHeaderSize: 8192 }) : createSecureServer(options.tls);
  const front = new Front(http, options);
  await new Promise<void>((resolve, reject) => {
    http.once('error', (error) => reject(listenError(options, error)));
    http.listen(options.port, options.host, resolve);
  });
  http.on('error', (error) => options.onRefused?.('', `the server failed: ${error.message}`));
  const bound = http.address();
  const port = typeof bound === 'object' && bound !== null ? bound.port : options.port;
  const host = options.host.includes(':') ? `[${options.host}]` : options.host;
  return {
    host: options.host,
    port,
    url: `${options.tls === undefined ? 'ws' : 'wss'}://${host}:${port}`,
    close: (reason) => front.close(reason),
  };
}

function createSecureServer(tls: TlsOptions): Server {
  const { cert, key, ca, unknownCallers = false } = tls;
  const clients = ca === undefined ? {} : { ca, requestCert: true, rejectUnauthorized: !unknownCallers };
  return createHttpsServer({
    ...(cert && { cert }),
    ...(key && { key }),
    ...clients,
    minVersion: 'TLSv1.3',
    ciphers,
    maxHeaderSize: 8192,
  });
}

function listenError({ host, port }: ListenOptions, error: Error & { readonly code?: string }): Error {
  if (error.code === 'EADDRINUSE')
    return new InputError(`port ${port} of ${host} is taken: choose another with --port`);
  if (error.code === 'EACCES')
    return new InputError(`port ${port} of ${host} needs privileges: choose one above 1023 with --port`);
  if (error.code === 'EADDRNOTAVAIL' || error.code === 'ENOTFOUND') {
    return new InputError(`${host} is not an address of this machine: choose one of its own with --host`);
  }
  return new RunError(`cannot listen on port ${port} of ${host}: ${error.message}`);
}

/** The server's door: connections without a valid credential, and the links of those with one. */
class Front {
  readonly #http: Server;
  readonly #options: ListenOptions;
  readonly #clock: Clock;
  readonly #webSockets: WebSocketServer;
  readonly #limiter: ReturnType<typeof createFailureLimiter>;
  readonly #allowedHosts: ReadonlySet<string>;
  /** By address and port; the oldest first. */
  readonly #waiting = new Map<string, { readonly socket: Socket; readonly cancel: () => void }>();
  readonly #links = new Set<WireLink>();

  constructor(http: Server, options: ListenOptions) {
    this.#http = http;
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
    this.#webSockets = new WebSocketServer({
      noServer: true,
      clientTracking: false,
      perMessageDeflate: false,
      maxPayload: maxPayloadBytes,
    });
    this.#limiter = createFailureLimiter({ clock: this.#clock, burstCount: 10, regainMs: 6_000, ...options.failures });
    this.#allowedHosts = new Set(
      ['localhost', options.host, ...(options.allowedHosts ?? [])].map((host) => host.toLowerCase()),
    );
    http.on('connection', (socket: Socket) => this.#arrive(socket));
    http.on('clientError', (_error, socket) => socket.destroy());
    http.on('request', (_request, response) => {
      response
        .writeHead(426, { connection: 'close', 'content-type': 'text/plain' })
        .end('this is a server for WebSockets only\n');
    });
    http.on('upgrade', (request, stream, head) => this.#upgrade(request, stream, head));
  }

  async close(reason: string): Promise<void> {
    const closed = new Promise<void>((resolve) => this.#http.close(() => resolve()));
    for (const { socket } of this.#waiting.values()) socket.destroy();
    await Promise.all([...this.#links].map((link) => link.close(reason)));
    await closed;
  }

  /** A new connection gets a place and a time. */
  #arrive(socket: Socket): void {
    const key = keyOf(socket);
    socket.on('error', () => {}); // a reset: 'close' follows
    const [oldest] = this.#waiting.values();
    if (this.#waiting.size >= (this.#options.unauthenticatedCount ?? 64)) oldest?.socket.destroy();
    const milliseconds = this.#options.authenticationMs ?? 5_000;
    const cancel = this.#clock.after(milliseconds, () => {
      this.#refused(socket, `no valid hello within ${milliseconds / 1000} s`);
      socket.destroy();
    });
    this.#waiting.set(key, { socket, cancel });
    socket.on('close', () => this.#leave(key));
  }

  #leave(key: string): void {
    this.#waiting.get(key)?.cancel();
    this.#waiting.delete(key);
  }

  #refused(socket: Socket, reason: string): void {
    this.#options.onRefused?.(plainAddress(socket.remoteAddress ?? ''), reason);
  }

  #upgrade(request: IncomingMessage, stream: Duplex, head: Buffer): void {
    const { socket } = request;
    const { host, origin } = request.headers;
    const tooMany = this.#limiter.allows(plainAddress(socket.remoteAddress ?? ''))
      ? undefined
      : ({ status: 429, reason: tooManyFailures } as const);
    const foreign = isForeign(socket)
      ? ({ status: 403, reason: 'the certificate of this device is not of this cluster' } as const)
      : undefined;
    const rejection =
      tooMany ?? foreign ?? judgeUpgrade({ host, origin, localAddress: socket.localAddress ?? '' }, this.#allowedHosts);
    if (foreign !== undefined) this.#limiter.failed(plainAddress(socket.remoteAddress ?? ''));
    if (rejection !== undefined) {
      this.#refused(socket, rejection.reason);
      const lines = [
        `HTTP/1.1 ${rejection.status} ${STATUS_CODES[rejection.status]}`,
        'connection: close',
        'content-type: text/plain',
        `content-length: ${rejection.reason.length}`,
      ];
      stream.on('error', () => {});
      stream.end(`${lines.join('\r\n')}\r\n\r\n${rejection.reason}`, () => stream.destroy());
      return;
    }
    this.#webSockets.handleUpgrade(request, stream, head, (webSocket) => {
      const bytes = new WebSocketBytes(webSocket, socket, { isServer: true, maxMessageBytes: maxPayloadBytes });
      this.#greet(webSocket, bytes);
    });
  }

  /** Waits for the hello; anything but one message of at most 4 KiB ends the connection. */
  #greet(webSocket: WebSocket, bytes: WebSocketBytes): void {
    const socket = bytes.stream;
    let byteCount = 0;
    const onData = (chunk: Buffer): void => {
      byteCount += chunk.length;
      if (byteCount > maxHandshakeBytes + handshakeSlackBytes) socket.destroy();
    };
    socket.on('data', onData);
    webSocket.on('error', () => {}); // 'close' follows
    let greeted = false;
    webSocket.on('message', (data: RawData) => {
      if (greeted) {
        socket.destroy();
        return;
      }
      greeted = true;
      void this.#judge(data as Buffer, socket).then(({ verdict, hello }) => {
        socket.off('data', onData);
        if (webSocket.readyState !== WebSocket.OPEN) return;
        if (verdict.kind === 'accepted') this.#accept(webSocket, bytes, verdict, hello as Hello);
        else this.#turnAway(webSocket, socket, verdict);
      });
    });
  }

  /** The verdict on a hello. Never rejects. */
  async #judge(
    data: Buffer,
    socket: Socket,
  ): Promise<{ readonly verdict: Accepted | Refused; readonly hello?: Hello }> {
    const address = plainAddress(socket.remoteAddress ?? '');
    try {
      const hello = parseHello(data);
      if (!this.#limiter.allows(address)) return { verdict: { kind: 'refused', reason: tooManyFailures, retry: true } };
      const certificate =
        socket instanceof TLSSocket && socket.authorized ? socket.getPeerX509Certificate() : undefined;
      const verdict = await this.#options.authenticate(hello, address, certificate);
      if (verdict.kind === 'refused' && !verdict.retry) this.#limiter.failed(address);
      return { verdict, hello };
    } catch (error) {
      if (error instanceof ProtocolError) return { verdict: { kind: 'refused', reason: error.message, retry: false } };
      this.#refused(socket, `checking a hello failed: ${String(error)}`);
      return { verdict: { kind: 'refused', reason: 'the server could not check the hello', retry: true } };
    }
  }

  #turnAway(webSocket: WebSocket, socket: Socket, refused: Refused): void {
    this.#refused(socket, refused.reason);
    webSocket.send(encodeHandshake(refused));
    webSocket.close(refusedCode); // in the time that the connection has left
  }

  #accept(webSocket: WebSocket, bytes: WebSocketBytes, { name, facts }: Accepted, hello: Hello): void {
    this.#leave(keyOf(bytes.stream));
    webSocket.removeAllListeners('message');
    webSocket.send(encodeHandshake({ kind: 'welcome', name, server: this.#options.name, ...(facts && { facts }) }));
    const { limits, heartbeat, clock } = this.#options;
    const link = createWebSocketLink(webSocket, bytes, {
      peer: name,
      ...(limits && { limits }),
      ...(heartbeat && { heartbeat }),
      ...(clock && { clock }),
    });
    this.#links.add(link);
    void link.ended.then(() => this.#links.delete(link));
    try {
      this.#options.onLink(link, hello);
    } catch (error) {
      if (!(error instanceof ProtocolError)) throw error;
      this.#refused(bytes.stream, error.message);
      void link.close(error.message);
    }
  }
}

/** True where the caller showed a certificate that is not trusted. */
function isForeign(socket: Socket): boolean {
  return socket instanceof TLSSocket && !socket.authorized && socket.getPeerX509Certificate() !== undefined;
}

/** A connection's own name: the TLS socket and the TCP socket below it have the same. */
function keyOf(socket: Socket): string {
  return `${socket.remoteAddress} ${socket.remotePort}`;
}
