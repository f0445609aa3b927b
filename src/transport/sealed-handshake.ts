// How two ends that share a secret agree on keys, over a way on which others may read and write: the handshake
// "NNpsk0" of the Noise protocol framework (revision 34), over X25519, ChaCha20-Poly1305 and SHA-256. Two messages of
// 48 bytes; each end has a new key pair, so that whoever learns the secret later cannot read what passed before. Who
// does not have the secret can neither read, nor change, nor take the place of an end: he can cut off. The secret must
// have enough random bits that nobody tries all of them (a join code has 80, a run's secret 192).
//
//   initiator ── e, mixed with the secret ──▶ responder
//   initiator ◀── e, ee ────────────────────  responder      two keys, one for each direction

import { chacha20poly1305 } from '@noble/ciphers/chacha.js';
import { x25519 } from '@noble/curves/ed25519.js';
import { expand, extract } from '@noble/hashes/hkdf.js';
import { sha256 } from '@noble/hashes/sha2.js';
import { ProtocolError } from '../errors.ts';

/** Bytes of each of the two messages: a public key, and the seal of nothing. */
export const handshakeBytes = 48;

const protocolName = 'Noise_NNpsk0_25519_ChaChaPoly_SHA256';
const [keyBytes, sealBytes, nothing] = [32, 16, new Uint8Array(0)] as const;

/** Seals or opens messages in their order; `head` travels beside a message and is proven with it. */
export type Transform = (message: Uint8Array, head: Uint8Array) => Uint8Array;

/** ChaCha20-Poly1305 (RFC 8439): `decrypt` throws where the seal is wrong. */
export interface Aead {
  encrypt(key: Uint8Array, nonce: Uint8Array, head: Uint8Array, message: Uint8Array): Uint8Array;
  decrypt(key: Uint8Array, nonce: Uint8Array, head: Uint8Array, sealed: Uint8Array): Uint8Array;
}

/** In JavaScript, for where there is nothing faster: `crypto.subtle` answers later, and is missing on plain pages. */
const portableAead: Aead = {
  encrypt: (key, nonce, head, message) => chacha20poly1305(key, nonce, head).encrypt(message),
  decrypt: (key, nonce, head, sealed) => chacha20poly1305(key, nonce, head).decrypt(sealed),
};

/** What both ends have after the handshake. */
export interface SealedKeys {
  readonly seal: Transform;
  /** Throws ProtocolError for what was not sealed by the other end as the next message. */
  readonly open: Transform;
}

export interface SealedOptions {
  /** What both ends share. Any length; see above. */
  readonly secret: string;
  /** What both ends must agree on, such as their names; need not be secret. */
  readonly context: string;
  /** For what passes after the handshake. Default: in JavaScript. */
  readonly aead?: Aead;
  /** Default: a new key pair. Tests give their own. */
  readonly ephemeralKey?: Uint8Array;
}

/** The beginning of a handshake. Returns the first message, and what takes the answer. */
export function beginHandshake(options: SealedOptions): {
  readonly message: Uint8Array;
  finish(answer: Uint8Array): SealedKeys;
} {
  const state = new SymmetricState(options);
  const { publicKey, secretKey } = keyPair(options);
  state.mixPublic(publicKey);
  const message = joined(publicKey, state.seal());
  return {
    message,
    finish(answer) {
      const theirs = halves(answer)[0];
      state.mixPublic(theirs);
      state.mixKey(shared(secretKey, theirs));
      state.open(halves(answer)[1]);
      const [toThem, toUs] = state.split();
      return { seal: sealer(toThem, options), open: opener(toUs, options) };
    },
  };
}

/** The answer to the first message of a handshake. Throws ProtocolError where the other end has another secret. */
export function answerHandshake(
  message: Uint8Array,
  options: SealedOptions,
): { readonly answer: Uint8Array; readonly keys: SealedKeys } {
  const state = new SymmetricState(options);
  const [theirs, sealed] = halves(message);
  state.mixPublic(theirs);
  state.open(sealed);
  const { publicKey, secretKey } = keyPair(options);
  state.mixPublic(publicKey);
  state.mixKey(shared(secretKey, theirs));
  const answer = joined(publicKey, state.seal());
  const [toUs, toThem] = state.split();
  return { answer, keys: { seal: sealer(toThem, options), open: opener(toUs, options) } };
}

/** Noise's SymmetricState (5.2), for payloads that are empty. */
class SymmetricState {
  #chainingKey: Uint8Array;
  #hash: Uint8Array;
  #key: Uint8Array = nothing;

  constructor({ secret, context }: SealedOptions) {
    this.#hash = sha256(utf8(protocolName));
    this.#chainingKey = this.#hash;
    this.#mixHash(utf8(context));
    const [chainingKey, hash, key] = this.#derive(sha256(utf8(secret)), 3);
    this.#chainingKey = chainingKey as Uint8Array;
    this.#mixHash(hash as Uint8Array);
    this.#key = key as Uint8Array;
  }

  /** The token "e", which with a shared secret is part of the key, too (9.2). */
  mixPublic(publicKey: Uint8Array): void {
    this.#mixHash(publicKey);
    this.mixKey(publicKey);
  }

  mixKey(material: Uint8Array): void {
    const [chainingKey, key] = this.#derive(material, 2);
    this.#chainingKey = chainingKey as Uint8Array;
    this.#key = key as Uint8Array;
  }

  seal(): Uint8Array {
    const sealed = chacha20poly1305(this.#key, nonceOf(0), this.#hash).encrypt(nothing);
    this.#mixHash(sealed);
    return sealed;
  }

  open(sealed: Uint8Array): void {
    try {
      chacha20poly1305(this.#key, nonceOf(0), this.#hash).decrypt(sealed);
    } catch {
      throw new ProtocolError('the other end does not have the secret that both need');
    }
    this.#mixHash(sealed);
  }

  /** The keys of the initiator's messages, and of the responder's. */
  split(): readonly [Uint8Array, Uint8Array] {
    const [first, second] = this.#derive(nothing, 2);
    return [first as Uint8Array, second as Uint8Array];
  }

  #mixHash(bytes: Uint8Array): void {
    this.#hash = sha256(joined(this.#hash, bytes));
  }

  /** HKDF (RFC 5869) without information, as Noise uses it: so many keys. */
  #derive(material: Uint8Array, count: number): Uint8Array[] {
    const bytes = expand(sha256, extract(sha256, material, this.#chainingKey), nothing, count * keyBytes);
    return Array.from({ length: count }, (_, index) => bytes.subarray(index * keyBytes, (index + 1) * keyBytes));
  }
}

function keyPair({ ephemeralKey }: SealedOptions): { readonly publicKey: Uint8Array; readonly secretKey: Uint8Array } {
  return x25519.keygen(ephemeralKey);
}

/** X25519. Throws ProtocolError for a public key that leads to the same result whatever the secret one. */
function shared(secretKey: Uint8Array, publicKey: Uint8Array): Uint8Array {
  try {
    return x25519.getSharedSecret(secretKey, publicKey);
  } catch {
    throw new ProtocolError('the other end sent no key that can be used');
  }
}

function halves(message: Uint8Array): readonly [publicKey: Uint8Array, sealed: Uint8Array] {
  if (message.length !== handshakeBytes)
    throw new ProtocolError(`a handshake has ${handshakeBytes} bytes, not ${message.length}`);
  return [message.slice(0, keyBytes), message.slice(keyBytes)];
}

function sealer(key: Uint8Array, { aead = portableAead }: SealedOptions): Transform {
  let count = 0;
  return (message, head) => aead.encrypt(key, nonceOf(count++), head, message);
}

function opener(key: Uint8Array, { aead = portableAead }: SealedOptions): Transform {
  let count = 0;
  return (sealed, head) => {
    if (sealed.length < sealBytes) throw new ProtocolError('a sealed message is shorter than its seal');
    try {
      return aead.decrypt(key, nonceOf(count++), head, sealed);
    } catch {
      throw new ProtocolError('the seal of a message is wrong: bytes were changed on the way');
    }
  };
}

/** 32 bits of zeros and a counter of 64 bits (Noise, 12.3). */
function nonceOf(count: number): Uint8Array {
  const nonce = new Uint8Array(12);
  const view = new DataView(nonce.buffer);
  view.setUint32(4, count >>> 0, true);
  view.setUint32(8, Math.floor(count / 2 ** 32), true);
  return nonce;
}

function utf8(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}

function joined(first: Uint8Array, second: Uint8Array): Uint8Array {
  const bytes = new Uint8Array(first.length + second.length);
  bytes.set(first);
  bytes.set(second, first.length);
  return bytes;
}
