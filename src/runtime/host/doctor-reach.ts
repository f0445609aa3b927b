// Whether what is advertised leads to this device, and whether a coordinator is reached from it: two of the doctor's
// checks (doctor.ts).

import { randomBytes } from 'node:crypto';
import { type AddressInfo, connect, createServer, type Server } from 'node:net';
import { RunError } from '../../errors.ts';
import { serverCertificates } from '../../transport/node/tls/chain.ts';
import type { AdvertisedAddress } from './addresses.ts';

/** What was found, and the fix if something is wrong. */
export interface Reach {
  readonly state: 'fine' | 'warning' | 'wrong';
  readonly text: string;
}

const dialMs = 3_000;
const tokenBytes = 16;

/**
 * Listens where a coordinator or worker would, and dials what is advertised. `port` 0: the advertised one, or any free
 * one.
 */
export async function advertisedAddress(
  { host, port: seenPort }: AdvertisedAddress,
  place: { readonly host: string; readonly port: number },
): Promise<Reach> {
  const token = randomBytes(tokenBytes).toString('hex');
  const server = await answerWith(token, place.host, place.port === 0 ? (seenPort ?? 0) : place.port);
  const own = server === undefined ? place.port : (server.address() as AddressInfo).port;
  const shown = `port ${seenPort ?? own} of ${host}`;
  const heard = await answerAt(host, seenPort ?? own, token.length);
  server?.close();
  if (server === undefined && heard.failure === undefined)
    return {
      state: 'warning',
      text: `${shown} is answered, by whom is not known, since port ${own} is in use here: stop what uses it to try`,
    };
  if (heard.failure === undefined && heard.text === token)
    return { state: 'fine', text: `${shown} leads to this device, dialled from here` };
  if (heard.failure === undefined)
    return {
      state: 'wrong',
      text: `${shown} is answered by another machine or program: lead that port to port ${own} of this device`,
    };
  return {
    state: 'warning',
    text:
      `${shown} does not lead to this device, dialled from here (${heard.failure}): lead that port to port ${own} of ` +
      'this device and open its firewall; where a router only leads in from outside, try asteroid doctor --join from ' +
      'another machine',
  };
}

/** A server that says the token to each caller; undefined where it cannot listen. */
function answerWith(token: string, host: string, port: number): Promise<Server | undefined> {
  return new Promise((resolve) => {
    const server = createServer((socket) => {
      socket.on('error', () => {});
      socket.end(token);
    });
    server.once('error', () => resolve(undefined));
    server.listen(port, host, () => resolve(server));
  });
}

/** The first characters that are said at an address, or why nothing is. */
function answerAt(
  host: string,
  port: number,
  length: number,
): Promise<{ readonly text: string; readonly failure?: string }> {
  return new Promise((resolve) => {
    let text = '';
    let isConnected = false;
    const socket = connect({ host, port });
    const end = (failure?: string): void => {
      clearTimeout(timer);
      socket.destroy();
      resolve({ text, ...(failure === undefined ? {} : { failure }) });
    };
    // Whoever says nothing is there all the same.
    const timer = setTimeout(() => end(isConnected ? undefined : 'no answer'), dialMs);
    socket.once('connect', () => {
      isConnected = true;
    });
    socket.setEncoding('latin1').on('data', (part: string) => {
      text = (text + part).slice(0, length + 1);
      if (text.length >= length) end();
    });
    socket.once('error', (error: NodeJS.ErrnoException) =>
      end(isConnected ? undefined : (error.code ?? error.message)),
    );
    socket.once('end', () => end());
  });
}

/** Reaches a coordinator as a worker would, and sends nothing but the beginning of TLS. */
export async function coordinatorReached(url: URL): Promise<Reach> {
  try {
    if (url.protocol === 'wss:') {
      await serverCertificates(url, { timeoutMs: dialMs });
      return { state: 'fine', text: `${url.origin} is reached from here, and speaks TLS 1.3` };
    }
    const { failure } = await answerAt(url.hostname.replace(/^\[|\]$/g, ''), Number(url.port) || 80, 1);
    return failure === undefined
      ? { state: 'fine', text: `${url.origin} is reached from here, and its links are not encrypted` }
      : {
          state: 'wrong',
          text: `${url.origin} cannot be reached (${failure}): check the address and the network`,
        };
  } catch (error) {
    if (!(error instanceof RunError)) throw error;
    return { state: 'wrong', text: error.message };
  }
}
