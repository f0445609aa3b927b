import assert from 'node:assert/strict';
import { type Duplex, duplexPair } from 'node:stream';
import { test } from 'node:test';
import { RunError } from '../errors.ts';
import { linkSuite } from '../testing/link-suite.ts';
import type { ByteChannel } from './byte-channel.ts';
import { channelOver } from './node/duplex-channel.ts';
import { nativeAead } from './node/native-aead.ts';
import { sealLink } from './sealed-link.ts';

const secret = 'the secret of a run';

/** A channel whose bytes may be changed on their way out. */
function tampered(channel: ByteChannel, change: (bytes: Uint8Array) => Uint8Array): ByteChannel {
  return { ...channel, write: (bytes, done) => channel.write(change(bytes), done) };
}

linkSuite('sealed links', async (options) => {
  const [left, right] = duplexPair();
  let corrupting = false;
  const channel = tampered(channelOver(left), (bytes) => {
    if (!corrupting || bytes.length < 20) return bytes;
    const changed = Uint8Array.from(bytes);
    changed[10] = (changed[10] as number) ^ 4;
    return changed;
  });
  const [a, b] = await Promise.all([
    sealLink(channel, { name: 'a', peer: 'b', isInitiator: true, secret, aead: nativeAead, ...options }),
    sealLink(channelOver(right), { name: 'b', peer: 'a', isInitiator: false, secret, aead: nativeAead, ...options }),
  ]);
  return {
    a,
    b,
    corrupt: () => {
      corrupting = true;
    },
    release: async () => {
      await a.close('released');
    },
  };
});

const ends = (): readonly [Duplex, Duplex] => duplexPair();
const keepAlive = setInterval(() => {}, 1_000);
test.after(() => clearInterval(keepAlive));

test('ends with different secrets, or other names, have no link', async () => {
  for (const other of [{ secret: 'another' }, { peer: 'c' }, { name: 'c' }]) {
    const [left, right] = ends();
    const one = sealLink(channelOver(left), { name: 'a', peer: 'b', isInitiator: true, secret });
    const two = sealLink(channelOver(right), { name: 'b', peer: 'a', isInitiator: false, secret, ...other });
    await assert.rejects(two, RunError);
    await assert.rejects(one, RunError);
  }
});

test('what passes is not to be read, and holds neither names nor reasons', async () => {
  const [left, right] = ends();
  const passed: Uint8Array[] = [];
  const channel = tampered(channelOver(left), (bytes) => {
    passed.push(Uint8Array.from(bytes));
    return bytes;
  });
  const [a] = await Promise.all([
    sealLink(channel, { name: 'a', peer: 'b', isInitiator: true, secret }),
    sealLink(channelOver(right), { name: 'b', peer: 'a', isInitiator: false, secret }),
  ]);
  await a.send({ kind: 'heartbeat', epoch: 0, round: -1, microBatch: -1, control: 'PLAIN WORDS' });
  await a.close('PLAIN WORDS');
  assert.ok(passed.length > 2);
  assert.equal(Buffer.concat(passed).includes('PLAIN'), false);
});

test('whoever says nothing, or something else, is given up', async () => {
  const [left, right] = ends();
  const options = { name: 'b', peer: 'a', isInitiator: false, secret, timeoutMs: 30 };
  await assert.rejects(sealLink(channelOver(left), options), /a did not answer within 0.03 s/);
  const [third, fourth] = ends();
  fourth.write('GET / HTTP/1.1\r\n\r\n');
  await assert.rejects(sealLink(channelOver(third), options), /a record announces 1163141167 bytes, above the limit/);
  right.destroy();
});
