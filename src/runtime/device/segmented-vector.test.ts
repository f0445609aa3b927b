import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRandom } from '../../random.ts';
import { giveMemory } from '../../transport/tensor-memory.ts';
import { SegmentedVector } from './segmented-vector.ts';

test('reads, adds and writes as one array would, over any borders, in the arrays themselves', () => {
  const random = createRandom(5);
  const below = (count: number): number => Math.floor(random.uniform() * count);
  for (let trial = 0; trial < 300; trial++) {
    const segments = Array.from({ length: below(6) }, () => Float32Array.from({ length: below(5) }, () => below(100)));
    const vector = new SegmentedVector(segments);
    const flat = segments.flatMap((segment) => [...segment]);
    assert.equal(vector.length, flat.length);
    const first = below(flat.length + 1);
    const end = first + below(flat.length - first + 1);
    const expected = flat.slice(first, end);
    const views = vector.views(first, end);
    assert.deepEqual(
      views.flatMap((view) => [...view]),
      expected,
    );
    assert.ok(views.every((view) => view.length > 0 && segments.some(({ buffer }) => buffer === view.buffer)));
    const part = vector.part(first, end);
    assert.deepEqual([...part.copy(0, part.length)], expected);

    const target = Float32Array.from(expected, () => 1000);
    vector.addTo(target, first);
    assert.deepEqual(
      [...target],
      expected.map((value) => 1000 + value),
    );
    vector.write(target, first);
    assert.deepEqual(
      segments.flatMap((segment) => [...segment]),
      [...flat.slice(0, first), ...target, ...flat.slice(end)],
    );
  }
});

test('a copy is in memory that was used before, and nothing of that is left', () => {
  const used = new Float32Array(5_000).fill(7);
  giveMemory(used);
  const copy = new SegmentedVector([new Float32Array(2_000), new Float32Array(4_000).fill(1)]).copy(1_000, 6_000);
  assert.equal(copy.buffer, used.buffer);
  assert.deepEqual(copy, new Float32Array(5_000).fill(1, 1_000));
});

test('what lies outside is refused', () => {
  assert.throws(() => new SegmentedVector([new Float32Array(3)]).views(2, 4), /2 to 4 of 3/);
});
