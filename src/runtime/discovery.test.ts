import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ownAddresses } from './addresses.ts';
import { announce, discover } from './discovery.ts';

const [host] = ownAddresses();

test('what a doctor says to hear itself is heard by doctors, and by nobody who looks for a coordinator', {
  skip: host === undefined && 'this machine has no address on a network',
}, async (context) => {
  if (host === undefined) return;
  const url = `wss://${host}:11`;
  const announcement = await announce({ host, port: 11, url, type: 'asteroid-check', onError: (message) => context.diagnostic(message) });
  try {
    const heard = await discover({ timeoutMs: 2_500, interfaces: [host], type: 'asteroid-check' });
    if (!heard.includes(url)) return context.skip('multicast is not heard here');
    const coordinators = await discover({ timeoutMs: 1_000, interfaces: [host] });
    assert.ok(!coordinators.includes(url), coordinators.join(', '));
  } finally {
    await announcement.stop();
  }
});
