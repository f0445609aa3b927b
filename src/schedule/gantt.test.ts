import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ganttSvg } from './gantt.ts';
import type { ProgramEvent } from './program.ts';

const events: readonly ProgramEvent[] = [
  { device: 'a', kind: 'forward', stage: 0, microBatch: 0, startMs: 0, endMs: 40 },
  {
    device: 'a',
    kind: 'transfer',
    stage: 0,
    microBatch: 0,
    payload: 'activation',
    to: 'b',
    bytes: 4096,
    startMs: 40,
    endMs: 60,
  },
  { device: 'b', kind: 'forward', stage: 1, microBatch: 0, startMs: 60, endMs: 100 },
];

test('a row for each device and link; a bar stands where its time is; wide bars carry their micro-batch', () => {
  const svg = ganttSvg(events, ['b', 'a', 'idle'], { widthPx: 1170, title: 'a & b' });
  // 1170 − 150 − 20 = 1000 px for 100 ms.
  const bars = [...svg.matchAll(/<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="(22|8)" fill="(#\w+)"/g)].map(
    (match) => match.slice(1),
  );
  assert.deepEqual(bars, [
    ['750', '48', '400', '22', '#4c8bd6'],
    ['150', '78', '400', '22', '#4c8bd6'],
    ['550', '102', '200', '8', '#9cc3f0'],
  ]);
  assert.deepEqual(
    [...svg.matchAll(/text-anchor="end"[^>]*>([^<]+)</g)].map((match) => match[1]),
    ['b', 'a', 'to b', 'idle'],
  );
  assert.match(svg, />a &amp; b</);
  assert.match(svg, /<title>activation 0: 40\.000 to 60\.000 ms, 4096 bytes each<\/title>/);
  assert.equal([...svg.matchAll(/font-size="10" fill="#fff">0</g)].length, 2);
  assert.match(svg, />100 ms</);
});

test('of a stream, bars carry their round, and every other round is paler', () => {
  const of = (round: number): ProgramEvent => ({
    ...{ device: 'a', kind: 'forward', stage: 0, microBatch: 0 },
    ...{ round, startMs: 10 * round, endMs: 10 * round + 10 },
  });
  const svg = ganttSvg([of(0), of(1)], ['a']);
  assert.deepEqual(
    [...svg.matchAll(/fill="#4c8bd6"( fill-opacity="0.65")?/g)].map((match) => match[1] !== undefined),
    [false, false, true],
  );
  assert.match(svg, /<title>forward 1\.0: 10\.000 to 20\.000 ms<\/title>/);
  assert.match(svg, />1\.0</);
});

test('a hundred thousand events become a file of some hundred bars', () => {
  const many = Array.from(
    { length: 100_000 },
    (_, index): ProgramEvent => ({
      device: 'a',
      kind: 'forward',
      stage: 0,
      microBatch: index,
      startMs: index,
      endMs: index + 0.9,
    }),
  );
  const svg = ganttSvg(many, ['a']);
  assert.ok(svg.length < 100_000, `${svg.length}`);
  assert.match(svg, /100000 x forward/);
});

test('no events, no bars, no error', () => {
  assert.doesNotMatch(ganttSvg([], ['a']), /NaN|Infinity/);
});
