// The window's part of a server: its page, the exchange of a token for a session, and the one WebSocket of each viewer.
// It stands on the port of a run's workers, or on one of its own.

import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { TLSSocket } from 'node:tls';
import { WebSocketServer } from 'ws';
import type { Guests } from '../../transport/node/websocket-server.ts';
import { maxCommandBytes } from '../messages.ts';
import type { Refusal, Shown, WindowDoor } from './door.ts';
import type { FileBytes, PageFile } from './page-files.ts';
import type { Viewers } from './viewers.ts';

export interface WindowGuestsOptions {
  readonly files: ReadonlyMap<string, PageFile>;
  readonly door: WindowDoor;
  readonly viewers: Viewers;
}

const maxTokenBytes = 512;
/** Downloads of large files at once, and how long one may take nothing. */
const [mostDownloads, downloadRestMs] = [16, 20_000] as const;
const [sessionPath, socketPath, devicePath] = ['/session', '/events', '/device'] as const;

/** Serves the window's page to browsers, and what happens to those with a session. */
export function createGuests({ files, door, viewers }: WindowGuestsOptions): Guests {
  const webSockets = new WebSocketServer({
    ...{ noServer: true, clientTracking: false, perMessageDeflate: false, maxPayload: maxCommandBytes },
  });
  const downloads = new Downloads();
  return {
    request(request, response, admit) {
      const shown = shownBy(request);
      const refusal = door.refusal(shown);
      if (refusal !== undefined) return refuse(response, refusal);
      if (request.url === sessionPath) return session(door, shown, request, response);
      void serveFile(files, shown, request, response, () => {
        if (downloads.begin(response)) admit();
      });
    },
    // Its credential is the join code: a session is not enough to compute, nor is it needed.
    device(request) {
      if (request.url !== devicePath) return false;
      const shown = shownBy(request);
      const refusal = door.refusal(shown) ?? door.foreignRefusal(shown);
      return refusal === undefined || { status: refusal.status === 429 ? 429 : 403, reason: refusal.reason };
    },
    upgrade(request, stream, head, admit) {
      const shown = shownBy(request);
      const refusal = door.refusal(shown) ?? door.foreignRefusal(shown) ?? withoutSession(door, shown);
      if (refusal !== undefined) return refuseUpgrade(stream, refusal);
      if (request.url !== socketPath) return refuseUpgrade(stream, { status: 400, reason: 'there is nothing here' });
      webSockets.handleUpgrade(request, stream, head, (socket) => {
        admit();
        viewers.add(socket);
      });
    },
  };
}

function shownBy({ headers, socket }: IncomingMessage): Shown {
  const site = headers['sec-fetch-site'];
  const { remoteAddress, localAddress, localPort } = socket;
  return {
    ...{ host: headers.host, origin: headers.origin, cookie: headers.cookie },
    site: Array.isArray(site) ? site[0] : site,
    ...{ remoteAddress, localAddress, localPort },
  };
}

function withoutSession(door: WindowDoor, shown: Shown): Refusal | undefined {
  return door.hasSession(shown) ? undefined : { status: 401, reason: 'open the link that was printed' };
}

/** POST: a token for a session. GET: whether there is a session. */
function session(door: WindowDoor, shown: Shown, request: IncomingMessage, response: ServerResponse): void {
  if (request.method === 'GET') {
    const refusal = withoutSession(door, shown);
    return refusal === undefined ? send(response, 204) : refuse(response, refusal);
  }
  if (request.method !== 'POST') return send(response, 405, 'text/plain', 'GET or POST\n', { allow: 'GET, POST' });
  const foreign = door.foreignRefusal(shown);
  if (foreign !== undefined) return refuse(response, foreign);
  const pieces: Buffer[] = [];
  let length = 0;
  request.on('data', (piece: Buffer) => {
    length += piece.length;
    if (length > maxTokenBytes) request.destroy();
    else pieces.push(piece);
  });
  request.on('error', () => {});
  request.on('end', () => {
    const verdict = door.exchange(Buffer.concat(pieces).toString('utf8'), shown);
    if ('cookie' in verdict) send(response, 204, undefined, undefined, { 'set-cookie': verdict.cookie });
    else refuse(response, verdict);
  });
}

async function serveFile(
  files: ReadonlyMap<string, PageFile>,
  shown: Shown,
  request: IncomingMessage,
  response: ServerResponse,
  onLarge: () => void,
): Promise<void> {
  if (request.method !== 'GET' && request.method !== 'HEAD')
    return send(response, 405, 'text/plain', 'GET only\n', { allow: 'GET, HEAD' });
  const file = files.get(request.url ?? '');
  if (file === undefined) return send(response, 404, 'text/plain', 'there is nothing here\n');
  let bytes: FileBytes;
  try {
    bytes = await file.read();
  } catch (error) {
    return send(response, 503, 'text/plain', `${error instanceof Error ? error.message : 'it cannot be read'}\n`);
  }
  const { plain, large } = bytes;
  const headers = policy(file, shown, request);
  const body = (chosen: Uint8Array): Uint8Array | undefined => (request.method === 'HEAD' ? undefined : chosen);
  if (large === undefined) return send(response, 200, file.type, body(plain), headers);
  // It is asked for again each time, and sent only where it is another.
  Object.assign(headers, { 'cache-control': 'private, no-cache', etag: large.tag, vary: 'accept-encoding' });
  if (request.headers['if-none-match'] === large.tag) return send(response, 304, undefined, undefined, headers);
  onLarge();
  const isPacked = /\bgzip\b/.test(String(request.headers['accept-encoding'] ?? ''));
  if (isPacked) headers['content-encoding'] = 'gzip';
  send(response, 200, file.type, body(isPacked ? large.gzip : plain), headers);
}

/**
 * Large files on their way: so many connections at once have longer than a caller without a credential otherwise has,
 * as long as they take something.
 */
class Downloads {
  #count = 0;

  /** False: there are too many, and this one has the usual time. */
  begin(response: ServerResponse): boolean {
    if (this.#count >= mostDownloads) return false;
    this.#count++;
    response.once('close', () => this.#count--);
    response.setTimeout(downloadRestMs, () => response.destroy());
    return true;
  }
}

/** Nothing but this server's own files and its WebSocket; no frame around it. Only what computes may compile. */
function policy(
  file: Pick<PageFile, 'policy'>,
  { host = '' }: Shown,
  { socket }: IncomingMessage,
): Record<string, string> {
  const isEncrypted = socket instanceof TLSSocket;
  const webSocket = `${isEncrypted ? 'wss' : 'ws'}://${host}`;
  const scripts = file.policy === 'compute' ? "'self' 'wasm-unsafe-eval'" : "'self'";
  const sources = [
    `default-src 'none'; script-src ${scripts}; style-src 'self'; img-src 'self'`,
    ...(file.policy === 'look' ? [] : ["worker-src 'self'"]),
    `connect-src 'self' ${webSocket}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'`,
  ];
  return {
    'content-security-policy': sources.join('; '),
    // Browsers take these from pages that nobody can have changed on the way, and complain of them from others.
    ...(isEncrypted || /^(localhost|127\.|\[::1\])/.test(host)
      ? { 'cross-origin-opener-policy': 'same-origin', 'cross-origin-embedder-policy': 'require-corp' }
      : {}),
    'permissions-policy': 'camera=(), microphone=(), geolocation=()',
  };
}

function refuse(response: ServerResponse, { status, reason }: Refusal): void {
  send(response, status, 'text/plain', `${reason}\n`);
}

function send(
  response: ServerResponse,
  status: number,
  type?: string,
  body?: string | Uint8Array,
  headers: Readonly<Record<string, string>> = {},
): void {
  response.writeHead(status, {
    'cache-control': 'no-store',
    'x-content-type-options': 'nosniff',
    'referrer-policy': 'no-referrer',
    'cross-origin-resource-policy': 'same-origin',
    ...(type === undefined ? {} : { 'content-type': type }),
    ...(body === undefined ? {} : { 'content-length': Buffer.byteLength(body) }),
    ...headers,
  });
  response.end(body);
}

function refuseUpgrade(stream: Duplex, { status, reason }: Refusal): void {
  const lines = [`HTTP/1.1 ${status} Refused`, 'connection: close', 'content-type: text/plain'];
  stream.on('error', () => {});
  stream.end(`${[...lines, `content-length: ${reason.length}`].join('\r\n')}\r\n\r\n${reason}`, () => stream.destroy());
}
