import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createFailureLimiter, hostName, isLoopback, judgeUpgrade, plainAddress } from './admission.ts';

test('isLoopback knows the addresses of this machine', () => {
  for (const address of ['127.0.0.1', '127.8.9.10', '::1', '::ffff:127.0.0.1'])
    assert.equal(isLoopback(address), true, address);
  for (const address of ['', '10.0.0.1', '128.0.0.1', '127.0.0.1.example.org', '::2', '::ffff:10.0.0.1', 'fe80::1'])
    assert.equal(isLoopback(address), false, address);
  assert.equal(plainAddress('::ffff:10.0.0.1'), '10.0.0.1');
});

test('hostName reads the Host header', () => {
  assert.equal(hostName('Desk.local:7700'), 'desk.local');
  assert.equal(hostName('10.0.0.1'), '10.0.0.1');
  assert.equal(hostName('[fe80::1]:7700'), 'fe80::1');
  for (const header of [undefined, '', 'a b', 'a:b', 'a:1:2', 'desk.local:7700@evil', '[::1', 'desk.local/path'])
    assert.equal(hostName(header), undefined, header);
});

test('judgeUpgrade lets in who calls the server by a known name or by an address, and no browser', () => {
  const known = new Set(['localhost', 'desk.local']);
  const judge = (host: string | undefined, origin?: string): number | undefined =>
    judgeUpgrade({ host, origin }, known)?.status;
  for (const host of ['localhost', 'localhost:7700', 'DESK.local:7700', '10.0.0.1', '10.0.0.1:7700', '[fe80::1]:7700'])
    assert.equal(judge(host), undefined, host);
  for (const host of [undefined, '', 'evil.example', 'localhost.evil.example', '10.0.0.2.evil.example', '10.0.0'])
    assert.equal(judge(host), 403, host);
  assert.equal(judge('localhost', 'http://localhost'), 403);
  assert.equal(judge('localhost', 'null'), 403);
});

test('an address has a budget of failures that grows back; others are not touched', () => {
  let nowMs = 0;
  const limiter = createFailureLimiter({
    clock: { now: () => nowMs, after: () => () => {} },
    burstCount: 3,
    regainMs: 1000,
  });
  for (let count = 0; count < 3; count++) {
    assert.equal(limiter.allows('a'), true);
    limiter.failed('a');
  }
  assert.equal(limiter.allows('a'), false);
  assert.equal(limiter.allows('b'), true);
  nowMs = 999;
  assert.equal(limiter.allows('a'), false);
  nowMs = 1000;
  assert.equal(limiter.allows('a'), true);
  limiter.failed('a');
  assert.equal(limiter.allows('a'), false);
  nowMs = 60_000;
  assert.equal(limiter.allows('a'), true);
});

test('no more than 1024 addresses are remembered', () => {
  const limiter = createFailureLimiter({
    clock: { now: () => 0, after: () => () => {} },
    burstCount: 1,
    regainMs: 1000,
  });
  for (let index = 0; index < 1025; index++) limiter.failed(`10.0.${index >> 8}.${index & 255}`);
  assert.equal(limiter.allows('10.0.0.0'), true);
  assert.equal(limiter.allows('10.0.0.1'), false);
  assert.equal(limiter.allows('10.0.4.0'), false);
});
