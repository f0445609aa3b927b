// The pacer on a virtual network: a shaped full-duplex link whose own buffer is endless, as a socket's on a slow link
// nearly is.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Clock } from '../clock.ts';
import { ProtocolError } from '../errors.ts';
import type { Frame, Link, Priority } from './link.ts';
import { createMemoryLinks, type MemoryLinkOptions } from './memory.ts';
import { Pacer } from './pacer.ts';

interface VirtualClock extends Clock {
  /** Lets everything happen until then. */
  run(untilMs: number): Promise<void>;
}

function createVirtualClock(): VirtualClock {
  let nowMs = 0;
  const timers: { atMs: number; callback: () => void }[] = [];
  return {
    now: () => nowMs,
    after(delayMs, callback) {
      const timer = { atMs: nowMs + delayMs, callback };
      const place = timers.findIndex(({ atMs }) => atMs > timer.atMs);
      timers.splice(place < 0 ? timers.length : place, 0, timer);
      return () => {
        if (timers.includes(timer)) timers.splice(timers.indexOf(timer), 1);
      };
    },
    async run(untilMs) {
      for (let next = timers[0]; next !== undefined && next.atMs <= untilMs; next = timers[0]) {
        timers.shift();
        nowMs = next.atMs;
        next.callback();
        for (let turn = 0; turn < 4; turn++) await Promise.resolve(); // promises continue before the next event
      }
      nowMs = untilMs;
    },
  };
}

const bytes256KiB = new Uint8Array(262_144);

function frameOf(kind: string, sentAtMs: number, byteCount: number): Frame {
  return {
    kind,
    epoch: 0,
    round: 0,
    microBatch: 0,
    control: { sentAtMs },
    tensors: [{ type: 'uint8', shape: [byteCount], data: bytes256KiB.subarray(0, byteCount) }],
  };
}

/** Two ends of a shaped link; counts and delays of what arrives at each. */
function createNetwork(bandwidthMbps: number, latencyMs: number) {
  const clock = createVirtualClock();
  const shape: MemoryLinkOptions & { bandwidthMbps: number } = { clock, bandwidthMbps, latencyMs };
  const [a, b] = createMemoryLinks('a', 'b', shape);
  const received = new Map<Link, number>([
    [a, 0],
    [b, 0],
  ]);
  let delays: number[] = [];
  for (const link of [a, b]) {
    link.receive(({ kind, control, tensors }) => {
      received.set(link, (received.get(link) as number) + (tensors?.[0]?.data.length ?? 0));
      if (kind === 'urgent') delays.push(clock.now() - (control as { sentAtMs: number }).sentAtMs);
    });
  }
  return {
    clock,
    a,
    b,
    setBandwidth(mbps: number): void {
      shape.bandwidthMbps = mbps;
    },
    /** Keeps four frames of 256 KiB waiting, for ever. */
    saturate(link: Link, priority: Priority): void {
      for (let sender = 0; sender < 4; sender++) {
        void (async () => {
          for (;;) await link.send(frameOf('load', 0, 262_144), priority);
        })().catch(() => {}); // at the link's end
      }
    },
    /** Sends a small frame every 97 ms. */
    every97Ms(link: Link, priority: Priority, byteCount: number): void {
      const send = (): void => {
        void link.send(frameOf('urgent', clock.now(), byteCount), priority);
        clock.after(97, send);
      };
      send();
    },
    /**
     * Runs for so long; the use of the link towards `link` (1: all of its bandwidth), and the longest delay of urgent
     * frames.
     */
    async measure(durationMs: number): Promise<{ useOfA: number; useOfB: number; maxDelayMs: number }> {
      delays = [];
      const before = new Map(received);
      await clock.run(clock.now() + durationMs);
      const use = (link: Link): number =>
        ((received.get(link) as number) - (before.get(link) as number)) / (shape.bandwidthMbps * 125 * durationMs);
      return { useOfA: use(a), useOfB: use(b), maxDelayMs: Math.max(...delays) };
    },
  };
}

function checkAtLeast(value: number, least: number): void {
  assert.ok(
    value >= least && value <= 1.01,
    `${value.toFixed(3)} of the link is used towards one end, not at least ${least}`,
  );
}

function checkRate(link: Link, mbps: number, tolerance = 0.05): void {
  const measured = link.rate?.().mbps ?? 0;
  assert.ok(Math.abs(measured - mbps) <= tolerance * mbps, `${measured.toFixed(2)} Mbps measured of ${mbps}`);
}

function checkAtMost(value: number, most: number, unit = 'ms for an urgent frame'): void {
  assert.ok(value <= most, `${value.toFixed(3)} ${unit}, more than ${most}`);
}

for (const [mbps, latencyMs, maxDelayMs] of [
  [100, 1, 110],
  [1000, 0.3, 20],
  [5, 10, 180],
  [100, 50, 160],
] as const) {
  test(`pipeline frames fill ${mbps} Mbps at ${latencyMs} ms, and control frames still come through`, async () => {
    const network = createNetwork(mbps, latencyMs);
    network.saturate(network.a, 'pipeline');
    network.every97Ms(network.a, 'control', 100);
    await network.clock.run(5_000);
    const { useOfB, maxDelayMs: delay } = await network.measure(10_000 * (mbps > 500 ? 0.2 : 1));
    checkAtLeast(useOfB, 0.97);
    checkAtMost(delay, maxDelayMs);
  });
}

test('both directions are filled at once, although acknowledgements wait behind the data', async () => {
  for (const [mbps, latencyMs] of [
    [100, 1],
    [5, 10],
    [20, 150],
  ] as const) {
    const network = createNetwork(mbps, latencyMs);
    network.saturate(network.a, 'pipeline');
    network.saturate(network.b, 'pipeline');
    await network.clock.run(5_000);
    const { useOfA, useOfB } = await network.measure(mbps > 50 ? 10_000 : 60_000);
    checkAtLeast(useOfA, 0.98);
    checkAtLeast(useOfB, 0.98);
  }
});

for (const [mbps, latencyMs, byteCount, addedMs] of [
  [100, 1, 25_000, 7],
  [1000, 0.3, 250_000, 7],
  [20, 5, 5_000, 12],
] as const) {
  test(`bulk fills ${mbps} Mbps at ${latencyMs} ms, and delays a micro-batch by at most ${addedMs} ms`, async () => {
    const network = createNetwork(mbps, latencyMs);
    network.saturate(network.a, 'bulk');
    network.every97Ms(network.a, 'pipeline', byteCount); // 2 ms on an empty link
    await network.clock.run(5_000);
    const { useOfB, maxDelayMs } = await network.measure(mbps > 500 ? 2_000 : 10_000);
    checkAtLeast(useOfB, 0.95);
    checkAtMost(maxDelayMs, 2 + latencyMs + addedMs);
  });
}

test('a link that becomes slower is known within seconds, one that becomes faster is used', async () => {
  const network = createNetwork(100, 1);
  network.saturate(network.a, 'pipeline');
  network.every97Ms(network.a, 'control', 100);
  await network.clock.run(3_000);
  network.setBandwidth(5);
  checkAtMost((await network.measure(3_000)).maxDelayMs, 2_500); // what was under way already
  const slow = await network.measure(5_000);
  checkAtMost(slow.maxDelayMs, 200);
  checkAtLeast(slow.useOfB, 0.95);
  checkRate(network.a, 5);
  network.setBandwidth(100);
  await network.measure(1_000);
  checkAtLeast((await network.measure(3_000)).useOfB, 0.97);
  checkRate(network.a, 100);
});

test('the rate of a link is measured only over times in which it was busy', async () => {
  const network = createNetwork(100, 1);
  assert.equal(network.a.rate?.().measuredMs, 0);
  // A frame of 64 KiB takes 5 of every 97 ms.
  network.every97Ms(network.a, 'pipeline', 65_536);
  await network.clock.run(9_700);
  const { measuredMs = 0 } = network.a.rate?.() ?? {};
  assert.ok(measuredMs > 50 && measuredMs <= 520, `${measuredMs} ms of the 520 in which it was busy`);
  checkRate(network.a, 100, 0.1);
});

test('pauses and small frames do not make a fast link look slow', async () => {
  const network = createNetwork(1000, 0.3);
  network.saturate(network.a, 'pipeline');
  network.every97Ms(network.b, 'pipeline', 2_000);
  await network.clock.run(20_000);
  void network.b.send(frameOf('urgent', network.clock.now(), 262_144), 'pipeline');
  const { maxDelayMs } = await network.measure(500);
  checkAtMost(maxDelayMs, 2.1 + 0.3 + 1);
});

/**
 * A pacer that has sent pieces of 5 ms over a link of 100 Mbps, each acknowledged so much later. Returns when the last
 * was.
 */
function steadyPacer(ageMs: number): { readonly pacer: Pacer; readonly nowMs: number } {
  const pacer = new Pacer();
  const [pieceBytes, pieceMs, count, ahead] = [62_500, 5, 200, Math.ceil(ageMs / 5)];
  const acknowledge = (piece: number): void => {
    const arrivedMs = pieceMs * (piece + 1);
    if (piece >= 0) pacer.acknowledge({ byteCount: pieceBytes * (piece + 1), atMs: arrivedMs }, arrivedMs + ageMs);
  };
  for (let piece = 0; piece < count + ahead; piece++) {
    if (piece < count) pacer.sent(pieceBytes, pieceMs * piece);
    acknowledge(piece - ahead);
  }
  return { pacer, nowMs: pieceMs * count + ageMs };
}

test('after a silence no more is sent at once than without one, however late acknowledgements came', () => {
  for (const [ageMs, silenceMs] of [
    [1, 1],
    [1, 1_000],
    [100, 1],
    [100, 1_000],
  ] as const) {
    const { pacer, nowMs } = steadyPacer(ageMs);
    assert.equal(pacer.underWayBytes, 0);
    let byteCount = 0;
    while (pacer.waitMs('pipeline', nowMs + silenceMs) === 0) {
      pacer.sent(62_500, nowMs + silenceMs);
      byteCount += 62_500;
    }
    assert.ok(
      byteCount >= 10 * 12_500 && byteCount <= 17 * 12_500,
      `${byteCount} bytes after ${silenceMs} ms of silence`,
    );
  }
});

test('while acknowledgements wait behind what the peer sends, sending continues at the link’s rate for 150 ms', () => {
  const { pacer, nowMs } = steadyPacer(1);
  let sentBytes = 0;
  for (let ms = 0; ms <= 300; ms++) {
    while (pacer.waitMs('pipeline', nowMs + ms) === 0) {
      pacer.sent(12_500, nowMs + ms);
      sentBytes += 12_500;
    }
    const isExpected = Math.abs(sentBytes / 12_500 - 10 - Math.min(ms, 151)) <= 6;
    assert.ok(isExpected, `${sentBytes} bytes after ${ms} ms`);
  }
  assert.equal(pacer.waitMs('pipeline', nowMs + 300), Number.POSITIVE_INFINITY);
});

test('a clock that stood still while its machine slept does not stop the link', () => {
  const hourMs = 3_600_000;
  for (const [ownJumpMs, peerJumpMs] of [
    [0, 0],
    [0, hourMs],
    [hourMs, 0],
  ] as const) {
    const pacer = new Pacer();
    // A piece of 64 KiB every 5 ms, received 1 ms and acknowledged 2 ms later; after a hundred, one clock is an hour
    // ahead of the other.
    for (let step = 0; step < 200; step++) {
      const atMs = 5 * step;
      const [own, peer] = step < 100 ? [0, 0] : [ownJumpMs, peerJumpMs];
      pacer.sent(65_536, atMs + own);
      pacer.acknowledge({ byteCount: 65_536 * (step + 1), atMs: atMs + 1 + peer }, atMs + 2 + own);
      assert.equal(pacer.waitMs('pipeline', atMs + 5 + own), 0, `step ${step}`);
    }
    assert.ok(pacer.pieceBytes('pipeline') > 8_192);
  }
});

test('an acknowledgement of what was never sent, of less than before, or with a broken clock is refused', () => {
  const pacer = new Pacer();
  pacer.sent(100, 0);
  pacer.acknowledge({ byteCount: 60, atMs: 5 }, 1);
  for (const [byteCount, atMs] of [
    [101, 6],
    [59, 6],
    [-1, 6],
    [80, 4],
    [80, Number.NaN],
    [80, Number.POSITIVE_INFINITY],
    [80, 1e308],
  ] as const) {
    assert.throws(() => pacer.acknowledge({ byteCount, atMs }, 2), ProtocolError, `${byteCount} ${atMs}`);
  }
  pacer.acknowledge({ byteCount: 100, atMs: 5 }, 3);
  assert.equal(pacer.underWayBytes, 0);
  for (const atMs of [Number.NEGATIVE_INFINITY, -1e308]) {
    const first = new Pacer();
    first.sent(100, 0);
    assert.throws(() => first.acknowledge({ byteCount: 60, atMs }, 1), ProtocolError, String(atMs));
  }
});

for (const [mbps, laterMs] of [
  [100, 0],
  [100, 60],
  [100, 250],
  [20, 300],
  [500, 20],
] as const) {
  test(`an AllReduce of two, one ${laterMs} ms later, fills ${mbps} Mbps after a second of silence`, async () => {
    const network = createNetwork(mbps, 0.3);
    const { clock } = network;
    const pieceCount = 16;
    for (let round = 0; round < 3; round++) {
      const startMs = clock.now() + 1000;
      const ends: number[] = [];
      for (const [link, atMs] of [
        [network.a, startMs],
        [network.b, startMs + laterMs],
      ] as const) {
        const early: Frame[] = [];
        let [hasBegun, taken] = [false, 0];
        const take = (): void => {
          if (++taken <= pieceCount) void link.send(frameOf('load', 0, 262_144), 'pipeline');
          else if (taken === 2 * pieceCount) ends.push(clock.now());
        };
        link.receive((frame) => (hasBegun ? take() : early.push(frame)));
        clock.after(atMs - clock.now(), () => {
          hasBegun = true;
          for (let piece = 0; piece < pieceCount; piece++) void link.send(frameOf('load', 0, 262_144), 'pipeline');
          for (const _ of early) take();
        });
      }
      await clock.run(startMs + 30_000);
      // The later one has all of it to send when it begins; the rate is a guess in the first round.
      const idealMs = (2 * pieceCount * 262_144 * 8) / (mbps * 1000);
      for (const endMs of ends)
        checkAtMost((endMs - startMs - laterMs) / idealMs, round === 0 ? 1.25 : 1.01, 'of the ideal time');
      assert.equal(ends.length, 2);
    }
  });
}
