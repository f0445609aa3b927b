// What travels between an engine's caller (threaded-engine.ts) and the thread that computes (engine-service.ts). Values
// are named by the caller's handles.

import { InputError, ProtocolError, RunError } from '../errors.ts';
import type { Tensor } from '../graph/tensor.ts';
import type { Noise } from '../noise.ts';
import type { Translation, TranslationTarget } from './engine.ts';
import type { PackedGraph } from './packed-graph.ts';

/** Requests without an id have no reply: their failures show in replies to later ones. */
export type Request =
  | {
      readonly kind: 'compile';
      readonly id: number;
      readonly executable: number;
      readonly source: PackedGraph | Translation;
    }
  | { readonly kind: 'translate'; readonly id: number; readonly graph: PackedGraph }
  | {
      readonly kind: 'run';
      readonly executable: number;
      readonly inputs: Readonly<Record<string, number>>;
      /** The handles of the outputs that are wanted, by name. */
      readonly outputs: Readonly<Record<string, number>>;
      /** See `Executable.run`: the handles of these inputs end. */
      readonly replaced?: Readonly<Record<string, string>> | undefined;
    }
  | { readonly kind: 'upload'; readonly handle: number; readonly tensor: Tensor }
  | { readonly kind: 'draw'; readonly handle: number; readonly shape: readonly number[]; readonly noise: Noise }
  | { readonly kind: 'download' | 'take'; readonly id: number; readonly handle: number }
  | { readonly kind: 'release'; readonly handle: number }
  | { readonly kind: 'trim'; readonly leastBytes: number }
  | { readonly kind: 'release-executable'; readonly executable: number }
  | { readonly kind: 'settled' | 'computed' | 'close'; readonly id: number };

/** The thread's first message has id 0: it is ready (or could not be made). Those with a detour answer nothing. */
export interface Reply {
  readonly id: number;
  readonly busyMs: number;
  /** See Engine. */
  readonly threadMs?: number | undefined;
  /** A kernel of the GPU that the CPU computes in its place, in words (kernel-probe.ts). */
  readonly detour?: string;
  /** With id 0: the engine's name. */
  readonly name?: string;
  /** With id 0, where it has one. */
  readonly warning?: string | undefined;
  /** With id 0, where it has one. */
  readonly choice?: string | undefined;
  /** With id 0, where it has one. */
  readonly blockSize?: number | undefined;
  /** With id 0: what it translates for, if it does. */
  readonly translationTarget?: TranslationTarget | undefined;
  readonly tensor?: Tensor;
  /** When it was reached: milliseconds since 1970 on the monotonic clock that all threads share. */
  readonly atMs?: number;
  readonly translation?: Translation;
  readonly failure?: Failure;
}

/** Milliseconds on the clock of `Reply.atMs`. */
export function sharedNow(): number {
  return performance.timeOrigin + performance.now();
}

/** An error that travels. */
export interface Failure {
  readonly name: string;
  readonly message: string;
  readonly stack: string | undefined;
}

const classes = { InputError, RunError, ProtocolError };

export function toFailure(error: unknown): Failure {
  return error instanceof Error
    ? { name: error.name, message: error.message, stack: error.stack }
    : { name: 'Error', message: String(error), stack: undefined };
}

/** The error again, of its class where it is one of ours. */
export function fromFailure({ name, message, stack }: Failure): Error {
  const Class: new (message: string) => Error = Object.hasOwn(classes, name)
    ? classes[name as keyof typeof classes]
    : Error;
  const error = new Class(message);
  if (stack !== undefined) error.stack = stack;
  return error;
}
