// WebSocket links for Node, the server's side: `listen` serves. Until a caller has shown a valid credential it costs
// the server a bounded amount: one message of 4 KiB, five seconds, one of a few places. Certificates (tls/) and
// credentials are checked by `authenticate`, an option.

import type { X509Certificate } from 'node:crypto';
import {
  createServer as createHttpServer,
  type IncomingMessage,
  type Server,
  type ServerResponse,
  STATUS_CODES,
} from 'node:http';
import { createServer as createHttpsServer } from 'node:https';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { TLSSocket } from 'node:tls';
import { type RawData, WebSocket, WebSocketServer } from 'ws';
import { type Clock, systemClock } from '../../clock.ts';
import { InputError, ProtocolError, RunError } from '../../errors.ts';
import { createFailureLimiter, judgeUpgrade, plainAddress, type Rejection } from '../admission.ts';
import { encodeHandshake, type Hello, maxHandshakeBytes, parseHello, type Refused } from '../handshake.ts';
import type { Link } from '../link.ts';
import type { WireLink } from '../wire-link.ts';
import { ciphers, type TlsOptions, type WebSocketOptions } from './websocket.ts';
import { WebSocketBytes } from './websocket-bytes.ts';
import { createWebSocketLink, maxPayloadBytes } from './websocket-link.ts';
import { streamOver } from './websocket-stream.ts';

/** The yes of `authenticate`: the caller's name from here on, and facts for it. */
export interface Accepted {
  readonly kind: 'accepted';
  readonly name: string;
  readonly facts?: Readonly<Record<string, unknown>>;
}

/**
 * Browsers at the same port: they ask for pages, or to upgrade with an Origin, which programs never send. They have the
 * bounds of callers without a credential until `admit` is called.
 */
export interface Guests {
  request(request: IncomingMessage, response: ServerResponse, admit: () => void): void;
  /**
   * Whether an upgrade is that of a page which wants to be a device, and then says hello as devices do. A rejection: a
   * page that may not. Absent: no page may.
   */
  device?(request: IncomingMessage): boolean | Rejection;
  upgrade(request: IncomingMessage, stream: Duplex, head: Buffer, admit: () => void): void;
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
   * Decides about a caller, by its credential and its certificate, which is trusted. `isPage`: a script in a browser. A
   * refusal without `retry` counts as a failure of that address.
   */
  authenticate(
    hello: Hello,
    address: string,
    certificate?: X509Certificate,
    isPage?: boolean,
  ): Accepted | Refused | Promise<Accepted | Refused>;
  /** A caller was accepted. A ProtocolError thrown here, such as over its facts, closes the link with its message. */
  onLink(link: Link, hello: Hello): void;
  /** A caller with the purpose 'relay' was accepted under this name; its messages are a stream of bytes. */
  onStream?(stream: Duplex, name: string, hello: Hello): void;
  /** A caller was turned away; for a log or a counter. The reason holds nothing secret. */
  onRefused?(address: string, reason: string): void;
  /** Host names by which callers may call this server, besides `host`, localhost and any address. */
  readonly allowedHosts?: readonly string[];
  readonly tls?: TlsOptions;
  /** Absent: browsers are refused. */
  readonly guests?: Guests;
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
  /** The same with another host, and another port if one is given: where something leads to this server. */
  urlAt(host: string, port?: number): string;
  /** Takes a stream as a connection to this server. Its giver bounds how long it may take until it is a link. */
  take(stream: Duplex): void;
  /** Ends all links with this reason and lets no device in any more; guests stay. Resolves when they are closed. */
  closeLinks(reason: string): Promise<void>;
  /** Accepts nobody any more and ends all links with this reason; resolves when all is closed. */
  close(reason: string): Promise<void>;
}

const refusedCode = 4401;
const tooManyFailures = 'too many wrong codes: try again in a minute';
/** What a WebSocket adds to the one message before authentication, and a ping or a close. */
const handshakeSlackBytes = 256;

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
  const urlAt = (host: string, seenPort = port): string =>
    `${options.tls === undefined ? 'ws' : 'wss'}://${host.includes(':') ? `[${host}]` : host}:${seenPort}`;
  return {
    ...{ host: options.host, port, url: urlAt(options.host), urlAt },
    take: (stream) => front.take(stream),
    closeLinks: (reason) => front.closeLinks(reason),
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
  /** Of callers, and connections that were given to `take`. */
  readonly #streams = new Set<Duplex>();
  /** Why no device is let in any more. */
  #over: string | undefined;

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
    http.on('request', (request, response) => {
      if (options.guests !== undefined)
        return options.guests.request(request, response, () => this.#leave(keyOf(request.socket)));
      response
        .writeHead(426, { connection: 'close', 'content-type': 'text/plain' })
        .end('this is a server for WebSockets only\n');
    });
    http.on('upgrade', (request, stream, head) => this.#upgrade(request, stream, head));
  }

  async close(reason: string): Promise<void> {
    const closed = new Promise<void>((resolve) => this.#http.close(() => resolve()));
    this.#http.closeAllConnections(); // of browsers that keep one open; links are no HTTP any more
    for (const { socket } of this.#waiting.values()) socket.destroy();
    await this.closeLinks(reason);
    await closed;
  }

  async closeLinks(reason: string): Promise<void> {
    this.#over = reason;
    await Promise.all([...this.#links].map((link) => link.close(reason)));
    for (const stream of this.#streams) stream.destroy();
  }

  take(stream: Duplex): void {
    this.#keep(stream);
    this.#http.emit('connection', stream);
  }

  #keep(stream: Duplex): void {
    this.#streams.add(stream);
    stream.once('close', () => this.#streams.delete(stream));
  }

  /** A new connection gets a place and a time. */
  #arrive(socket: Socket): void {
    if (this.#streams.has(socket)) return;
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
    const { guests } = this.#options;
    const device = origin === undefined ? false : (guests?.device?.(request) ?? false);
    if (guests !== undefined && origin !== undefined && device === false)
      return guests.upgrade(request, stream, head, () => this.#leave(keyOf(socket)));
    const tooMany = this.#limiter.allows(plainAddress(socket.remoteAddress ?? ''))
      ? undefined
      : ({ status: 429, reason: tooManyFailures } as const);
    const foreign = isForeign(socket)
      ? ({ status: 403, reason: 'the certificate of this device is not of this cluster' } as const)
      : undefined;
    const asPage = device === true ? undefined : device || judgeUpgrade({ host, origin }, this.#allowedHosts);
    const rejection = tooMany ?? foreign ?? asPage;
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
      this.#greet(webSocket, bytes, device === true);
    });
  }

  /** Waits for the hello; anything but one message of at most 4 KiB ends the connection. */
  #greet(webSocket: WebSocket, bytes: WebSocketBytes, isPage: boolean): void {
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
      void this.#judge(data as Buffer, socket, isPage).then(({ verdict, hello }) => {
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
    isPage: boolean,
  ): Promise<{ readonly verdict: Accepted | Refused; readonly hello?: Hello }> {
    const address = plainAddress(socket.remoteAddress ?? '');
    try {
      const hello = parseHello(data);
      if (!this.#limiter.allows(address)) return { verdict: { kind: 'refused', reason: tooManyFailures, retry: true } };
      if (this.#over !== undefined) return { verdict: { kind: 'refused', reason: this.#over, retry: true } };
      const certificate =
        socket instanceof TLSSocket && socket.authorized ? socket.getPeerX509Certificate() : undefined;
      const verdict = await this.#options.authenticate(hello, address, certificate, isPage);
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
    const { limits, heartbeat, clock, onStream } = this.#options;
    if (hello.purpose === 'relay') {
      const stream = streamOver(webSocket);
      this.#keep(stream);
      onStream?.(stream, name, hello);
      return;
    }
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
