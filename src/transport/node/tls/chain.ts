// The certificates that a server shows, before anybody trusts it: looked at to find the key that a join code or an
// earlier visit names. Nothing is sent but the handshake.

import { isIP } from 'node:net';
import { connect, type DetailedPeerCertificate } from 'node:tls';
import { RunError } from '../../../errors.ts';

const maxChainLength = 8;

/** The certificates of the server at a wss:// URL in PEM, its own first. Throws RunError where none answers in time. */
export function serverCertificates(
  url: URL,
  options: { readonly timeoutMs?: number; readonly signal?: AbortSignal } = {},
): Promise<readonly string[]> {
  const { timeoutMs = 10_000, signal } = options;
  const host = url.hostname.replace(/^\[|\]$/g, '');
  return new Promise((resolve, reject) => {
    // Not a link: the certificates are returned, and their user checks each against what it knows.
    const socket = connect({
      host,
      port: Number(url.port) || 443,
      minVersion: 'TLSv1.3',
      rejectUnauthorized: false,
      ...(isIP(host) === 0 ? { servername: host } : {}),
      ...(signal === undefined ? {} : { signal }),
    });
    const fail = (reason: string): void => {
      clearTimeout(timer);
      socket.destroy();
      reject(new RunError(reason));
    };
    const timer = setTimeout(() => fail(`${url.origin} did not answer within ${timeoutMs / 1000} s`), timeoutMs);
    socket.once('secureConnect', () => {
      clearTimeout(timer);
      const chain = chainOf(socket.getPeerCertificate(true));
      socket.destroy();
      resolve(chain);
    });
    socket.on('error', (error: Error & { readonly code?: string }) => fail(unreachable(url, error)));
    socket.once('close', () => fail(`${url.origin} ended the connection: another program seems to listen there`));
  });
}

function unreachable(url: URL, error: Error & { readonly code?: string }): string {
  const code = error.code ?? error.message;
  if (code === 'ABORT_ERR') return `connecting to ${url.origin} was cancelled`;
  if (code === 'ECONNREFUSED') return `nothing listens at ${url.origin}: start it there first, or check the address`;
  if (/SSL|TLS|PROTO/.test(code))
    return `${url.origin} does not speak TLS 1.3: another program, or a run with --insecure, listens there`;
  return `${url.origin} cannot be reached (${code}): check the address and the network`;
}

function chainOf(first: DetailedPeerCertificate): string[] {
  const found: string[] = [];
  for (
    let certificate: DetailedPeerCertificate | undefined = first;
    certificate?.raw !== undefined;
    certificate = certificate.issuerCertificate
  ) {
    const pem = pemOf(certificate.raw);
    if (found.includes(pem) || found.length === maxChainLength) break;
    found.push(pem);
  }
  return found;
}

/** A certificate's bytes in PEM. */
export function pemOf(der: Uint8Array): string {
  const text = Buffer.from(der).toString('base64');
  return `-----BEGIN CERTIFICATE-----\n${text.replace(/.{64}(?=.)/g, '$&\n')}\n-----END CERTIFICATE-----\n`;
}
