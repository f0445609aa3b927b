import assert from 'node:assert/strict';
import { test } from 'node:test';
import { tensor } from '../../graph/tensor.ts';
import { createRandom } from '../../random.ts';
import { createVirtualClock } from '../../testing/virtual-clock.ts';
import type { Link } from '../../transport/link.ts';
import { createMemoryLinks } from '../../transport/memory.ts';
import { type RingPort, ringAllReduce } from './all-reduce.ts';
import { pieceCodec, Residuals } from './codec.ts';
import { Mailbox } from './mailbox.ts';
import { orderedAllReduce } from './ordered-all-reduce.ts';
import { SegmentedVector } from './segmented-vector.ts';

const plain = pieceCodec(undefined);

/** A vector of these values in arrays of many sizes, the same for each length. */
function segmented(values: Float32Array): SegmentedVector {
  const random = createRandom(3, values.length);
  const segments: Float32Array[] = [];
  for (let first = 0; first < values.length; ) {
    const length = Math.round(values.length * random.uniform() ** 4);
    segments.push(values.slice(first, first + length));
    first += length;
  }
  return new SegmentedVector(segments);
}

function joined(vector: SegmentedVector): Float32Array {
  return vector.copy(0, vector.length);
}

/** A ring of mailboxes in memory. */
function ring(memberCount: number): { ports: RingPort[]; sentElements: number[] } {
  const mailboxes = Array.from({ length: memberCount }, () => new Mailbox(1e9));
  const sentElements = new Array<number>(memberCount).fill(0);
  const ports = mailboxes.map(
    (mailbox, index): RingPort => ({
      async send(piece, tensors) {
        sentElements[index] = (sentElements[index] as number) + (tensors[0]?.data.length ?? 0);
        const next = mailboxes[(index + 1) % memberCount] as Mailbox;
        next.put(
          { kind: 'all-reduce', round: 0, microBatch: piece, from: 'previous' },
          {
            kind: 'all-reduce',
            epoch: 0,
            round: 0,
            microBatch: piece,
            tensors: tensors.map((sent) => ({ ...sent, data: sent.data.slice() })),
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
    const expected = Float64Array.from({ length }, (_, index) =>
      inputs.reduce((sum, input) => sum + (input[index] as number), 0),
    );
    const { ports, sentElements } = ring(memberCount);
    const vectors = inputs.map(segmented);
    await Promise.all(
      vectors.map((vector, index) =>
        ringAllReduce(vector, { memberIndex: index, memberCount, codec: plain }, ports[index] as RingPort),
      ),
    );
    for (const vector of vectors) {
      assert.deepEqual(vector, vectors[0]);
      joined(vector).forEach((value, index) => assert.ok(Math.abs(value - (expected[index] as number)) < 1e-5));
    }
    const total = sentElements.reduce((sum, count) => sum + count, 0);
    assert.equal(total, 2 * (memberCount - 1) * length);
  });
}

test('in order: every member has the bits of adding part after part, however the members share them', async () => {
  const length = 150_001;
  const random = createRandom(13);
  const parts = Array.from({ length: 5 }, () => Float32Array.from({ length }, () => random.normal()));
  const expected = parts.reduce((sum, part) => sum.map((value, index) => value + (part[index] as number)));
  for (const counts of [[5], [2, 3], [0, 4, 1], [1, 0, 2, 2]]) {
    const { ports } = ring(counts.length);
    let first = 0;
    const sums = counts.map(async (count, memberIndex) => {
      const own = parts.slice(first, first + count).map(segmented);
      first += count;
      const total = own[0] ?? segmented(new Float32Array(length));
      const place = { memberIndex, memberCount: counts.length, port: ports[memberIndex] as RingPort };
      await orderedAllReduce({ parts: own, total }, place);
      return joined(total);
    });
    for (const sum of await Promise.all(sums)) assert.deepEqual(sum, expected, `${counts}`);
  }
});

test('a piece of another length is refused', async () => {
  const port: RingPort = {
    send: async () => {},
    receive: async () => ({
      kind: 'all-reduce',
      epoch: 0,
      round: 0,
      microBatch: 0,
      tensors: [tensor('float32', [1], [0])],
    }),
  };
  await assert.rejects(
    ringAllReduce(new SegmentedVector([new Float32Array(10)]), { memberIndex: 0, memberCount: 2, codec: plain }, port),
    /should hold 5 float32 elements, not 1/,
  );
});

for (const encoding of ['float16', 'int8'] as const) {
  test(`${encoding}: all have equal bits, near the sum; what one round loses comes in the next ones`, async () => {
    const [memberCount, length, roundCount] = [3, 50_001, 12];
    const random = createRandom(11, memberCount);
    const residuals = Array.from({ length: memberCount }, () => new Residuals());
    const wanted = new Float64Array(length);
    const found = new Float64Array(length);
    let firstError = 0;
    for (let round = 0; round < roundCount; round++) {
      const inputs = Array.from({ length: memberCount }, () => Float32Array.from({ length }, () => random.normal()));
      for (const input of inputs) input.forEach((value, index) => (wanted[index] = (wanted[index] as number) + value));
      const { ports } = ring(memberCount);
      const sum = async (values: Float32Array, memberIndex: number): Promise<Float32Array> => {
        const codec = pieceCodec(encoding, () => (residuals[memberIndex] as Residuals).of('all', round, length));
        const vector = segmented(values);
        await ringAllReduce(vector, { memberIndex, memberCount, codec }, ports[memberIndex] as RingPort);
        return joined(vector);
      };
      const sums = await Promise.all(inputs.map(sum));
      for (const values of sums) assert.deepEqual(values, sums[0]);
      sums[0]?.forEach((value, index) => (found[index] = (found[index] as number) + value));
      if (round === 0) firstError = meanError(found, wanted);
    }
    const lastError = meanError(found, wanted);
    // Halves: three roundings of 2^-12 of about 1.6. 8 bits: three of up to half a step of 8/127, which stay as they
    // are while the sum grows.
    if (encoding === 'float16') assert.ok(firstError < 1e-3 && lastError < 2e-3, `${firstError}, ${lastError}`);
    else assert.ok(firstError < 0.05 && lastError < 1.2 * firstError, `${firstError}, ${lastError}`);
  });
}

function meanError(found: Float64Array, wanted: Float64Array): number {
  return found.reduce((sum, value, index) => sum + Math.abs(value - (wanted[index] as number)), 0) / found.length;
}

test('residuals go on from round to round, and begin anew after a gap or for another part of the model', () => {
  const residuals = new Residuals();
  residuals.of('a', 4, 2).set([1, 2]);
  assert.deepEqual(residuals.of('a', 5, 2), Float32Array.of(1, 2));
  assert.deepEqual(residuals.of('a', 5, 2), Float32Array.of(0, 0), 'the round is repeated');
  residuals.of('a', 6, 2).set([3, 4]);
  assert.deepEqual(residuals.of('b', 7, 2), Float32Array.of(0, 0));
  assert.deepEqual(residuals.of('a', 8, 2), Float32Array.of(0, 0));
});

/**
 * A ring over shaped links with real framing and pacing, on a virtual clock: milliseconds that each of two sums in a
 * row takes.
 */
async function timeOnLinks(
  memberCount: number,
  length: number,
  speed: { bandwidthMbps: number; latencyMs: number },
): Promise<number[]> {
  const clock = createVirtualClock();
  const mailboxes = Array.from({ length: memberCount }, () => new Mailbox(1e9));
  const forward: Link[] = [];
  for (let index = 0; index < memberCount; index++) {
    const next = (index + 1) % memberCount;
    const [from, to] = createMemoryLinks(`${index}`, `${next}`, { clock, ...speed });
    to.receive((frame) =>
      mailboxes[next]?.put({ kind: 'all-reduce', round: frame.round, microBatch: frame.microBatch, from: '' }, frame),
    );
    forward.push(from);
  }
  const times: number[] = [];
  for (let round = 0; round < 2; round++) {
    const startMs = clock.now();
    const inputs = Array.from({ length: memberCount }, (_, index) =>
      segmented(new Float32Array(length).fill(index + 1)),
    );
    const port = (index: number): RingPort => ({
      send: (piece, tensors) =>
        (forward[index] as Link).send({ kind: 'all-reduce', epoch: 0, round, microBatch: piece, tensors }),
      receive: (piece) =>
        (mailboxes[index] as Mailbox).take({ kind: 'all-reduce', round, microBatch: piece, from: '' }),
    });
    await clock.runUntil(
      Promise.all(
        inputs.map((vector, index) =>
          ringAllReduce(vector, { memberIndex: index, memberCount, codec: plain }, port(index)),
        ),
      ),
    );
    for (const vector of inputs)
      assert.ok(joined(vector).every((value) => value === (memberCount * (memberCount + 1)) / 2));
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
  test(`${memberCount} members, ${megabytes} MB, ${bandwidthMbps} Mbps, ${latencyMs} ms: eq. 5's time`, async () => {
    const length = (megabytes * 1e6) / 4;
    const leastMs = (2 * (memberCount - 1) * megabytes * 8e3) / (memberCount * bandwidthMbps);
    // the first round finds out how fast the links are
    const [, ms = 0] = await timeOnLinks(memberCount, length, { bandwidthMbps, latencyMs });
    const mostMs = 1.005 * leastMs + latencyMs;
    assert.ok(
      ms > leastMs && ms < mostMs,
      `${ms.toFixed(1)} ms, not between ${leastMs.toFixed(1)} and ${mostMs.toFixed(1)}`,
    );
  });
}
