import assert from 'node:assert/strict';
import { test } from 'node:test';
import { wrap } from '../../graph/tensor.ts';
import { createRandom } from '../../random.ts';
import { createVirtualClock } from '../../testing/virtual-clock.ts';
import type { Link } from '../../transport/link.ts';
import { createMemoryLinks } from '../../transport/memory.ts';
import { type RingPort, ringAllReduce } from './all-reduce.ts';
import { Mailbox } from './mailbox.ts';

/** A ring of mailboxes in memory. */
function ring(memberCount: number): { ports: RingPort[]; sentElements: number[] } {
  const mailboxes = Array.from({ length: memberCount }, () => new Mailbox(1e9));
  const sentElements = new Array<number>(memberCount).fill(0);
  const ports = mailboxes.map(
    (mailbox, index): RingPort => ({
      async send(piece, data) {
        sentElements[index] = (sentElements[index] as number) + data.length;
        const next = mailboxes[(index + 1) % memberCount] as Mailbox;
        next.put(
          { kind: 'all-reduce', round: 0, microBatch: piece, from: 'previous' },
          {
            kind: 'all-reduce',
            epoch: 0,
            round: 0,
            microBatch: piece,
            tensors: [wrap('float32', [data.length], data)],
          },
        );
      },
      receive: (piece) => mailbox.take({ kind: 'all-reduce', round: 0, microBatch: piece, from: 'previous' }),
    }),
  );
  return { ports, sentElements };
}

for (const [memberCount, length] of [
  [2, 10],
  [3, 1],
  [3, 7],
  [4, 300_001],
  [5, 4096],
] as const) {
  test(`${memberCount} members end with the same sum of ${length} elements, sending 2(n−1)/n of it each`, async () => {
    const random = createRandom(7, memberCount, length);
    const inputs = Array.from({ length: memberCount }, () => Float32Array.from({ length }, () => random.normal()));
    const expected = Float64Array.from({ length }, (_, index) => inputs.reduce((sum, input) => sum + (input[index] as number), 0));
    const { ports, sentElements } = ring(memberCount);
    await Promise.all(inputs.map((input, index) => ringAllReduce(input, index, memberCount, ports[index] as RingPort)));
    for (const input of inputs) {
      assert.deepEqual(input, inputs[0]);
      input.forEach((value, index) => assert.ok(Math.abs(value - (expected[index] as number)) < 1e-5));
    }
    const total = sentElements.reduce((sum, count) => sum + count, 0);
    assert.equal(total, 2 * (memberCount - 1) * length);
  });
}

test('a piece of another length is refused', async () => {
  const port: RingPort = {
    send: async () => {},
    receive: async () => ({ kind: 'all-reduce', epoch: 0, round: 0, microBatch: 0, tensors: [wrap('float32', [1], new Float32Array(1))] }),
  };
  await assert.rejects(ringAllReduce(new Float32Array(10), 0, 2, port), /should hold 5 float32 elements, not 1/);
});

/** A ring over shaped links with real framing and pacing, on a virtual clock: milliseconds that each of two sums in a row takes. */
async function timeOnLinks(memberCount: number, length: number, speed: { bandwidthMbps: number; latencyMs: number }): Promise<number[]> {
  const clock = createVirtualClock();
  const mailboxes = Array.from({ length: memberCount }, () => new Mailbox(1e9));
  const forward: Link[] = [];
  for (let index = 0; index < memberCount; index++) {
    const next = (index + 1) % memberCount;
    const [from, to] = createMemoryLinks(`${index}`, `${next}`, { clock, ...speed });
    to.receive((frame) => mailboxes[next]?.put({ kind: 'all-reduce', round: frame.round, microBatch: frame.microBatch, from: '' }, frame));
    forward.push(from);
  }
  const times: number[] = [];
  for (let round = 0; round < 2; round++) {
    const startMs = clock.now();
    const inputs = Array.from({ length: memberCount }, (_, index) => new Float32Array(length).fill(index + 1));
    const port = (index: number): RingPort => ({
      send: (piece, data) =>
        (forward[index] as Link).send({
          kind: 'all-reduce',
          epoch: 0,
          round,
          microBatch: piece,
          tensors: [{ type: 'float32', shape: [data.length], data }],
        }),
      receive: (piece) => (mailboxes[index] as Mailbox).take({ kind: 'all-reduce', round, microBatch: piece, from: '' }),
    });
    await clock.runUntil(Promise.all(inputs.map((values, index) => ringAllReduce(values, index, memberCount, port(index)))));
    for (const values of inputs) assert.ok(values.every((value) => value === (memberCount * (memberCount + 1)) / 2));
    times.push(clock.now() - startMs);
  }
  await clock.runUntil(Promise.all(forward.map((link) => link.close('done'))));
  return times;
}

for (const [memberCount, megabytes, bandwidthMbps, latencyMs] of [
  [2, 2, 100, 1],
  [3, 3, 100, 1],
  [5, 5, 100, 2],
  [4, 12, 1000, 0.3],
  [3, 0.6, 20, 5],
] as const) {
  test(`${memberCount} members sum ${megabytes} MB at ${bandwidthMbps} Mbps and ${latencyMs} ms in eq. 5's time: no step waits for the one before`, async () => {
    const length = (megabytes * 1e6) / 4;
    const leastMs = (2 * (memberCount - 1) * megabytes * 8e3) / (memberCount * bandwidthMbps);
    const [, ms = 0] = await timeOnLinks(memberCount, length, { bandwidthMbps, latencyMs }); // the first round finds out how fast the links are
    const mostMs = 1.005 * leastMs + latencyMs;
    assert.ok(ms > leastMs && ms < mostMs, `${ms.toFixed(1)} ms, not between ${leastMs.toFixed(1)} and ${mostMs.toFixed(1)}`);
  });
}
