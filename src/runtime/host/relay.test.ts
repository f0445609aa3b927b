// Two workers that do not reach each other, met over the coordinator's server; what strangers and other workers may not
// do there; and how much waits in the relay.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { Duplex } from 'node:stream';
import { test } from 'node:test';
import { defined } from '../../assert.ts';
import { systemClock } from '../../clock.ts';
import { InputError } from '../../errors.ts';
import { wrap } from '../../graph/tensor.ts';
import { type Member, peerToken, relayedCluster } from '../../testing/relayed-cluster.ts';
import { protocolVersion } from '../../transport/handshake.ts';
import type { Frame, Link, Priority } from '../../transport/link.ts';
import { connectStream } from '../../transport/node/websocket.ts';
import { Peers } from '../worker/peers.ts';

const frame = (kind: string, bytes: number): Frame => ({
  ...{ kind, epoch: 1, round: 2, microBatch: 3 },
  tensors: [
    wrap(
      'uint8',
      [bytes],
      Uint8Array.from({ length: bytes }, (_, index) => index % 251),
    ),
  ],
});

/** Waits for something that comes in one of the next turns. */
async function until<T>(look: () => T | undefined): Promise<T> {
  for (;;) {
    const found = look();
    if (found !== undefined) return found;
    await new Promise((resolve) => setImmediate(resolve));
  }
}

async function received(link: Link, count: number): Promise<Frame[]> {
  const frames: Frame[] = [];
  await new Promise<void>((resolve) => link.receive((got) => frames.push(got) === count && resolve()));
  return frames;
}

for (const isEncrypted of [true, false])
  test(`${isEncrypted ? 'encrypted' : 'plain'}: two that do not reach each other are met over the relay`, async (t) => {
    const { enter, members, relayed } = await relayedCluster(t, { isEncrypted });
    const [a, b] = [await enter('a', false), await enter('b', false)];
    const link = await b.network.connect({ name: 'a', url: a.network.url });
    assert.deepEqual([link.peer, a.links.map(({ peer }) => peer), relayed], ['a', ['b'], [['b', 'a']]]);
    const other = defined(a.links[0], 'the link at a');
    // Priorities are the links' own: what is urgent overtakes what was queued before it.
    const arriving = received(other, 3);
    const sent: readonly [string, Priority, number][] = [
      ['copy', 'bulk', 1_000_000],
      ['activation', 'pipeline', 1_000_000],
      ['word', 'control', 10],
    ];
    await Promise.all(sent.map(([kind, priority, bytes]) => link.send(frame(kind, bytes), priority)));
    const frames = await arriving;
    assert.deepEqual(
      frames.map(({ kind }) => kind),
      ['word', 'activation', 'copy'],
    );
    for (const got of frames)
      assert.deepEqual(got.tensors, frame(got.kind, Number(sent.find(([kind]) => kind === got.kind)?.[2])).tensors);
    await link.close('done');
    assert.deepEqual(await other.ended, { clean: true, reason: 'done' });
    // A second link between the same two goes the same way, and takes the place of the first.
    const second = await b.network.connect({ name: 'a', url: a.network.url });
    const again = await b.network.connect({ name: 'a', url: a.network.url });
    assert.equal((await second.ended).clean, false);
    members.delete('a');
    await a.network.close();
    assert.equal((await again.ended).clean, true, 'a relayed link ends with its peer');
    await assert.rejects(
      b.network.connect({ name: 'a', url: a.network.url }),
      /^RunError: nothing listens at wss?:\/\/127\.0\.0\.1:9: .*; nor does a come over the coordinator$/,
    );
  });

test('one that is not reached calls back where it can, and nothing is relayed', async (t) => {
  const { enter, relayed } = await relayedCluster(t, { isEncrypted: true });
  const [a, b] = [await enter('a', false), await enter('b', true)];
  const link = await b.network.connect({ name: 'a', url: a.network.url });
  const arriving = received(link, 1);
  const other = await until(() => a.links[0]);
  await other.send(frame('activation', 100));
  assert.deepEqual([link.peer, other.peer, b.links.length], ['a', 'b', 0]);
  assert.equal((await arriving)[0]?.kind, 'activation');
  assert.deepEqual(relayed, []);
});

test('a relayed link is measured by what arrives at its other end', async (t) => {
  const { enter, relayed } = await relayedCluster(t, { isEncrypted: true });
  const [a, b] = [await enter('a', false), await enter('b', false)];
  // Time is what has arrived at a: each answer of a's takes a millisecond, whatever else the machine does.
  let answerCount = 0;
  const clock = { ...systemClock, now: () => answerCount };
  const handlers = { onFrame: () => {}, onEnd: () => {} };
  const atA = new Peers('a', clock, { ...handlers, linkWorkMs: () => ++answerCount });
  const atB = new Peers('b', clock, handlers);
  atB.accept(await b.network.connect({ name: 'a', url: a.network.url }));
  atA.accept(defined(a.links[0], 'the link at a'));
  const { bandwidthMbps, latencyMs, receivingMsPerMiB } = await atB.measure('a');
  assert.equal(relayed.length, 1);
  // A round trip is one answer; pieces of 256 KiB, four of which are a MiB, come one in each.
  assert.deepEqual([latencyMs, receivingMsPerMiB], [0.5, 4]);
  // Of the 107 pieces that are counted up to 31 may have arrived before the answer to the one before them is here.
  const pieceMbps = (2 ** 18 * 8) / 1000;
  const ratio = bandwidthMbps / pieceMbps;
  assert.ok(ratio >= 107 / 138 && ratio <= 107 / 76, `${bandwidthMbps} Mbps`);
  await Promise.all([atA.close('over'), atB.close('over')]);
});

const helloOf = (name: string, credential: string, facts: Record<string, unknown>) =>
  ({ protocol: protocolVersion, purpose: 'relay', name, credential, facts }) as const;

/** Resolves when a stream has ended, as it may have already, with what came over it. */
async function ended(stream: Duplex): Promise<number> {
  let byteCount = 0;
  stream.on('data', (part: Buffer) => {
    byteCount += part.length;
  });
  if (!stream.closed) await once(stream, 'close');
  return byteCount;
}

test('strangers, other devices and wishes without end get nothing', async (t) => {
  const { server, enter, members } = await relayedCluster(t, { isEncrypted: true });
  const [a, b, c] = [await enter('a', false), await enter('b', false), await enter('c', false)];
  const tickets: string[] = [];
  members.set('a', { ...a, network: { ...a.network, called: (_, ticket) => void tickets.push(ticket) } });
  const wish = (from: Member, name: string, facts: Record<string, unknown>, credential = peerToken): Promise<Duplex> =>
    connectStream(server.url, {
      hello: helloOf(name, credential, facts),
      tls: defined(from.admission, 'a certificate').tls,
    });
  const refused = (error: unknown): boolean =>
    error instanceof InputError && error.message === "only this run's workers are relayed";
  await assert.rejects(wish(b, 'b', { to: 'a' }, 'another-token'), refused);
  await assert.rejects(wish(b, 'b', { to: 'a', ticket: 'x'.repeat(32) }), refused);
  await assert.rejects(wish(b, 'b', {}), refused);
  // Nobody is there by this name, and nobody waits with this ticket.
  assert.equal(await ended(await wish(b, 'b', { to: 'nobody' })), 0);
  assert.equal(await ended(await wish(b, 'b', { ticket: 'x'.repeat(32) })), 0);
  // The ticket is a's: c is what its certificate says, whatever it says itself.
  const waiting = await wish(b, 'b', { to: 'a' });
  assert.equal(await ended(await wish(c, 'a', { ticket: defined(tickets[0], 'a ticket') })), 0);
  // A second wish for the same device replaces the first.
  const first = ended(waiting);
  const second = await wish(b, 'b', { to: 'a' });
  assert.equal(await first, 0);
  assert.equal(tickets.length, 2);
  second.destroy();
});

test('the relay reads no faster than the other end takes', { timeout: 30_000 }, async (t) => {
  const { server, enter, members } = await relayedCluster(t, { isEncrypted: false });
  const [a] = [await enter('a', false), await enter('b', false)];
  const called = new Promise<string>((resolve) => {
    members.set('a', { ...a, network: { ...a.network, called: (_, ticket) => resolve(ticket) } });
  });
  const from = await connectStream(server.url, { hello: helloOf('b', peerToken, { to: 'a' }) });
  const to = await connectStream(server.url, { hello: helloOf('a', peerToken, { ticket: await called }) });
  const part = Buffer.alloc(65_536, 7);
  const most = 64 * 2 ** 20;
  let sent = 0;
  // Until the way is full: what sockets hold, and 64 KiB a stream.
  while (sent < most) {
    sent += part.length;
    if (!from.write(part) && !(await drains(from))) break;
  }
  assert.ok(sent < 32 * 2 ** 20, `${sent} bytes were taken`);
  let got = 0;
  to.on('data', (bytes: Buffer) => {
    assert.equal(bytes.indexOf(0), -1);
    got += bytes.length;
  });
  from.end();
  await once(to, 'close');
  assert.equal(got, sent);
});

/** Whether a stream takes more, when all that could move has had its turn many times. */
async function drains(stream: Duplex): Promise<boolean> {
  for (let turn = 0; turn < 2_000 && stream.writableNeedDrain; turn++)
    await new Promise((resolve) => setImmediate(resolve));
  return !stream.writableNeedDrain;
}
