// A self-signed certificate for localhost and 127.0.0.1, written by hand in DER (X.509, RFC 5280): TLS tests need one
// and no package for it.

import { generateKeyPairSync, sign } from 'node:crypto';

const oids = {
  commonName: '550403',
  basicConstraints: '551d13',
  subjectAlternativeName: '551d11',
  ecdsaWithSha256: '2a8648ce3d040302',
} as const;

/** One DER value: tag, length, contents. */
function der(tag: number, ...contents: readonly Uint8Array[]): Buffer {
  const body = Buffer.concat(contents);
  const length =
    body.length < 128
      ? [body.length]
      : body.length < 256
        ? [0x81, body.length]
        : [0x82, body.length >> 8, body.length & 255];
  return Buffer.concat([Uint8Array.of(tag, ...length), body]);
}

const sequence = (...items: readonly Uint8Array[]): Buffer => der(0x30, ...items);
const oid = (name: keyof typeof oids): Buffer => der(0x06, Buffer.from(oids[name], 'hex'));
const extension = (name: keyof typeof oids, value: Uint8Array): Buffer => sequence(oid(name), der(0x04, value));
const time = (text: string): Buffer => der(0x18, Buffer.from(text));

/** A fresh P-256 key and its certificate, in PEM. */
export function createSelfSigned(): { readonly key: string; readonly cert: string } {
  const { publicKey, privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const name = sequence(der(0x31, sequence(oid('commonName'), der(0x0c, Buffer.from('asteroid test')))));
  const algorithm = sequence(oid('ecdsaWithSha256'));
  const addresses = sequence(der(0x82, Buffer.from('localhost')), der(0x87, Uint8Array.of(127, 0, 0, 1)));
  const extensions = sequence(
    extension('basicConstraints', sequence(der(0x01, Uint8Array.of(255)))),
    extension('subjectAlternativeName', addresses),
  );
  const content = sequence(
    der(0xa0, der(0x02, Uint8Array.of(2))),
    der(0x02, Uint8Array.of(1)),
    algorithm,
    name,
    sequence(time('20200101000000Z'), time('20991231235959Z')),
    name,
    publicKey.export({ type: 'spki', format: 'der' }),
    der(0xa3, extensions),
  );
  const signature = sign('sha256', content, privateKey);
  const certificate = sequence(content, algorithm, der(0x03, Uint8Array.of(0), signature)).toString('base64');
  return {
    key: privateKey.export({ type: 'pkcs8', format: 'pem' }).toString(),
    cert: `-----BEGIN CERTIFICATE-----\n${certificate.replace(/.{1,64}/g, '$&\n')}-----END CERTIFICATE-----\n`,
  };
}
