// The pacer on a virtual network: a shaped full-duplex link whose own buffer is endless, as a socket's on a slow link nearly is.

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
    /** Runs for so long; the use of the link towards `link` (1: all of its bandwidth), and the longest delay of urgent frames. */
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
  assert.ok(value >= least && value <= 1.01, `${value.toFixed(3)} of the link is used towards one end, not at least ${least}`);
}

function checkRate(link: Link, mbps: number, tolerance = 0.05): void {
  const told = link.rate?.().mbps ?? 0;
  assert.ok(Math.abs(told - mbps) <= tolerance * mbps, `${told.toFixed(2)} Mbps are told of ${mbps}`);
}

function checkAtMost(milliseconds: number, most: number): void {
  assert.ok(milliseconds <= most, `an urgent frame took ${milliseconds.toFixed(1)} ms, more than ${most}`);
}

for (const [mbps, latencyMs, maxDelayMs] of [
  [100, 1, 110],
  [1000, 0.3, 20],
  [5, 10, 180],
  [100, 50, 160],
] as const) {
  test(`pipeline frames fill a link of ${mbps} Mbps and ${latencyMs} ms, and control frames still come through`, async () => {
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
  test(`bulk fills a link of ${mbps} Mbps and ${latencyMs} ms, and delays a micro-batch by no more than ${addedMs} ms`, async () => {
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

test('what a link carries is told from the times in which it was busy, and from no others', async () => {
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

test('a clock that stood still while its machine slept does not stop the link', () => {
  const hourMs = 3_600_000;
  for (const [ownJumpMs, peerJumpMs] of [
    [0, 0],
    [0, hourMs],
    [hourMs, 0],
  ] as const) {
    const pacer = new Pacer();
    // A piece of 64 KiB every 5 ms, received 1 ms and acknowledged 2 ms later; after a hundred, one clock is an hour ahead of the other.
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
