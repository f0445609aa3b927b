// Who may ask a server over HTTP: whoever shows its token.

import { createHash, randomBytes, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { InputError } from '../../../errors.ts';
import { staysHere } from './admission.ts';

/**
 * The token of a server at `host`: the given one; else, where other machines reach it, a new one. Throws InputError
 * for a given one that is short or cannot be sent.
 */
export function bearerToken(host: string, given: string | undefined): string | undefined {
  const token = given ?? (staysHere({ host }) ? undefined : randomBytes(24).toString('base64url'));
  if (token !== undefined && !/^[\x21-\x7e]{16,}$/.test(token))
    throw new InputError('A token has at least 16 characters, without spaces: choose another.');
  return token;
}

/** Whether a request shows the token, if one is asked for. Compares hashes: the time tells nothing of the token. */
export function showsToken(request: IncomingMessage, token: string | undefined): boolean {
  if (token === undefined) return true;
  const given = /^Bearer +(\S+)$/i.exec(request.headers.authorization ?? '')?.[1] ?? '';
  const hash = (text: string): Buffer => createHash('sha256').update(text).digest();
  return timingSafeEqual(hash(given), hash(token));
}
