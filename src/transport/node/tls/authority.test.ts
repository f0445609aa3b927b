import assert from 'node:assert/strict';
import { X509Certificate } from 'node:crypto';
import { test } from 'node:test';
import { InputError, ProtocolError } from '../../../errors.ts';
import { createAuthorityMaterial, createIdentity, createRequest, openAuthority } from './authority.ts';
import { deviceOf, deviceUri, keyHash } from './identity.ts';

const nowMs = Date.UTC(2026, 10, 21);
const material = await createAuthorityMaterial(nowMs);
const authority = await openAuthority(material, () => nowMs);

test('a certificate is for 30 days, one device, one role, and no authority of its own', async () => {
  const identity = await createIdentity(authority, { role: 'worker', name: 'board, "2" ∕ küche' });
  const [own, issuer] = [new X509Certificate(identity.certificate), new X509Certificate(material.certificate)];
  assert.ok(own.checkIssued(issuer) && own.verify(issuer.publicKey));
  assert.deepEqual([own.ca, issuer.ca], [false, true]);
  assert.deepEqual([own.validFrom, own.validTo], ['Nov 20 00:00:00 2026 GMT', 'Dec 21 00:00:00 2026 GMT']);
  assert.deepEqual(deviceOf(own.subjectAltName), { role: 'worker', name: 'board, "2" ∕ küche' });
  assert.equal(own.publicKey.asymmetricKeyDetails?.namedCurve, 'prime256v1');
  assert.notEqual(
    own.serialNumber,
    new X509Certificate((await createIdentity(authority, { role: 'worker', name: 'x' })).certificate).serialNumber,
  );
});

test('only one name of a device, written as we write it, is one', () => {
  assert.deepEqual(deviceOf('URI:asteroid:coordinator:a%20b'), { role: 'coordinator', name: 'a b' });
  assert.equal(deviceUri({ role: 'worker', name: 'a:b' }), 'asteroid:worker:a%3Ab');
  const wrong = [
    undefined,
    '',
    'DNS:a',
    'URI:asteroid:worker',
    'URI:asteroid:admin:a',
    'URI:asteroid:worker:a:b',
    'URI:asteroid:worker:%zz',
  ];
  for (const text of [
    ...wrong,
    'URI:asteroid:worker:a, URI:asteroid:coordinator:b',
    'DNS:x, URI:asteroid:worker:a',
    'URI:asteroid:worker:a b',
  ]) {
    assert.equal(deviceOf(text), undefined, text);
  }
});

test('requests that are none, and keys without their certificate, are refused', async () => {
  const { request } = await createRequest();
  const middle = request.indexOf('\n') + 200;
  const changed = request.slice(0, middle) + (request[middle] === 'A' ? 'B' : 'A') + request.slice(middle + 1);
  for (const text of ['', 'x', changed, material.certificate]) {
    await assert.rejects(authority.issue({ role: 'worker', name: 'a' }, text), ProtocolError);
  }
  const other = await createAuthorityMaterial(nowMs);
  await assert.rejects(
    openAuthority({ key: other.key, certificate: material.certificate }, () => nowMs),
    InputError,
  );
  assert.equal(keyHash(material.certificate).length, 32);
  assert.notDeepEqual(keyHash(material.certificate), keyHash(other.certificate));
});
