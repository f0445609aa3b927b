import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { DeviceTimes } from '../../cluster/cluster.ts';
import type { DeviceFacts } from '../coordinator/options.ts';
import type { LinkMeasurement } from '../protocol/messages.ts';
import { handlingByDevice, type Measured, reducingByTimes, timesByKind, wireMbps, withHandling } from './kinds.ts';

const board: DeviceFacts = {
  memoryMiB: 1024,
  cores: 4,
  engine: 'onnxruntime (1 thread)',
  machine: 'm',
  cpuModel: 'Cortex-A72',
};

/** A device of two layers, measured at two sizes; `noise` on the first layer. */
function measured(
  name: string,
  noise: number,
  facts: Partial<DeviceFacts> = {},
  more: Partial<DeviceTimes> = {},
): Measured {
  const rows = (ms: number): number[][] => [
    [ms + noise, ms],
    [2 * ms + noise, 2 * ms],
  ];
  return {
    name,
    facts: { ...board, ...facts },
    times: { forwardMs: rows(10), backwardMs: rows(20), updateMs: [1 + noise, 1], ...more },
  };
}

test('devices of one kind share the middle of what they measured, layer by layer', () => {
  const found = timesByKind([measured('a', 0), measured('b', 6), measured('c', 1)]);
  assert.deepEqual(found.get('a'), measured('', 1).times);
  assert.equal(found.get('a'), found.get('b'));
  assert.equal(found.get('a'), found.get('c'));
  assert.deepEqual(
    timesByKind([measured('a', 0), measured('b', 6)]).get('a'),
    measured('', 3).times,
    'of two, the mean',
  );
});

test('together layers take what the middle device takes, whichever of its layers noise made longer', () => {
  const rows = (first: number, second: number, third: number): DeviceTimes => ({
    forwardMs: [[first, second, third]],
    backwardMs: [[1, 1, 1]],
    callMs: third / 10,
    passMs: first / 10,
  });
  const devices = [rows(16, 10, 10), rows(10, 16, 10), rows(10, 10, 19)].map((times, index) => ({
    name: `${index}`,
    facts: board,
    times,
  }));
  const found = timesByKind(devices).get('0');
  // The middles are 10 each, the sums 36, 36 and 39.
  assert.deepEqual(found, { forwardMs: [[12, 12, 12]], backwardMs: [[1, 1, 1]], callMs: 1, passMs: 1 });
});

test('another processor, quota or engine is another kind, and so is a device of which no processor is known', () => {
  const { cpuModel: _, ...unknown } = board;
  const devices = [
    measured('a', 0),
    measured('b', 1, { cpuModel: 'Cortex-A76' }),
    measured('c', 2, { cpuQuotaCores: 0.5 }),
    measured('d', 3, { engine: 'reference' }),
    { ...measured('e', 4), facts: unknown },
    { ...measured('f', 5), facts: unknown },
  ];
  const found = timesByKind(devices);
  for (const { name, times } of devices) assert.equal(found.get(name), times, name);
});

test('a device of the kind that is slower than noise makes it keeps its own times, and leaves the others theirs', () => {
  const slow = measured(
    'slow',
    0,
    {},
    {
      backwardMs: [
        [40, 40],
        [80, 80],
      ],
    },
  );
  const found = timesByKind([measured('a', 0), slow, measured('b', 2)]);
  assert.equal(found.get('slow'), slow.times);
  assert.deepEqual(found.get('a'), measured('', 1).times);
});

test('a table that one of them does not have is left out', () => {
  const stepMs = [
    [30, 30],
    [60, 60],
  ];
  assert.equal(timesByKind([measured('a', 0, {}, { stepMs }), measured('b', 0)]).get('a')?.stepMs, undefined);
  assert.deepEqual(
    timesByKind([measured('a', 0, {}, { stepMs }), measured('b', 0, {}, { stepMs })]).get('a')?.stepMs,
    stepMs,
  );
});

test('what links cost a device is the least of what it sent with, and of what it received with, half each', () => {
  const link = (peer: string, sendingMsPerMiB: number, receivingMsPerMiB: number) => ({
    peer,
    bandwidthMbps: 1,
    latencyMs: 0,
    sendingMsPerMiB,
    receivingMsPerMiB,
  });
  const costs = handlingByDevice(
    new Map([
      ['a', [link('b', 2, 10), link('c', 4, 20), { peer: 'd', bandwidthMbps: 1, latencyMs: 0 }]],
      ['b', [link('c', 6, 40)]],
    ]),
  );
  assert.deepEqual(Object.fromEntries(costs), { a: 2, b: (6 + 10) / 2, c: 20 });
});

test('what an AllReduce costs devices of a kind is the median of what their own links cost, sent and received half each', () => {
  const [kind, other] = [measured('a', 0).times, measured('e', 1).times];
  const times = new Map([...['a', 'b', 'c', 'd'].map((name) => [name, kind] as const), ['e', other] as const]);
  const link = (peer: string, sendingMsPerMiB: number, receivingMsPerMiB: number) => ({
    ...{ peer, bandwidthMbps: 1, latencyMs: 0, sendingMsPerMiB, receivingMsPerMiB },
  });
  const measurements = new Map([
    [
      'a',
      [
        link('b', 14, 30),
        link('c', 13, 26),
        link('d', 10, 22),
        link('e', 1, 2),
        { peer: 'b', bandwidthMbps: 1, latencyMs: 0 },
      ],
    ],
    ['b', [link('c', 12, 28), link('d', 11, 24)]],
    ['stranger', [link('a', 1, 1)]],
  ]);
  const found = reducingByTimes(measurements, times);
  assert.deepEqual(
    [...found],
    [[kind, (12 + 26) / 2]],
    'not of the links to others, nor for a device that has no equal',
  );
  const silent = new Map([['a', [{ peer: 'b', bandwidthMbps: 1, latencyMs: 0 }]]]);
  assert.equal(reducingByTimes(silent, times).size, 0);
});

test('a link that a processor held up is taken for as fast as that processor usually is, one that was slow itself for what it carried', () => {
  const costs = new Map([
    ['a', 10],
    ['b', 20],
  ]);
  // A MiB takes 83.9 ms at 100 Mbps.
  const link = (sendingMsPerMiB: number, receivingMsPerMiB: number, bandwidthMbps = 100) => ({
    ...{ peer: 'b', latencyMs: 1, bandwidthMbps, sendingMsPerMiB, receivingMsPerMiB },
  });
  const usual = (2 ** 20 * 8) / 20 / 1000;
  const mbpsOf = (one: LinkMeasurement, known = costs, others: readonly LinkMeasurement[] = []): number =>
    wireMbps(new Map([['a', [...others, one]]]), known)('a', one);
  for (const held of [link(10, 80), link(80, 10), link(30, 30)])
    assert.ok(Math.abs(mbpsOf(held) - usual) < 1e-9, JSON.stringify(held));
  for (const free of [link(10, 20), link(29, 29), link(9, 9, 800)]) assert.equal(mbpsOf(free), free.bandwidthMbps);
  assert.equal(mbpsOf({ peer: 'b', latencyMs: 1, bandwidthMbps: 100 }), 100);
  assert.equal(mbpsOf(link(80, 80), new Map()), 100);
  const [slow, fast] = [link(10, 10, 95), link(2, 2, 800)].map((free) => ({ ...free, peer: 'c' })) as [
    LinkMeasurement,
    LinkMeasurement,
  ];
  assert.equal(
    mbpsOf(link(80, 10, 80), costs, [slow]),
    95,
    'no faster than the fastest link of its ends that none held up',
  );
  assert.ok(Math.abs(mbpsOf(link(80, 10), costs, [slow, fast]) - usual) < 1e-9);
  assert.equal(mbpsOf(link(80, 10, 99), costs, [slow]), 99, 'no slower than it was');
});

test('links that carried the same were held up by no processor, whatever it did beside', () => {
  // Four devices of a third of a core, links of 100 Mbps: the small ones seemed to work all the time.
  const link = (peer: string, bandwidthMbps: number, ms: number): LinkMeasurement => {
    return { peer, bandwidthMbps, latencyMs: 1, sendingMsPerMiB: ms, receivingMsPerMiB: ms };
  };
  const even = new Map([
    ['a', [link('b', 97.6, 43), link('c', 95.2, 44), link('d', 95.9, 36)]],
    ['b', [link('c', 95.5, 42), link('d', 80, 45)]],
  ]);
  const costs = handlingByDevice(even);
  const mbpsOf = (all: ReadonlyMap<string, readonly LinkMeasurement[]>): number[] =>
    [...all].flatMap(([device, links]) => links.map((one) => Math.round(wireMbps(all, costs)(device, one) * 10) / 10));
  assert.deepEqual(
    mbpsOf(even),
    [97.6, 95.2, 95.9, 95.5, 95.9],
    'one that was held up is as fast as the others of its ends',
  );
  const uneven = new Map([
    ['a', [link('b', 97.6, 43), link('c', 80, 52), link('d', 90, 45)]],
    ['b', [link('c', 70, 60), link('d', 95, 43)]],
  ]);
  for (const mbps of mbpsOf(uneven)) assert.ok(mbps > 180, 'as fast as the processors usually are');
});

test('devices that share their times share what links cost them', () => {
  const [kind, other, third] = [measured('a', 0).times, measured('c', 1).times, measured('d', 2).times];
  const times = new Map([
    ['a', kind],
    ['b', kind],
    ['c', { ...other, passMs: 0.5 }],
    ['d', third],
  ]);
  const costs = new Map([
    ['a', 10],
    ['b', 20],
    ['c', 4],
  ]);
  const found = withHandling(times, costs, new Map([[kind, 18]]));
  assert.deepEqual(found.get('a'), { ...kind, handlingMsPerMiB: 15, reducingMsPerMiB: 18 });
  assert.equal(found.get('a'), found.get('b'));
  const { frameMs = Number.NaN, ...rest } = found.get('c') ?? other;
  assert.deepEqual(rest, { ...other, passMs: 0.5, handlingMsPerMiB: 4 });
  assert.ok(Math.abs(frameMs - 0.65) < 1e-9, 'a frame costs what 1.3 passes do');
  assert.equal(found.get('d'), third);
  const corrected = { ...other, handlingMsPerMiB: 3, passMs: 1 };
  const again = withHandling(new Map([['c', corrected]]), costs, new Map()).get('c');
  assert.equal(again, corrected, 'what training has found stays');
});
