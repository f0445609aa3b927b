import assert from 'node:assert/strict';
import { test } from 'node:test';
import { InputError } from '../../errors.ts';
import { checkHost, dialledAt, isWildcard, ownAddresses, parseAdvertised } from './addresses.ts';

test('an advertised address is an address or a name, with a port or without', () => {
  assert.deepEqual(parseAdvertised('192.168.1.20'), { host: '192.168.1.20' });
  assert.deepEqual(parseAdvertised('192.168.1.20:7700'), { host: '192.168.1.20', port: 7700 });
  assert.deepEqual(parseAdvertised('desk.example.org:7700'), { host: 'desk.example.org', port: 7700 });
  assert.deepEqual(parseAdvertised('2001:db8::1'), { host: '2001:db8::1' });
  assert.deepEqual(parseAdvertised('[2001:db8::1]'), { host: '2001:db8::1' });
  assert.deepEqual(parseAdvertised('[2001:db8::1]:7700'), { host: '2001:db8::1', port: 7700 });
  for (const text of [
    '',
    ':7700',
    'a b',
    'a:0',
    'a:65536',
    'a:b',
    'wss://a:1',
    '[desk]:1',
    '1.2.3',
    '1.2.3.400',
    'a/b',
  ])
    assert.throws(
      () => parseAdvertised(text),
      (error) => error instanceof InputError && error.message.startsWith(`--advertise ${text} is not ADDRESS`),
      text,
    );
  for (const text of ['0.0.0.0', '0.0.0.0:7700', '::', '[::]:7700'])
    assert.throws(
      () => parseAdvertised(text),
      (error) =>
        error instanceof InputError &&
        error.message.startsWith(`--advertise ${text} is no address that other machines can dial: `),
      text,
    );
});

test('a machine listens on its own addresses and on all of them', () => {
  for (const host of ['127.0.0.1', 'localhost', '::1', '0.0.0.0', '::', ...ownAddresses()]) checkHost({ host });
  assert.throws(() => checkHost({ host: '192.0.2.99' }), InputError);
  assert.throws(() => checkHost({ host: '0.0.0.0', advertise: 'a:b' }), InputError);
  for (const host of ['0.0.0.0', '::']) {
    assert.ok(!isWildcard(dialledAt(host)), 'nobody can dial all addresses');
    assert.equal(dialledAt(host), ownAddresses()[0] ?? '127.0.0.1');
  }
  assert.equal(dialledAt('192.168.1.20'), '192.168.1.20');
});
