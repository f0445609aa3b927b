// A Link over a channel of bytes that others can read and change, such as the coordinator's relay: the messages of
// wire-link.ts in sealed records (sealed-handshake.ts). It is for ends that cannot have TLS, which is what scripts in
// a browser are.
//
//   ── 1 handshake ──▶   ◀── 1 handshake ──   then either way: 2 a message, 3 the end with its reason

import { type Clock, systemClock } from '../clock.ts';
import { ProtocolError, RunError } from '../errors.ts';
import type { ByteChannel } from './byte-channel.ts';
import type { Link, LinkEnd } from './link.ts';
import { maxMessageBytes, maxTrailingBytes } from './piece.ts';
import { RecordReader, recordHead, type StreamRecord } from './records.ts';
import {
  type Aead,
  answerHandshake,
  beginHandshake,
  handshakeBytes,
  type SealedKeys,
  type SealedOptions,
} from './sealed-handshake.ts';
import { type LinkLimits, WireLink } from './wire-link.ts';

export interface SealedLinkOptions {
  /** This end's name, and the peer's: both ends must mean the same two. */
  readonly name: string;
  readonly peer: string;
  /** Whether this end speaks first. */
  readonly isInitiator: boolean;
  /** What both ends share: see sealed-handshake.ts. */
  readonly secret: string;
  /** Default: in JavaScript. */
  readonly aead?: Aead;
  /** Default: defaultLinkLimits. */
  readonly limits?: LinkLimits;
  /** Default: the system's. */
  readonly clock?: Clock;
  /** From here to the peer's part of the handshake. Default 10 s. */
  readonly timeoutMs?: number;
}

const kinds = { handshake: 1, message: 2, end: 3 } as const;
const sealBytes = 16;
/** The longest record: a message of wire-link.ts, sealed. */
export const maxRecordBytes: number = Math.max(maxMessageBytes, maxTrailingBytes) + sealBytes;
/** How long the other end may take to close, after this one has said the end, and how long if it has made a mistake. */
const [closeMs, faultCloseMs] = [3_000, 500] as const;
const maxReasonBytes = 123;

/**
 * Shakes hands over a channel, which belongs to the link from here on. Rejects with RunError where the peer does not
 * answer, or has another secret; the channel is closed then.
 */
export function sealLink(channel: ByteChannel, options: SealedLinkOptions): Promise<Link> {
  return new SealedChannel(channel, options).link;
}

class SealedChannel {
  readonly link: Promise<Link>;
  readonly #channel: ByteChannel;
  readonly #options: SealedLinkOptions;
  readonly #clock: Clock;
  readonly #records = new RecordReader(maxRecordBytes);
  readonly #sealing: SealedOptions;
  readonly #begun: ReturnType<typeof beginHandshake> | undefined;
  #keys: SealedKeys | undefined;
  #wireLink: WireLink | undefined;
  #cancel: () => void;
  #resolve: (link: Link) => void = () => {};
  #reject: (error: Error) => void = () => {};
  /** Why the link ends: what this end, or the other, has said. */
  #end: LinkEnd | undefined;
  /** The channel is closing, or has closed. */
  #isClosing = false;

  constructor(channel: ByteChannel, options: SealedLinkOptions) {
    const { name, peer, isInitiator, clock = systemClock, timeoutMs = 10_000 } = options;
    this.#channel = channel;
    this.#options = options;
    this.#clock = clock;
    const context = JSON.stringify(['asteroid 1', ...(isInitiator ? [name, peer] : [peer, name])]);
    this.#sealing = { context, secret: options.secret, ...(options.aead && { aead: options.aead }) };
    this.link = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    this.#cancel = clock.after(timeoutMs, () => this.#fail(`${peer} did not answer within ${timeoutMs / 1000} s`));
    if (isInitiator) {
      this.#begun = beginHandshake(this.#sealing);
      this.#write(kinds.handshake, this.#begun.message);
    }
    channel.receive({ bytes: (bytes) => this.#take(bytes), ended: (reason) => this.#ended(reason) });
  }

  #take(bytes: Uint8Array): void {
    if (this.#end?.clean === false) return;
    try {
      this.#records.take(bytes, (record) => this.#record(record));
    } catch (error) {
      this.#fail(error instanceof Error ? error.message : String(error));
    }
  }

  #record(record: StreamRecord): void {
    if (this.#isClosing) return;
    if (this.#keys === undefined) return this.#shake(record);
    const message = this.#keys.open(record.body, record.head);
    if (record.kind === kinds.end) this.#close(endIn(message));
    else if (record.kind !== kinds.message)
      throw new ProtocolError(`a record has the kind ${record.kind}, which does not exist`);
    else if (this.#end === undefined) this.#wireLink?.message(message);
  }

  #shake({ kind, body }: StreamRecord): void {
    if (kind !== kinds.handshake || body.length !== handshakeBytes)
      throw new ProtocolError(`${this.#options.peer} sent no handshake`);
    const { peer, limits } = this.#options;
    if (this.#begun === undefined) {
      const { answer, keys } = answerHandshake(body, this.#sealing);
      this.#keys = keys;
      this.#write(kinds.handshake, answer);
    } else {
      this.#keys = this.#begun.finish(body);
    }
    this.#cancel();
    this.#wireLink = new WireLink(
      {
        isProven: true,
        send: (messages, done) => this.#send(messages, done),
        close: (end) => this.#sayEnd(end),
      },
      { peer, clock: this.#clock, ...(limits && { limits }) },
    );
    this.#resolve(this.#wireLink);
  }

  #send(messages: readonly Uint8Array[], done: () => void): void {
    for (const [index, message] of messages.entries())
      this.#seal(kinds.message, message, index === messages.length - 1 ? done : undefined);
  }

  /** The other end closes the channel when it has heard this. */
  #sayEnd(end: LinkEnd): void {
    if (this.#end !== undefined) return;
    this.#end = end;
    const reason = shortened(end.reason);
    const body = new Uint8Array(1 + reason.length);
    body[0] = end.clean ? 1 : 0;
    body.set(reason, 1);
    this.#seal(kinds.end, body);
    this.#cancel = this.#clock.after(end.clean ? closeMs : faultCloseMs, () => this.#close(end));
  }

  #seal(kind: number, message: Uint8Array, done: () => void = () => {}): void {
    const head = recordHead(kind, message.length + sealBytes);
    const sealed = (this.#keys as SealedKeys).seal(message, head);
    this.#channel.write(head, () => {});
    this.#channel.write(sealed, done);
  }

  #write(kind: number, body: Uint8Array): void {
    this.#channel.write(recordHead(kind, body.length), () => {});
    this.#channel.write(body, () => {});
  }

  #close(end: LinkEnd): void {
    this.#end ??= end;
    this.#isClosing = true;
    this.#cancel();
    this.#channel.close();
    this.#cancel = this.#clock.after(closeMs, () => this.#ended(end.reason));
  }

  #fail(reason: string): void {
    if (this.#end !== undefined) return;
    this.#cancel();
    const end = { clean: false, reason };
    if (this.#wireLink !== undefined) return this.#sayEnd(end);
    this.#close(end);
    this.#reject(new RunError(reason));
  }

  /** The channel has ended. */
  #ended(reason: string): void {
    this.#cancel();
    const end = this.#end ?? { clean: false, reason: `the connection was lost: ${reason}` };
    this.#end = end;
    this.#isClosing = true;
    if (this.#wireLink === undefined) this.#reject(new RunError(end.reason));
    else this.#wireLink.wireEnded(end);
  }
}

/** A reason as UTF-8, cut between two characters where it is too long. */
function shortened(reason: string): Uint8Array {
  const bytes = new TextEncoder().encode(reason);
  if (bytes.length <= maxReasonBytes) return bytes;
  const cut = new TextDecoder().decode(bytes.subarray(0, maxReasonBytes - 3)).replace(/\uFFFD*$/, '');
  return new TextEncoder().encode(`${cut}…`);
}

/** The end that a peer has said. Throws ProtocolError. */
function endIn(message: Uint8Array): LinkEnd {
  if (message.length === 0 || message.length > maxReasonBytes + 1) throw new ProtocolError('an end is malformed');
  return { clean: message[0] === 1, reason: new TextDecoder().decode(message.subarray(1)) };
}
