// The first words on a connection: the caller says hello with its credential, the server answers welcome or refused.
// JSON texts of at most 4 KiB, validated here; after the welcome only frames follow.

import { z } from 'zod';
import { ProtocolError } from '../errors.ts';
import { parseJson } from './json.ts';

/** The protocol's version: both ends must speak the same. */
export const protocolVersion = 1;
/** The longest hello, welcome or refusal. */
export const maxHandshakeBytes = 4096;

const maxHandshakeDepth = 8;
const name = z.string().regex(/^[^\p{Cc}]{1,300}$/u);
const facts = z.record(z.string(), z.unknown());

const helloSchema = z.strictObject({
  protocol: z.number().int(),
  purpose: z.enum(['enrol', 'worker', 'peer', 'relay']),
  name,
  credential: z.string().max(1024),
  facts: facts.optional(),
});

const answerSchema = z.discriminatedUnion('kind', [
  z.strictObject({ kind: z.literal('welcome'), name, server: name, facts: facts.optional() }),
  z.strictObject({ kind: z.literal('refused'), reason: z.string().min(1).max(1000), retry: z.boolean() }),
]);

/** What a caller says first. */
export interface Hello {
  readonly protocol: typeof protocolVersion;
  /**
   * A device that asks for a certificate, a worker that joins a coordinator, a worker that links to another, or one
   * that asks the coordinator for a way to another: after the welcome of this one come bytes, not frames.
   */
  readonly purpose: 'enrol' | 'worker' | 'peer' | 'relay';
  /** The caller's name for itself. */
  readonly name: string;
  /** A join code or a link token; '' where the caller's certificate is enough. Never logged. */
  readonly credential: string;
  /** What else the server may want to know, such as the device's memory; for the server to validate. */
  readonly facts?: Readonly<Record<string, unknown>>;
}

/** The server's yes. */
export interface Welcome {
  readonly kind: 'welcome';
  /** The caller's name from here on. */
  readonly name: string;
  /** The server's name. */
  readonly server: string;
  /** What else the caller may want to know; for the caller to validate. */
  readonly facts?: Readonly<Record<string, unknown>>;
}

/** The server's no. */
export interface Refused {
  readonly kind: 'refused';
  /** One sentence for the person at the other end. */
  readonly reason: string;
  /** True when the same hello may succeed later. */
  readonly retry: boolean;
}

/** Reads a hello. Throws ProtocolError. */
export function parseHello(bytes: Uint8Array): Hello {
  const result = helloSchema.safeParse(parseHandshake(bytes, 'the hello'));
  if (!result.success) throw new ProtocolError('the hello does not have the expected fields');
  const { protocol, facts: extra, ...hello } = result.data;
  if (protocol !== protocolVersion) {
    throw new ProtocolError(
      `the caller speaks protocol ${protocol}, this server ${protocolVersion}: use the same release on all devices`,
    );
  }
  return { protocol: protocolVersion, ...hello, ...(extra && { facts: extra }) };
}

/** Reads the server's answer. Throws ProtocolError. */
export function parseAnswer(bytes: Uint8Array): Welcome | Refused {
  const result = answerSchema.safeParse(parseHandshake(bytes, "the server's answer"));
  if (!result.success) throw new ProtocolError("the server's answer does not have the expected fields");
  if (result.data.kind === 'refused') return result.data;
  const { facts: extra, ...welcome } = result.data;
  return { ...welcome, ...(extra && { facts: extra }) };
}

/** Writes a hello or an answer. */
export function encodeHandshake(message: Hello | Welcome | Refused): string {
  const text = JSON.stringify(message);
  if (new TextEncoder().encode(text).length > maxHandshakeBytes)
    throw new ProtocolError(`a hello or its answer is limited to ${maxHandshakeBytes} bytes`);
  return text;
}

function parseHandshake(bytes: Uint8Array, what: string): unknown {
  if (bytes.length > maxHandshakeBytes) throw new ProtocolError(`${what} is longer than ${maxHandshakeBytes} bytes`);
  return parseJson(bytes, what, maxHandshakeDepth);
}
