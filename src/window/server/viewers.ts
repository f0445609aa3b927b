// The browsers that look on. Each gets the same messages, encoded once. Who does not take them in time is left out
// until it has caught up, then gets the whole view anew, and is let go if it does not catch up at all: nothing is
// queued without bound, and nobody waits for a viewer.

import { type RawData, WebSocket } from 'ws';
import type { Clock } from '../../clock.ts';
import { type Command, maxCommandBytes, parseCommand, type ServerMessage } from '../messages.ts';

export interface ViewersOptions {
  readonly clock: Clock;
  /** All that there is to see, encoded, for whoever comes. */
  welcome(): string;
  /** Carries out a command; the answer is for whoever asked. Must not throw. */
  command(command: Command, answer: (message: ServerMessage) => void): void;
}

/** Viewers at most; others are told to come later. */
export const mostViewers = 128;
/** Bytes that may wait for a viewer before it is left out. */
const mostWaitingBytes = 1 << 20;
const [behindMs, pingMs, farewellMs] = [30_000, 20_000, 500] as const;
/** Commands of a viewer at once, and the time in which it may give one more. */
const [commandBurst, commandEveryMs] = [20, 500] as const;

interface Viewer {
  readonly socket: WebSocket;
  /** Since when it has been left out. */
  behindSinceMs: number | undefined;
  isAlive: boolean;
  commandCount: number;
  commandMs: number;
}

export class Viewers {
  readonly #options: ViewersOptions;
  readonly #viewers = new Set<Viewer>();
  #cancelPing = (): void => {};

  constructor(options: ViewersOptions) {
    this.#options = options;
  }

  get count(): number {
    return this.#viewers.size;
  }

  /** Takes in a viewer that has a session. */
  add(socket: WebSocket): void {
    const { clock } = this.#options;
    const viewer: Viewer = {
      ...{ socket, behindSinceMs: undefined, isAlive: true, commandCount: 0, commandMs: clock.now() },
    };
    socket.on('error', () => {}); // 'close' follows
    socket.on('pong', () => {
      viewer.isAlive = true;
    });
    socket.on('message', (data: RawData, isBinary) => this.#heard(viewer, data, isBinary));
    if (this.#viewers.size >= mostViewers) {
      socket.close(1013, 'too many look on');
      return;
    }
    socket.on('close', () => this.#left(viewer));
    const welcome = this.#options.welcome();
    this.#viewers.add(viewer);
    if (this.#viewers.size === 1) this.#watch();
    socket.send(welcome);
  }

  /** Sends a message to all who keep up. */
  broadcast(text: string): void {
    const nowMs = this.#options.clock.now();
    const bytes = Buffer.from(text);
    let welcome: Buffer | undefined;
    for (const viewer of this.#viewers) {
      const { socket, behindSinceMs } = viewer;
      const waiting = socket.bufferedAmount;
      if (behindSinceMs === undefined && waiting <= mostWaitingBytes) socket.send(bytes, { binary: false });
      else if (behindSinceMs === undefined) viewer.behindSinceMs = nowMs;
      else if (waiting === 0) {
        viewer.behindSinceMs = undefined;
        welcome ??= Buffer.from(this.#options.welcome());
        socket.send(welcome, { binary: false });
      } else if (nowMs - behindSinceMs > behindMs) socket.terminate();
    }
  }

  /** Sends all their way: who does not go by itself is let go a little later. */
  close(reason: string): void {
    this.#cancelPing();
    for (const { socket } of this.#viewers) {
      socket.close(1001, reason);
      const cancel = this.#options.clock.after(farewellMs, () => socket.terminate());
      socket.once('close', cancel);
    }
  }

  #left(viewer: Viewer): void {
    this.#viewers.delete(viewer);
    if (this.#viewers.size === 0) this.#cancelPing();
  }

  #watch(): void {
    this.#cancelPing = this.#options.clock.after(pingMs, () => {
      for (const viewer of this.#viewers) {
        if (viewer.isAlive) viewer.socket.ping();
        else viewer.socket.terminate();
        viewer.isAlive = false;
      }
      this.#watch();
    });
  }

  #heard(viewer: Viewer, data: RawData, isBinary: boolean): void {
    const { clock } = this.#options;
    const nowMs = clock.now();
    viewer.commandCount = Math.max(0, viewer.commandCount - (nowMs - viewer.commandMs) / commandEveryMs) + 1;
    viewer.commandMs = nowMs;
    if (viewer.commandCount > commandBurst) return viewer.socket.close(1008, 'too many commands');
    const text = isBinary ? '' : (data as Buffer).toString('utf8', 0, maxCommandBytes + 1);
    let command: Command;
    try {
      command = parseCommand(text);
    } catch (error) {
      return viewer.socket.close(1008, error instanceof Error ? error.message.slice(0, 100) : 'no command');
    }
    this.#options.command(command, (message) => {
      if (viewer.socket.readyState === WebSocket.OPEN) viewer.socket.send(JSON.stringify(message));
    });
  }
}
