// What the window's server and its page say to each other, over one WebSocket, as JSON. Commands come from outside:
// they are validated here and nowhere else.

import { z } from 'zod';
import { InputError } from '../errors.ts';
import type { View, WindowEvent } from './view.ts';

const device: z.ZodString = z.string().min(1).max(300);
const id: z.ZodNumber = z.number().int().min(0).max(1e9);

/** A change to ask about before it happens. */
export type WhatIfChange =
  | { readonly kind: 'lose'; readonly device: string }
  /** It runs at this share of its speed. */
  | { readonly kind: 'slow'; readonly device: string; readonly share: number }
  | { readonly kind: 'link'; readonly between: readonly [string, string]; readonly mbps: number };

/** What the page may ask for. */
export type Command = { readonly id: number } & (
  | { readonly command: 'stop' }
  | { readonly command: 'drain'; readonly device: string }
  /** Times what the schedule says. */
  | { readonly command: 'learning-rate'; readonly factor: number }
  | { readonly command: 'what-if'; readonly change: WhatIfChange }
  /** A link for one more browser. */
  | { readonly command: 'invite' }
);

const change: z.ZodType<WhatIfChange> = z.discriminatedUnion('kind', [
  z.strictObject({ kind: z.literal('lose'), device }),
  z.strictObject({ kind: z.literal('slow'), device, share: z.number().min(0.01).max(1) }),
  z.strictObject({ kind: z.literal('link'), between: z.tuple([device, device]), mbps: z.number().min(0.01).max(1e6) }),
]);

const commandSchema: z.ZodType<Command> = z.discriminatedUnion('command', [
  z.strictObject({ id, command: z.literal('stop') }),
  z.strictObject({ id, command: z.literal('drain'), device }),
  z.strictObject({ id, command: z.literal('learning-rate'), factor: z.number().min(0.001).max(1000) }),
  z.strictObject({ id, command: z.literal('what-if'), change }),
  z.strictObject({ id, command: z.literal('invite') }),
]);

/** Bytes of a message of the page, at most. */
export const maxCommandBytes = 4096;

/** Reads a message of the page. Throws InputError. */
export function parseCommand(text: string): Command {
  if (text.length > maxCommandBytes) throw new InputError(`A command has at most ${maxCommandBytes} bytes.`);
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new InputError('A command is JSON: this is none.');
  }
  const parsed = commandSchema.safeParse(value);
  if (!parsed.success) throw new InputError(`This is no command of this version: reload the page.`);
  return parsed.data;
}

/** What can be done to the run that is shown. */
export interface Abilities {
  readonly stop: boolean;
  readonly drain: boolean;
  readonly rate: boolean;
  readonly whatIf: boolean;
  readonly invite: boolean;
  /** Whether a browser may become a device, with the join code. */
  readonly join: boolean;
}

/** An event with its time. */
export type Timed = readonly [atMs: number, event: WindowEvent];

/** The answer to a question about a change. */
export interface WhatIfAnswer {
  readonly before: { readonly roundMs: number; readonly samplesPerS: number };
  /** The plan as it is, after the change; absent if it cannot run then. */
  readonly kept?: { readonly roundMs: number; readonly samplesPerS: number };
  readonly after: { readonly roundMs: number; readonly samplesPerS: number };
  /** Milliseconds until training goes on; absent where the run need not stop. */
  readonly pauseMs?: number;
  readonly movedBytes: number;
  readonly stages: readonly { readonly layers: readonly [number, number]; readonly devices: readonly string[] }[];
  /** More that is to be known. */
  readonly remark?: string;
}

/** A link that lets one browser in. */
export interface Invitation {
  readonly url: string;
  /** The rows of its QR code, '1' for dark. */
  readonly qr: readonly string[];
}

export type ServerMessage =
  /** All that is known: at the beginning, and to whoever did not keep up. */
  | { readonly kind: 'view'; readonly view: View; readonly can: Abilities }
  | { readonly kind: 'events'; readonly events: readonly Timed[] }
  /** A finished run, to be replayed. */
  | { readonly kind: 'recording'; readonly name: string; readonly model: string; readonly events: readonly Timed[] }
  | {
      readonly kind: 'answer';
      readonly id: number;
      readonly text: string;
      readonly whatIf?: WhatIfAnswer;
      readonly invitation?: Invitation;
    }
  | { readonly kind: 'refused'; readonly id: number; readonly text: string };
