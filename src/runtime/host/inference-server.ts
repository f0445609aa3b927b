// The Open Inference Protocol over HTTP: routes, limits, and who may ask. What a request means is read by
// run/open-inference.ts; what it waits for is run/request-batcher.ts. A request that is refused costs no more than its
// own bytes, up to the limit.

import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from 'node:http';
import { createServer as createTlsServer } from 'node:https';
import { type AddressInfo, Server as NetServer } from 'node:net';
import { InputError } from '../../errors.ts';
import type { Tensor } from '../../graph/tensor.ts';
import {
  type Encoded,
  encodeInferResponse,
  modelMetadata,
  modelVersion,
  parseInferRequest,
  type ServedModel,
  serverMetadata,
} from '../run/open-inference.ts';
import { prometheusType } from '../run/prometheus-text.ts';
import { Overloaded } from '../run/request-batcher.ts';
import { showsToken } from './security/bearer-token.ts';

export interface InferenceServerOptions {
  readonly host: string;
  /** 0: a free one. */
  readonly port: number;
  /** Absent: plain HTTP. */
  readonly tls?: { readonly cert: string; readonly key: string };
  /** What callers show as `Authorization: Bearer TOKEN`. Absent: everybody may ask. */
  readonly token?: string;
  readonly model: ServedModel;
  /** The package's. */
  readonly version: string;
  /** The most bytes of a body, and samples of a request. */
  readonly mostBytes: number;
  readonly mostSamples: number;
  /** How long a request may take to come, and its answer. */
  readonly timeoutMs: number;
  /** Whether requests can be answered. */
  isReady(): boolean;
  infer(inputs: readonly Tensor[], signal: AbortSignal): Promise<readonly Tensor[]>;
  metrics(): string;
  /** A request for inference has been answered. */
  onAnswered(status: number, seconds: number): void;
}

/** A server that listens. */
export interface InferenceServer {
  readonly url: string;
  /** Takes no connections any more, and one more request of each; resolves when all that came have been answered. */
  drain(): Promise<void>;
}

/** An answer that is no success. */
class Refusal extends Error {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;

  constructor(status: number, message: string, headers: Readonly<Record<string, string>> = {}) {
    super(message);
    this.status = status;
    this.headers = headers;
  }
}

/** Bodies that are read at the same time take no more than this many times the limit of one. */
const bodiesAtOnce = 16;
const headersTimeoutMs = 10_000;
const lookForLateMs = 1000;
/**
 * How long a connection may stay without a request. Longer than proxies and clients keep one, so that it is they who
 * close it: a request that crosses the close on its way is lost.
 */
const keepAliveMs = 75_000;
/** How long a connection without a request is kept when the server ends: one may be on its way. */
const crossingMs = 1_000;
const headerLengthName = 'inference-header-content-length';

/** Listens. Rejects with InputError where the address is taken or is not of this machine. */
export async function startInferenceServer(options: InferenceServerOptions): Promise<InferenceServer> {
  const { host, port, tls, timeoutMs } = options;
  const state = { isDraining: false, bodyBytes: 0 };
  const open = new OpenAnswers();
  const listener: RequestListener = (request, response) => {
    open.begin(response);
    void answer(options, state, request, response).finally(() => open.end(response));
  };
  const timeouts = {
    requestTimeout: timeoutMs,
    headersTimeout: Math.min(headersTimeoutMs, timeoutMs),
    keepAliveTimeout: keepAliveMs,
    // Node looks for late requests every 30 s unless told otherwise.
    connectionsCheckingInterval: Math.min(lookForLateMs, timeoutMs / 2),
  };
  const server =
    tls === undefined ? createServer(timeouts, listener) : createTlsServer({ ...timeouts, ...tls }, listener);
  await listening(server, host, port);
  let drained: Promise<void> | undefined;
  const drain = async (): Promise<void> => {
    state.isDraining = true;
    const closed = new Promise<void>((resolve) => server.once('close', resolve));
    // The close of an HTTP server ends connections without a request, too, which may have one on its way.
    NetServer.prototype.close.call(server);
    await Promise.race([closed, open.over()]);
    open.stop();
    server.closeAllConnections();
    server.close();
  };
  const { port: found } = server.address() as AddressInfo;
  const shown = host.includes(':') ? `[${host}]` : host;
  return {
    url: `${tls === undefined ? 'http' : 'https'}://${shown}:${found}`,
    drain() {
      drained ??= drain();
      return drained;
    },
  };
}

/** The answers that are owed. */
class OpenAnswers {
  readonly #open = new Set<ServerResponse>();
  #isLast = false;
  #timer: NodeJS.Timeout | undefined;
  #resolve = (): void => {};

  begin(response: ServerResponse): void {
    clearTimeout(this.#timer);
    this.#open.add(response);
    if (this.#isLast) response.setHeader('connection', 'close');
  }

  end(response: ServerResponse): void {
    this.#open.delete(response);
    this.#look();
  }

  /** From now on each answer is its connection's last; resolves when none has been owed for a while. */
  over(): Promise<void> {
    this.#isLast = true;
    for (const response of this.#open) if (!response.headersSent) response.setHeader('connection', 'close');
    return new Promise((resolve) => {
      this.#resolve = resolve;
      this.#look();
    });
  }

  stop(): void {
    clearTimeout(this.#timer);
  }

  #look(): void {
    if (this.#isLast && this.#open.size === 0) this.#timer = setTimeout(this.#resolve, crossingMs);
  }
}

function listening(server: Server, host: string, port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) =>
      reject(
        new InputError(
          error.code === 'EADDRINUSE'
            ? `Something else listens on ${host}:${port} already: end that, or choose another --listen.`
            : `Nobody can listen on ${host}:${port} (${error.code ?? error.message}): choose another --listen.`,
        ),
      ),
    );
    server.listen(port, host, resolve);
  });
}

interface ServerState {
  readonly isDraining: boolean;
  bodyBytes: number;
}

async function answer(
  options: InferenceServerOptions,
  state: ServerState,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  try {
    await route(options, state, request, response);
  } catch (error) {
    const refusal = refusalOf(error);
    if (response.destroyed || response.headersSent) return void response.destroy();
    // What is left of a body that is not wanted is not read.
    const isUnread = !request.complete;
    const headers = { ...refusal.headers, ...(isUnread || state.isDraining ? { connection: 'close' } : {}) };
    sendJson(response, refusal.status, { error: refusal.message }, headers);
    if (isUnread) response.once('finish', () => request.destroy());
  }
}

function refusalOf(error: unknown): Refusal {
  if (error instanceof Refusal) return error;
  if (error instanceof InputError) return new Refusal(400, error.message);
  if (error instanceof Overloaded) return new Refusal(429, error.message, { 'retry-after': '1' });
  return new Refusal(503, error instanceof Error ? error.message : 'The request cannot be answered.');
}

const modelPath = /^\/v2\/models\/([^/]+)(?:\/versions\/([^/]+))?(?:\/(ready|infer))?$/;

async function route(
  options: InferenceServerOptions,
  state: ServerState,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const path = (request.url ?? '').split('?', 1)[0] as string;
  const isAnswering = options.isReady();
  const isReady = !state.isDraining && isAnswering;
  // Whether a process lives, and takes requests, is no secret.
  if (path === '/v2/health/live') return get(request, () => sendJson(response, 200, { live: true }));
  if (path === '/v2/health/ready')
    return get(request, () => sendJson(response, isReady ? 200 : 503, { ready: isReady }));
  checkToken(options, request);
  if (path === '/metrics') return get(request, () => sendText(response, options.metrics()));
  if (path === '/v2' || path === '/v2/')
    return get(request, () => sendJson(response, 200, serverMetadata(options.version)));
  const [, name, version, what] = modelPath.exec(path) ?? [];
  if (name === undefined) throw new Refusal(404, `There is nothing at ${path.slice(0, 200)}.`);
  if (decoded(name) !== options.model.name || (version ?? modelVersion) !== modelVersion)
    throw new Refusal(
      404,
      `There is no such model or version: this is ${options.model.name}, version ${modelVersion}.`,
    );
  if (what === 'ready')
    return get(request, () => sendJson(response, isReady ? 200 : 503, { name: options.model.name, ready: isReady }));
  if (what === undefined) return get(request, () => sendJson(response, 200, modelMetadata(options.model)));
  if (request.method !== 'POST') throw new Refusal(405, 'Inference is asked for by POST.', { allow: 'POST' });
  const startMs = performance.now();
  response.once('close', () => options.onAnswered(response.statusCode, (performance.now() - startMs) / 1000));
  // Who has a connection may not know yet that this is the end.
  if (!isAnswering) throw new Refusal(503, 'The pipeline is not ready.', { 'retry-after': '1' });
  await infer(options, state, request, response);
}

function get(request: IncomingMessage, send: () => void): void {
  if (request.method !== 'GET' && request.method !== 'HEAD')
    throw new Refusal(405, 'This is read by GET.', { allow: 'GET' });
  send();
}

function decoded(text: string): string | undefined {
  try {
    return decodeURIComponent(text);
  } catch {
    return undefined; // no encoding of a name
  }
}

function checkToken({ token }: InferenceServerOptions, request: IncomingMessage): void {
  if (!showsToken(request, token))
    throw new Refusal(401, 'Show the token: Authorization: Bearer TOKEN.', { 'www-authenticate': 'Bearer' });
}

async function infer(
  options: InferenceServerOptions,
  state: ServerState,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const { model, mostSamples, timeoutMs } = options;
  if (request.headers['content-encoding'] !== undefined && request.headers['content-encoding'] !== 'identity')
    throw new Refusal(415, 'Bodies are taken uncompressed.');
  const body = await bodyOf(options, state, request);
  const headerLength = request.headers[headerLengthName];
  const wanted = parseInferRequest(
    { body, headerLength: Array.isArray(headerLength) ? headerLength[0] : headerLength },
    model,
    mostSamples,
  );
  const given = new AbortController();
  const onClose = (): void => given.abort();
  response.once('close', onClose);
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      // First the reason: what is given up rejects too, and the first rejection is the answer.
      reject(new Refusal(504, `There was no answer within ${timeoutMs / 1000} s.`));
      given.abort();
    }, timeoutMs);
  });
  try {
    const answered = options.infer(wanted.inputs, given.signal);
    answered.catch(() => {}); // seen by the race, unless it was too late
    send(response, encodeInferResponse(model, wanted, await Promise.race([answered, late])));
  } finally {
    clearTimeout(timer);
    response.off('close', onClose);
  }
}

/** Reads a body up to the limit; together, bodies that are read take a few times that. */
async function bodyOf(
  { mostBytes }: InferenceServerOptions,
  state: ServerState,
  request: IncomingMessage,
): Promise<Uint8Array> {
  const tooLarge = (): Refusal => new Refusal(413, `A body has at most ${mostBytes} bytes here.`);
  const announced = Number(request.headers['content-length'] ?? 0);
  if (announced > mostBytes) throw tooLarge();
  if (state.bodyBytes + announced > bodiesAtOnce * mostBytes)
    throw new Refusal(503, 'Too many bodies are being read.', { 'retry-after': '1' });
  const pieces: Uint8Array[] = [];
  let length = 0;
  try {
    for await (const piece of request as AsyncIterable<Uint8Array>) {
      length += piece.length;
      state.bodyBytes += piece.length;
      if (length > mostBytes) throw tooLarge();
      if (state.bodyBytes > bodiesAtOnce * mostBytes)
        throw new Refusal(503, 'Too many bodies are being read.', { 'retry-after': '1' });
      pieces.push(piece);
    }
  } finally {
    state.bodyBytes -= length;
  }
  return Buffer.concat(pieces);
}

function send(response: ServerResponse, { body, headerLength }: Encoded): void {
  response.writeHead(200, {
    'content-type': headerLength === undefined ? 'application/json' : 'application/octet-stream',
    'content-length': body.length,
    ...(headerLength === undefined ? {} : { 'Inference-Header-Content-Length': headerLength }),
  });
  response.end(body);
}

function sendJson(
  response: ServerResponse,
  status: number,
  value: unknown,
  headers: Readonly<Record<string, string>> = {},
): void {
  const body = JSON.stringify(value);
  response.writeHead(status, {
    'content-type': 'application/json',
    'content-length': Buffer.byteLength(body),
    ...headers,
  });
  response.end(response.req.method === 'HEAD' ? undefined : body);
}

function sendText(response: ServerResponse, body: string): void {
  response.writeHead(200, { 'content-type': prometheusType, 'content-length': Buffer.byteLength(body) });
  response.end(response.req.method === 'HEAD' ? undefined : body);
}
