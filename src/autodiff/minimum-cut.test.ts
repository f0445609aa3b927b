import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRandom } from '../random.ts';
import { FlowNetwork } from './minimum-cut.ts';

test('finds the minimum cut with the fewest vertices on the source side', () => {
  // s ──3──▶ a ──2──▶ t,  s ──2──▶ b ──1──▶ t,  b ──5──▶ a: only the edges into t are full.
  const network = new FlowNetwork();
  const [s, t, a, b] = [network.vertex(), network.vertex(), network.vertex(), network.vertex()];
  network.edge(s, a, 3);
  network.edge(a, t, 2);
  network.edge(s, b, 2);
  network.edge(b, t, 1);
  network.edge(b, a, 5);
  assert.deepEqual([...network.sourceSide(s, t)].sort(), [s, a, b]);
  const line = new FlowNetwork();
  const [from, middle, to] = [line.vertex(), line.vertex(), line.vertex()];
  line.edge(from, middle, 4);
  line.edge(middle, to, 4);
  assert.deepEqual([...line.sourceSide(from, to)], [from]);
});

test('an infinite path from source to sink is refused', () => {
  const network = new FlowNetwork();
  const [s, t] = [network.vertex(), network.vertex()];
  network.edge(s, t, Number.POSITIVE_INFINITY);
  assert.throws(() => network.sourceSide(s, t), /no cut is finite/);
});

test('cuts of random networks cost as little as the best of all', () => {
  for (let seed = 0; seed < 200; seed++) {
    const random = createRandom(seed);
    const count = 3 + random.integer(6);
    const edges = Array.from({ length: 1 + random.integer(3 * count) }, () => {
      const capacity =
        random.integer(8) === 0 ? Number.POSITIVE_INFINITY : random.integer(10) * (random.integer(2) === 0 ? 1 : 0.37);
      return [random.integer(count), random.integer(count), capacity] as const;
    });
    const cost = (side: (vertex: number) => boolean): number =>
      edges.reduce((sum, [from, to, capacity]) => sum + (side(from) && !side(to) ? capacity : 0), 0);
    let best = Number.POSITIVE_INFINITY;
    for (let set = 1; set < 1 << count; set += 2) {
      if ((set & 2) === 0)
        best = Math.min(
          best,
          cost((vertex) => ((set >> vertex) & 1) === 1),
        );
    }
    const network = new FlowNetwork();
    for (let vertex = 0; vertex < count; vertex++) network.vertex();
    for (const [from, to, capacity] of edges) network.edge(from, to, capacity);
    if (best === Number.POSITIVE_INFINITY) {
      assert.throws(() => network.sourceSide(0, 1), /no cut is finite/);
      continue;
    }
    const side = network.sourceSide(0, 1);
    assert.ok(side.has(0) && !side.has(1), `seed ${seed}`);
    assert.ok(Math.abs(cost((vertex) => side.has(vertex)) - best) < 1e-9, `seed ${seed}`);
  }
});
