// The order of the coordinator's messages: each kind is handled on arrival or in its turn, after those before it.

import { defined } from '../../assert.ts';
import { ProtocolError } from '../../errors.ts';
import type { Frame } from '../../transport/link.ts';
import { type Message, parseMessage, type ToWorker } from '../protocol/messages.ts';

/** A handler of messages of one kind. */
type Handler<M> =
  | { readonly when: 'at-once'; do(message: M): void }
  | { readonly when: 'in-turn'; do(message: M): Promise<void> };

/** A handler for each kind of message that the coordinator may send. */
export type Handlers = {
  readonly [Kind in keyof ToWorker]: Handler<Extract<Message<ToWorker>, { readonly kind: Kind }>>;
};

const maxWaitingCount = 100_000;

/** Work that waits for its turn. */
export class Inbox {
  #waiting: (() => Promise<void>)[] = [];
  #wake: () => void = () => {};

  /** Handles a frame of the coordinator's, or lets it wait. Throws ProtocolError. */
  receive(frame: Frame, handlers: Handlers): void {
    const message = parseMessage('worker', frame, 'The coordinator');
    const handler: Handler<Message<ToWorker>> = handlers[message.kind];
    if (handler.when === 'at-once') return handler.do(message);
    if (this.#waiting.length >= maxWaitingCount)
      throw new ProtocolError('The coordinator sent more messages than may wait here.');
    this.#waiting.push(async () => handler.do(message)); // async: what is wrong with it is its turn's error
    this.#wake();
  }

  /** Gives up all that waits: this comes next. */
  restart(work: () => Promise<void>): void {
    this.#waiting = [work];
    this.#wake();
  }

  /** The next work, as soon as there is some. `guard`: ends the wait for it. */
  async next(guard: (waiting: Promise<void>) => Promise<void>): Promise<() => Promise<void>> {
    while (this.#waiting.length === 0) {
      const woken = new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
      await guard(woken);
    }
    return defined(this.#waiting.shift(), 'a message');
  }
}
