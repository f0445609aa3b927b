// ChaCha20-Poly1305 by Node's own library, for sealed links: ten times as fast as in JavaScript.

import { createCipheriv, createDecipheriv } from 'node:crypto';
import type { Aead } from '../sealed-handshake.ts';

const algorithm = 'chacha20-poly1305';
const authTagLength = 16;

export const nativeAead: Aead = {
  encrypt(key, nonce, head, message) {
    const cipher = createCipheriv(algorithm, key, nonce, { authTagLength });
    cipher.setAAD(head, { plaintextLength: message.length });
    return Buffer.concat([cipher.update(message), cipher.final(), cipher.getAuthTag()]);
  },
  decrypt(key, nonce, head, sealed) {
    const [body, tag] = [sealed.subarray(0, -authTagLength), sealed.subarray(-authTagLength)];
    const decipher = createDecipheriv(algorithm, key, nonce, { authTagLength });
    decipher.setAAD(head, { plaintextLength: body.length });
    decipher.setAuthTag(tag);
    return Buffer.concat([decipher.update(body), decipher.final()]);
  },
};
