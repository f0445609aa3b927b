import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ProtocolError, RunError } from '../../errors.ts';
import { createVirtualClock, type VirtualClock } from '../../testing/virtual-clock.ts';
import type { Frame, Link } from '../../transport/link.ts';
import { Peers } from './peers.ts';

interface Shape {
  readonly mbps: number;
  readonly latencyMs: number;
  /**
   * Bytes that pass at once after the link was idle (a token bucket), and those that a buffer takes from the sender at
   * once.
   */
  readonly burstBytes: number;
  /** By which messages of a worker, counted from 0, are held up. Default: none is. */
  readonly lateMs?: (message: number, from: string) => number;
}

/** One direction: a token bucket, then a way of some length. */
function direction(
  clock: VirtualClock,
  { mbps, latencyMs, burstBytes, lateMs = () => 0 }: Shape,
  from: string,
): (bytes: number, arrive: () => void) => void {
  const bytesPerMs = mbps * 125;
  let [tokens, filledMs, count] = [burstBytes, 0, 0];
  return (bytes, arrive) => {
    const nowMs = Math.max(clock.now(), filledMs);
    tokens = Math.min(burstBytes, tokens + (nowMs - filledMs) * bytesPerMs);
    filledMs = nowMs;
    // What the bucket lacks is waited for; the next message waits behind it.
    const waitMs = Math.max(0, (bytes - tokens) / bytesPerMs);
    tokens = Math.max(0, tokens - bytes);
    filledMs += waitMs;
    clock.after(filledMs - clock.now() + latencyMs + lateMs(count++, from), arrive);
  };
}

/** A worker's link work after it has sent and received these bytes. */
type Loss = (sentBytes: number, receivedBytes: number) => number | undefined;

/** Two workers' peers, linked by such directions. */
function linked(
  clock: VirtualClock,
  shape: Shape,
  losses: Readonly<Record<string, Loss>> = {},
  ended: Link['ended'] = new Promise(() => {}),
): Peers {
  const handlers: Record<string, (frame: Frame) => void> = {};
  const passed: Record<string, { sent: number; received: number }> = {
    a: { sent: 0, received: 0 },
    b: { sent: 0, received: 0 },
  };
  const link = (from: string, to: string): Link => {
    const send = direction(clock, shape, from);
    return {
      peer: to,
      async send(frame) {
        const bytes = 100 + (frame.tensors ?? []).reduce((sum, { data }) => sum + data.byteLength, 0);
        if (passed[from] !== undefined) passed[from].sent += bytes;
        send(bytes, () => {
          if (passed[to] !== undefined) passed[to].received += bytes;
          handlers[to]?.(frame);
        });
      },
      receive: (handler) => {
        handlers[from] = handler;
      },
      queuedBytes: () => 0,
      close: async () => {},
      ended,
    };
  };
  const [a, b] = ['a', 'b'].map((name) => {
    const linkWorkMs = (): number | undefined => losses[name]?.(passed[name]?.sent ?? 0, passed[name]?.received ?? 0);
    return new Peers(name, clock, { onFrame: () => {}, onEnd: () => {}, linkWorkMs });
  }) as [Peers, Peers];
  a.accept(link('a', 'b'));
  b.accept(link('b', 'a'));
  return a;
}

for (const [mbps, latencyMs, burstBytes] of [
  [100, 0.2, 2 ** 16],
  [100, 0.2, 2 ** 18],
  [10, 5, 2 ** 16],
  [1000, 0.1, 2 ** 17],
  [1000, 25, 2 ** 16],
] as const) {
  test(`${mbps} Mbps and ${latencyMs} ms, with bursts of ${burstBytes / 1024} KiB, measured within 1%`, async () => {
    const clock = createVirtualClock();
    const { bandwidthMbps, latencyMs: found } = await clock.runUntil(
      linked(clock, { mbps, latencyMs, burstBytes }).measure('b'),
    );
    assert.ok(Math.abs(bandwidthMbps / mbps - 1) < 0.01, `${bandwidthMbps} Mbps`);
    assert.ok(Math.abs(found / latencyMs - 1) < 0.01, `${found} ms`);
    // 10 Mbps are 2 MiB in 1.7 s at most, a gigabit 48 MiB.
    assert.ok(clock.now() < 2000, `${clock.now()} ms`);
  });
}

/** A link that takes all and ends when it is closed. */
function takingLink(peer: string): Link {
  let close = (): void => {};
  const ended = new Promise<Awaited<Link['ended']>>((resolve) => {
    close = () => resolve({ clean: true, reason: 'closed' });
  });
  return { peer, send: async () => {}, receive: () => {}, queuedBytes: () => 0, close: async () => close(), ended };
}

test('a peer that calls again: who has sent to it before is told, with the epoch of what may be lost', async () => {
  const told: unknown[] = [];
  const peers = new Peers('a', createVirtualClock(), {
    onFrame: () => {},
    onEnd: (peer) => told.push(['end', peer]),
    onReplaced: (peer, epoch) => told.push(['replaced', peer, epoch]),
  });
  peers.accept(takingLink('b'));
  peers.accept(takingLink('b')); // nothing was sent
  const frame: Frame = { kind: 'state', epoch: 7, round: 0, microBatch: -1 };
  await peers.send('b', frame, 'pipeline');
  await peers.send('b', { ...frame, epoch: 8 }, 'pipeline');
  peers.accept(takingLink('b'));
  assert.deepEqual(told, [['replaced', 'b', 8]]);
});

test('small frames that a quota holds up do not make the latency longer, even most of them', async () => {
  const clock = createVirtualClock();
  const lateMs = (message: number): number => (message % 5 === 3 ? 0 : 18);
  const { latencyMs } = await clock.runUntil(
    linked(clock, { mbps: 1000, latencyMs: 0.2, burstBytes: 2 ** 17, lateMs }).measure('b'),
  );
  assert.ok(Math.abs(latencyMs / 0.2 - 1) < 0.01, `${latencyMs} ms`);
});

for (const [mbps, leastMbps] of [
  [1000, 600],
  [10, 9.5],
] as const) {
  test(`${mbps} Mbps between processors that quotas stop by turns are not underestimated`, async () => {
    const clock = createVirtualClock();
    const [periodMs, runMs] = [100, 12];
    const startMs: Record<string, number> = { a: 50, b: 0 };
    // What arrives while its receiver is stopped waits until it runs again: a window there and back takes a period.
    const lateMs = (_: number, from: string): number => {
      const phaseMs = (clock.now() + (startMs[from] ?? 0)) % periodMs;
      return phaseMs < runMs ? 0 : periodMs - phaseMs;
    };
    const { bandwidthMbps } = await clock.runUntil(
      linked(clock, { mbps, latencyMs: 0.2, burstBytes: 2 ** 16, lateMs }).measure('b'),
    );
    assert.ok(bandwidthMbps > leastMbps && bandwidthMbps < 1.01 * mbps, `${bandwidthMbps} Mbps`);
  });
}

test('the computing that a MiB costs its sender and its receiver is measured with the link', async () => {
  const clock = createVirtualClock();
  const perMiB = (ms: number) => (bytes: number) => (ms * bytes) / 2 ** 20;
  const peers = linked(
    clock,
    { mbps: 100, latencyMs: 1, burstBytes: 2 ** 16 },
    { a: (sent) => 5 + perMiB(3)(sent), b: (_, received) => perMiB(7)(received) },
  );
  const { sendingMsPerMiB = Number.NaN, receivingMsPerMiB = Number.NaN } = await clock.runUntil(peers.measure('b'));
  // The sender has sent what is on its way besides.
  assert.ok(Math.abs(sendingMsPerMiB / 3 - 1) < 0.05, `${sendingMsPerMiB} ms`);
  assert.ok(Math.abs(receivingMsPerMiB / 7 - 1) < 0.01, `${receivingMsPerMiB} ms`);
});

test('a link that ends ends its measurement then', async () => {
  const clock = createVirtualClock();
  // Fifteen frames there and back take 30 ms.
  const ended = new Promise<Awaited<Link['ended']>>((resolve) =>
    clock.after(15.5, () => resolve({ clean: false, reason: 'gone' })),
  );
  const peers = linked(clock, { mbps: 1e6, latencyMs: 1, burstBytes: 2 ** 20 }, {}, ended);
  await assert.rejects(
    clock.runUntil(peers.measure('b')),
    (error) => error instanceof RunError && /ended: gone|no link/.test(error.message),
  );
  assert.ok(clock.now() < 17, `${clock.now()} ms`);
});

test('a device that computes, or does not know its costs, does not report them', async () => {
  const clock = createVirtualClock();
  const shape = { mbps: 100, latencyMs: 1, burstBytes: 2 ** 16 };
  assert.deepEqual(Object.keys(await clock.runUntil(linked(clock, shape).measure('b'))).sort(), [
    'bandwidthMbps',
    'latencyMs',
    'peer',
  ]);
  const found = await clock.runUntil(linked(clock, shape, { a: () => 0, b: () => undefined }).measure('b'));
  assert.equal(found.sendingMsPerMiB, 0);
  assert.equal('receivingMsPerMiB' in found, false);
});

test('a peer whose answer is no time is refused', async () => {
  for (const value of [Number.NaN, -1, Number.POSITIVE_INFINITY]) {
    const clock = createVirtualClock();
    const peers = linked(clock, { mbps: 100, latencyMs: 1, burstBytes: 2 ** 16 }, { a: () => 0, b: () => value });
    await assert.rejects(clock.runUntil(peers.measure('b')), ProtocolError);
  }
});
