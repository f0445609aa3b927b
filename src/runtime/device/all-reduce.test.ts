import assert from 'node:assert/strict';
import { test } from 'node:test';
import { wrap } from '../../graph/tensor.ts';
import { createRandom } from '../../random.ts';
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
