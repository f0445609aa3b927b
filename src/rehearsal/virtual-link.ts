// A Link over the virtual network. Frames are copied as if they had been encoded, and travel as objects: ten thousand
// runs have no time for checksums, and the encoding is tested on the wire (transport/). At a damaged frame the receiver
// ends the link.

import { RunError } from '../errors.ts';
import type { Tensor } from '../graph/tensor.ts';
import type { Frame, Link, LinkEnd, Priority } from '../transport/link.ts';
import type { Pipe } from './virtual-pipe.ts';
import type { VirtualProcess } from './virtual-process.ts';

/** About the bytes of a header. */
const headerBytes = 64;
/** How long `close` waits for the peer to take the rest, and to answer. */
const flushMs = 10_000;
const answerMs = 3_000;

const lanes: Readonly<Record<Priority, number>> = { control: 0, pipeline: 1, bulk: 2 };

export interface VirtualLinkOptions {
  readonly windowBytes: number;
  readonly taken: (frame: Frame) => readonly Frame[];
}

/** One end. */
export class VirtualLink implements Link {
  readonly peer: string;
  readonly ended: Promise<LinkEnd>;
  readonly #owner: VirtualProcess;
  readonly #outgoing: Pipe;
  readonly #options: VirtualLinkOptions;
  #other: VirtualLink | undefined;
  #settle: (end: LinkEnd) => void = () => {};
  #state: 'open' | 'closing' | 'ended' = 'open';
  #end: LinkEnd | undefined;
  #isNextDamaged = false;
  #cancelClose: () => void = () => {};
  #handler: ((frame: Frame) => void) | undefined;
  #backlog: Frame[] = [];
  readonly #waiting: {
    readonly read: () => Frame;
    readonly resolve: () => void;
    readonly reject: (error: Error) => void;
  }[] = [];

  constructor(owner: VirtualProcess, peer: VirtualProcess, outgoing: Pipe, options: VirtualLinkOptions) {
    this.peer = peer.name;
    this.#owner = owner;
    this.#outgoing = outgoing;
    this.#options = options;
    this.ended = new Promise((resolve) => {
      this.#settle = resolve;
    });
    outgoing.onArrival = () => owner.run(() => this.#admit());
  }

  /** Called once, with the end at the peer. */
  connect(other: VirtualLink): void {
    this.#other = other;
  }

  /** The end at the peer. */
  get other(): VirtualLink | undefined {
    return this.#other;
  }

  send(frame: Frame, priority: Priority = 'pipeline'): Promise<void> {
    if (this.#state !== 'open') return handled(Promise.reject(this.#endedError()));
    // Read only when the sender may reuse its memory: a sender that changes it too early is detected.
    let copy: Frame | undefined;
    const read = (): Frame => {
      copy ??= copied(frame);
      return copy;
    };
    let byteCount = headerBytes;
    if (frame.tensors !== undefined) for (const { data } of frame.tensors) byteCount += data.byteLength;
    this.#outgoing.carry(lanes[priority], byteCount, () => this.#other?.take(read()));
    if (this.#waiting.length === 0 && this.#outgoing.byteCount <= this.#options.windowBytes) {
      read();
      return Promise.resolve();
    }
    return handled(new Promise((resolve, reject) => this.#waiting.push({ read, resolve, reject })));
  }

  receive(handler: (frame: Frame) => void): void {
    this.#handler = handler;
    if (this.#backlog.length > 0) queueMicrotask(() => this.#drain());
  }

  queuedBytes(): number {
    return this.#outgoing.byteCount;
  }

  async close(reason: string): Promise<void> {
    if (this.#state === 'open') {
      this.#state = 'closing';
      const end = { clean: true, reason };
      const waitMs = this.#outgoing.byteCount > 0 ? flushMs : answerMs;
      this.#cancelClose = this.#owner.after(waitMs, () => this.abort(`${this.peer} does not answer`));
      this.#outgoing.carryLast(() => this.#other?.closed(end));
    }
    await this.ended;
  }

  /** The peer has closed, and everything before that has arrived. */
  closed(end: LinkEnd): void {
    this.#outgoing.carryLast(() => this.#other?.finish(end));
    this.finish(end);
  }

  /** Ends at once; the peer is informed, if anything reaches it. */
  abort(reason: string): void {
    const end = { clean: false, reason };
    if (this.#state !== 'ended') this.#outgoing.carryLast(() => this.#other?.finish(end));
    this.finish(end);
  }

  /** The next frame arrives damaged. */
  damageNext(): void {
    this.#isNextDamaged = true;
  }

  /** Takes in a frame from the peer. */
  take(frame: Frame): void {
    if (this.#state === 'ended') return;
    if (this.#isNextDamaged) return this.abort('a frame with a wrong checksum has come');
    this.#backlog.push(...this.#options.taken(frame));
    this.#drain();
  }

  finish(end: LinkEnd): void {
    if (this.#state === 'ended') return;
    this.#state = 'ended';
    this.#end = end;
    this.#cancelClose();
    for (const { reject } of this.#waiting.splice(0)) reject(this.#endedError());
    this.#settle(end);
  }

  #drain(): void {
    try {
      while (this.#handler !== undefined && this.#state !== 'ended') {
        const frame = this.#backlog.shift();
        if (frame === undefined) return;
        this.#handler(frame);
      }
    } catch (error) {
      this.#backlog = [];
      this.abort(error instanceof Error ? error.message : String(error));
    }
  }

  /** The network has room again. */
  #admit(): void {
    while (this.#outgoing.byteCount <= this.#options.windowBytes) {
      const next = this.#waiting.shift();
      if (next === undefined) return;
      next.read();
      next.resolve();
    }
  }

  #endedError(): RunError {
    return new RunError(`the link to ${this.peer} has ended: ${this.#end?.reason ?? 'it was closed'}`);
  }
}

/** A sender that does not wait for its frame learns of a lost link from `ended`. */
function handled(sending: Promise<void>): Promise<void> {
  sending.catch(() => {});
  return sending;
}

function copied({ kind, epoch, round, microBatch, control, tensors = [] }: Frame): Frame {
  const head = { kind, epoch, round, microBatch };
  if (tensors.length === 0)
    return control === undefined ? head : { kind, epoch, round, microBatch, control: copiedControl(control) };
  // Nobody reads ballast: only its length counts.
  const copies = kind === 'ballast' ? tensors : tensors.map(copiedTensor);
  return control === undefined
    ? { kind, epoch, round, microBatch, tensors: copies }
    : { kind, epoch, round, microBatch, control: copiedControl(control), tensors: copies };
}

/** A value as JSON carries it: without undefined, and numbers that JSON cannot hold as null. */
function copiedControl(value: unknown): unknown {
  if (typeof value === 'number') return Number.isFinite(value) ? value + 0 : null;
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value))
    return value.map((element: unknown) => (element === undefined ? null : copiedControl(element)));
  const copy: Record<string, unknown> = {};
  for (const key of Object.keys(value)) {
    const member = (value as Readonly<Record<string, unknown>>)[key];
    if (member !== undefined) copy[key] = copiedControl(member);
  }
  return copy;
}

function copiedTensor({ type, shape, data }: Tensor): Tensor {
  return { type, shape, data: data.slice() as Tensor['data'] };
}
