// JSON that comes from a peer: parsed only after its size and its nesting are known to be within limits. What the value
// means is for the caller to validate. Not a schema library.

import { ProtocolError } from '../errors.ts';

const decoder = new TextDecoder('utf-8', { fatal: true });
const [quote, backslash, openBrace, openBracket, closeBrace, closeBracket] = [0x22, 0x5c, 0x7b, 0x5b, 0x7d, 0x5d];

/** The deepest nesting of objects and arrays in JSON text, without building anything. Stops early beyond `limit`. */
function nesting(bytes: Uint8Array, limit: number): number {
  let depth = 0;
  let deepest = 0;
  let inString = false;
  for (let index = 0; index < bytes.length; index++) {
    const byte = bytes[index];
    if (inString) {
      if (byte === backslash) index++;
      else if (byte === quote) inString = false;
    } else if (byte === quote) {
      inString = true;
    } else if (byte === openBrace || byte === openBracket) {
      depth++;
      if (depth > deepest) deepest = depth;
      if (deepest > limit) return deepest;
    } else if (byte === closeBrace || byte === closeBracket) {
      depth--;
    }
  }
  return deepest;
}

/**
 * Parses UTF-8 JSON of at most `maxDepth` nested objects and arrays. `what` names the text in messages, such as "the
 * hello". Throws ProtocolError. The caller has checked the length of `bytes`.
 */
export function parseJson(bytes: Uint8Array, what: string, maxDepth: number): unknown {
  if (nesting(bytes, maxDepth) > maxDepth) throw new ProtocolError(`${what} nests deeper than ${maxDepth} levels`);
  try {
    return JSON.parse(decoder.decode(bytes)) as unknown;
  } catch {
    throw new ProtocolError(`${what} is no valid JSON`);
  }
}
