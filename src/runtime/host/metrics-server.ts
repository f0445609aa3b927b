// GET /metrics of a training run, at an address of its own.

import { createServer, type IncomingMessage, type RequestListener, type ServerResponse } from 'node:http';
import { createServer as createTlsServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { InputError } from '../../errors.ts';
import { prometheusType } from '../run/prometheus-text.ts';
import { isEncrypted } from './security/admission.ts';
import { bearerToken, showsToken } from './security/bearer-token.ts';
import { httpCertificate } from './security/http-certificate.ts';

export interface MetricsServerOptions {
  readonly host: string;
  /** 0: a free one. */
  readonly port: number;
  /** Unencrypted beyond this machine. */
  readonly insecure: boolean;
  /** What callers show. Default: nothing on this machine, beyond it one that is made. */
  readonly token?: string;
  metrics(): string;
}

export interface MetricsServer {
  readonly url: string;
  readonly token: string | undefined;
  /** What callers trust, where answers are encrypted. */
  readonly authorityFile: string | undefined;
  close(): Promise<void>;
}

const requestTimeoutMs = 10_000;
const mostConnections = 64;

/** Listens. Rejects with InputError where the address is taken or is not of this machine, or the token is too short. */
export async function startMetricsServer(options: MetricsServerOptions): Promise<MetricsServer> {
  const { host, port } = options;
  const token = bearerToken(host, options.token);
  const certificate = isEncrypted(options) ? await httpCertificate({ host }) : undefined;
  const listener: RequestListener = (request, response) => answer(request, response, token, options.metrics);
  const limits = { requestTimeout: requestTimeoutMs, headersTimeout: requestTimeoutMs };
  const server =
    certificate === undefined
      ? createServer(limits, listener)
      : createTlsServer({ ...limits, cert: certificate.cert, key: certificate.key }, listener);
  server.maxConnections = mostConnections;
  await new Promise<void>((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) =>
      reject(
        new InputError(
          `Nobody can listen on ${host}:${port} (${error.code ?? error.message}): choose another --metrics.`,
        ),
      ),
    );
    server.listen(port, host, resolve);
  });
  // A run that is over does not stay for whoever asks.
  server.unref();
  const { port: found } = server.address() as AddressInfo;
  const shown = host.includes(':') ? `[${host}]` : host;
  return {
    url: `${certificate === undefined ? 'http' : 'https'}://${shown}:${found}/metrics`,
    token,
    authorityFile: certificate?.authorityFile,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

function answer(
  request: IncomingMessage,
  response: ServerResponse,
  token: string | undefined,
  metrics: () => string,
): void {
  const refuse = (status: number, reason: string, headers: Readonly<Record<string, string>> = {}): void => {
    response.writeHead(status, { 'content-type': 'text/plain', connection: 'close', ...headers });
    response.end(`${reason}\n`);
  };
  if (!showsToken(request, token))
    return refuse(401, 'Show the token: Authorization: Bearer TOKEN.', { 'www-authenticate': 'Bearer' });
  if ((request.url ?? '').split('?', 1)[0] !== '/metrics') return refuse(404, 'There is nothing here but /metrics.');
  if (request.method !== 'GET' && request.method !== 'HEAD')
    return refuse(405, 'Metrics are read by GET.', { allow: 'GET, HEAD' });
  const body = metrics();
  response.writeHead(200, { 'content-type': prometheusType, 'content-length': Buffer.byteLength(body) });
  response.end(request.method === 'HEAD' ? undefined : body);
}
