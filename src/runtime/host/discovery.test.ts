import assert from 'node:assert/strict';
import type { Socket } from 'node:dgram';
import { EventEmitter } from 'node:events';
import { test } from 'node:test';
import { ownAddresses } from './addresses.ts';
import { announce, discover, speaker } from './discovery.ts';

const [host] = ownAddresses();

test('a port that another program holds is an error for the caller, and ends nothing', async () => {
  const socket = Object.assign(new EventEmitter(), {
    bind: () =>
      process.nextTick(() =>
        socket.emit('error', Object.assign(new Error('the port is taken'), { code: 'EADDRINUSE' })),
      ),
    close: () => {},
  });
  const errors: string[] = [];
  const bonjour = await speaker('127.0.0.1', ({ message }) => errors.push(message), socket as unknown as Socket);
  await new Promise(setImmediate);
  bonjour.destroy();
  assert.deepEqual([...new Set(errors)], ['the port is taken']);
});

test('a doctor’s test announcement is found by doctors, not by workers that look for a coordinator', {
  skip: host === undefined && 'this machine has no address on a network',
}, async (context) => {
  if (host === undefined) return;
  const url = `wss://${host}:11`;
  const announcement = await announce({
    host,
    port: 11,
    url,
    type: 'asteroid-check',
    onError: (message) => context.diagnostic(message),
  });
  try {
    const heard = await discover({ timeoutMs: 2_500, interfaces: [host], type: 'asteroid-check' });
    if (!heard.includes(url)) return context.skip('multicast is not heard here');
    const coordinators = await discover({ timeoutMs: 1_000, interfaces: [host] });
    assert.ok(!coordinators.includes(url), coordinators.join(', '));
  } finally {
    await announcement.stop();
  }
});
