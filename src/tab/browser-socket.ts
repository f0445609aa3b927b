// A browser's WebSocket, as far as a worker in a tab needs it, and what links need to make of it: a wire of messages to
// the coordinator, a channel of bytes to a peer. The package `ws` has the same interface, so that tests do without a
// browser.

import { type Clock, systemClock } from '../clock.ts';
import { InputError, ProtocolError, RunError } from '../errors.ts';
import type { ByteChannel } from '../transport/byte-channel.ts';
import { encodeHandshake, type Hello, parseAnswer, type Welcome } from '../transport/handshake.ts';
import type { Link, LinkEnd } from '../transport/link.ts';
import { WireLink } from '../transport/wire-link.ts';

/** The WebSocket of a browser. */
export interface BrowserSocket {
  binaryType: string;
  readonly readyState: number;
  readonly bufferedAmount: number;
  onopen: ((event: never) => unknown) | null;
  onmessage: ((event: never) => unknown) | null;
  onclose: ((event: never) => unknown) | null;
  onerror: ((event: never) => unknown) | null;
  send(data: string | Uint8Array<ArrayBuffer>): void;
  close(code?: number, reason?: string): void;
}

/** Opens a WebSocket to an address. */
export type OpenSocket = (url: string) => BrowserSocket;

interface SocketEvents {
  message(data: string | Uint8Array): void;
  closed(code: number, reason: string): void;
}

const [openState, cleanCode, faultCode] = [1, 1000, 4400] as const;
const maxReasonCharacters = 40;
/** Bytes that may wait in the browser before those that send have to. */
const waitingBytes = 2 ** 18;
/** How often a browser is asked how much waits: it does not say by itself. */
const askEveryMs = 2;
/** How long a server may take for its answer, and to close. */
const [answerMs, closeMs] = [10_000, 3_000] as const;

/** What was dialled: the open socket, and the server's welcome. */
export interface Dialled {
  readonly socket: HeardSocket;
  readonly welcome: Welcome;
}

/**
 * Dials the coordinator and says hello. Rejects with InputError where it refuses, and with RunError where it does not
 * answer, or may take the same hello later.
 */
export function dial(open: OpenSocket, url: string, hello: Hello, clock: Clock = systemClock): Promise<Dialled> {
  return new Promise((resolve, reject) => {
    const raw = open(url);
    raw.binaryType = 'arraybuffer';
    const socket = new HeardSocket(raw);
    const fail = (reason: string, isPassing = true): void => {
      cancel();
      socket.listen(undefined);
      raw.close();
      reject(isPassing ? new RunError(reason) : new InputError(reason));
    };
    const cancel = clock.after(answerMs, () => fail(`the run did not answer within ${answerMs / 1000} s`));
    raw.onopen = () => raw.send(encodeHandshake(hello));
    socket.listen({
      closed: (_code, reason) => fail(reason || 'the run cannot be reached, or does not take this page'),
      message(data) {
        try {
          const answer = parseAnswer(typeof data === 'string' ? new TextEncoder().encode(data) : data);
          if (answer.kind === 'refused') return fail(answer.reason, answer.retry);
          cancel();
          socket.listen(undefined);
          resolve({ socket, welcome: answer });
        } catch (error) {
          if (!(error instanceof ProtocolError)) throw error;
          fail(error.message);
        }
      },
    });
  });
}

/** A socket of which somebody always hears: what comes while nobody listens is kept. */
class HeardSocket {
  readonly raw: BrowserSocket;
  #events: SocketEvents | undefined;
  readonly #kept: ((events: SocketEvents) => void)[] = [];

  constructor(raw: BrowserSocket) {
    this.raw = raw;
    raw.onerror = () => {}; // 'close' follows
    raw.onmessage = ({ data }: { readonly data: unknown }) =>
      this.#tell((events) => events.message(typeof data === 'string' ? data : new Uint8Array(data as ArrayBuffer)));
    raw.onclose = ({ code, reason }: { readonly code: number; readonly reason: string }) =>
      this.#tell((events) => events.closed(code, String(reason)));
  }

  #tell(event: (events: SocketEvents) => void): void {
    if (this.#events === undefined) this.#kept.push(event);
    else event(this.#events);
  }

  /** Undefined: nobody listens for now. */
  listen(events: SocketEvents | undefined): void {
    this.#events = events;
    while (this.#events !== undefined && this.#kept.length > 0) this.#kept.shift()?.(this.#events);
  }

  send(bytes: Uint8Array): void {
    if (this.raw.readyState === openState) this.raw.send(bytes as Uint8Array<ArrayBuffer>);
  }
}

/** Calls `done` when little waits in the socket. */
function whenTaken(socket: HeardSocket, clock: Clock, done: () => void): void {
  const { bufferedAmount, readyState } = socket.raw;
  if (bufferedAmount <= waitingBytes || readyState !== openState) queueMicrotask(done);
  else clock.after(askEveryMs, () => whenTaken(socket, clock, done));
}

/** A link over a socket that was just dialled. `isProven`: over TLS. */
export function socketLink({ socket, welcome }: Dialled, isProven: boolean, clock: Clock = systemClock): Link {
  let closing: LinkEnd | undefined;
  let cancelClose = (): void => {};
  const link = new WireLink(
    {
      isProven,
      send(messages, done) {
        for (const message of messages) socket.send(message);
        whenTaken(socket, clock, done);
      },
      close(end) {
        closing = end;
        socket.raw.close(end.clean ? cleanCode : faultCode, end.reason.slice(0, maxReasonCharacters));
        cancelClose = clock.after(closeMs, () => link.wireEnded(end));
      },
    },
    { peer: welcome.server, clock },
  );
  socket.listen({
    // A text is no message of this protocol: it is passed on as what it is, bytes that begin with no header.
    message: (data) => link.message(typeof data === 'string' ? new Uint8Array(0) : data),
    closed(code, reason) {
      cancelClose();
      const lost = closing ?? { clean: false, reason: 'the connection was lost' };
      link.wireEnded(code === cleanCode ? { clean: true, reason } : reason === '' ? lost : { clean: false, reason });
    },
  });
  return link;
}

/** A channel of bytes over a socket that was just dialled, to whomever the server has joined it with. */
export function socketChannel(socket: Dialled['socket'], clock: Clock = systemClock): ByteChannel {
  return {
    write(bytes, done) {
      socket.send(bytes);
      whenTaken(socket, clock, done);
    },
    receive(receiver) {
      socket.listen({
        message: (data) => receiver.bytes(typeof data === 'string' ? new Uint8Array(0) : data),
        closed: (_code, reason) => receiver.ended(reason || 'it was closed'),
      });
    },
    close: () => socket.raw.close(cleanCode),
  };
}
