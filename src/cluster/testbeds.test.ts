import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { kindModel } from './device-kinds.ts';
import { links } from './links.ts';
import { parseCluster } from './validate.ts';

function folderAbove(name: string, below: string = import.meta.dirname): string {
  const path = join(below, name);
  if (existsSync(path)) return path;
  assert.notEqual(below, join(below, '..'), `${name} is not above ${import.meta.dirname}`);
  return folderAbove(name, join(below, '..'));
}

const folder = folderAbove('clusters');
const names = readdirSync(folder).sort();
/** Those of the papers; the others are of the lab. */
const papers = names.filter((name) => name !== 'four-equal.yaml');
const read = (name: string) => parseCluster(readFileSync(join(folder, name), 'utf8'), name);

test('the papers’ testbeds are there, and every device has a kind with a performance model', () => {
  assert.deepEqual(papers, [
    ...['a', 'b', 'c', 'd'].map((letter) => `asteroid-${letter}.yaml`),
    'ftpipehd.yaml',
    ...[1, 2, 3, 4, 5, 6].map((number) => `pipeedge-${number}.yaml`),
  ]);
  for (const name of papers)
    for (const device of read(name).devices)
      assert.ok(kindModel(device.kind ?? '') !== undefined, `${name}: ${device.name}`);
});

test('Asteroid, Table 6', () => {
  const counts = (name: string): Record<string, number> => {
    const found: Record<string, number> = {};
    for (const { kind = '' } of read(`asteroid-${name}.yaml`).devices) found[kind] = (found[kind] ?? 0) + 1;
    return found;
  };
  assert.deepEqual(counts('a'), { 'jetson-nano': 5 });
  assert.deepEqual(counts('b'), { 'jetson-nx': 3, 'jetson-tx2': 2 });
  assert.deepEqual(counts('c'), { 'jetson-nx': 1, 'jetson-tx2': 2, 'jetson-nano': 3 });
  assert.deepEqual(counts('d'), { 'jetson-tx2': 1, 'jetson-nano': 3 });
});

/** PipeEdge, Table IV: devices, kind, memory in GB, bandwidth in Mbps. */
const tableIV: Readonly<
  Record<number, readonly (readonly [count: number, kind: string, gigabytes: number, bandwidthMbps: number])[]>
> = {
  1: [
    [8, 'rcc-ve', 8, 1000],
    [8, 'minnowboard', 2, 1000],
  ],
  2: [
    [4, 'rcc-ve', 8, 1000],
    [4, 'rcc-ve@75%', 4, 1000],
    [4, 'rcc-ve@25%', 4, 1000],
    [4, 'minnowboard', 2, 1000],
  ],
  3: [
    [8, 'rcc-ve', 8, 40],
    [8, 'minnowboard', 2, 10],
  ],
  4: [
    [4, 'rcc-ve', 8, 30],
    [4, 'rcc-ve', 8, 20],
    [4, 'minnowboard', 2, 10],
    [4, 'minnowboard', 2, 5],
  ],
  5: [
    [3, 'rcc-ve', 8, 50],
    [8, 'rcc-ve@10%', 4, 20],
  ],
  6: [
    [5, 'minnowboard', 2, 30],
    [2, 'rcc-ve', 8, 100],
    [3, 'rcc-ve@75%', 4, 60],
    [4, 'rcc-ve@50%', 4, 40],
    [3, 'rcc-ve@25%', 4, 20],
    [2, 'rcc-ve@10%', 4, 10],
    [2, 'minnowboard', 2, 80],
  ],
};

test('PipeEdge, Table IV: a link has the smaller bandwidth of its two devices', () => {
  for (const [number, rows] of Object.entries(tableIV)) {
    const cluster = read(`pipeedge-${number}.yaml`);
    const expected = rows.flatMap(([count, kind, gigabytes, bandwidthMbps]) =>
      Array.from({ length: count }, () => ({ kind, memoryMiB: gigabytes * 1024 - 512, bandwidthMbps })),
    );
    assert.deepEqual(
      cluster.devices.map(({ kind, memoryMiB }) => ({ kind, memoryMiB })),
      expected.map(({ kind, memoryMiB }) => ({ kind, memoryMiB })),
      `case ${number}`,
    );
    const table = links(cluster);
    for (const [a, first] of expected.entries()) {
      for (const [b, second] of expected.entries()) {
        if (a === b) continue;
        assert.equal(
          table.bandwidthMbps(a, b),
          Math.min(first.bandwidthMbps, second.bandwidthMbps),
          `case ${number}: ${a} to ${b}`,
        );
        assert.equal(table.latencyMs(a, b), Number(number) <= 2 ? 0 : 20);
      }
    }
  }
});
