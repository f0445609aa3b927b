import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { DeviceTimes } from '../../cluster/cluster.ts';
import type { LinkMeasurement } from '../protocol/messages.ts';
import { reduceCostByTimes, transferCostByDevice, wireMbps, withTransferCosts } from './link-costs.ts';

/** Some device's times; an object of its own for each. */
function timesOf(ms: number): DeviceTimes {
  return { forwardMs: [[ms]], backwardMs: [[2 * ms]] };
}

test('what links cost a device is the least of what it sent with, and of what it received with, half each', () => {
  const link = (peer: string, sendingMsPerMiB: number, receivingMsPerMiB: number) => ({
    peer,
    bandwidthMbps: 1,
    latencyMs: 0,
    sendingMsPerMiB,
    receivingMsPerMiB,
  });
  const costs = transferCostByDevice(
    new Map([
      ['a', [link('b', 2, 10), link('c', 4, 20), { peer: 'd', bandwidthMbps: 1, latencyMs: 0 }]],
      ['b', [link('c', 6, 40)]],
    ]),
  );
  assert.deepEqual(Object.fromEntries(costs), { a: 2, b: (6 + 10) / 2, c: 20 });
});

test('what an AllReduce costs devices of a class is the median of their own links, sent and received half each', () => {
  const [kind, other] = [timesOf(1), timesOf(2)];
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
  const found = reduceCostByTimes(measurements, times);
  assert.deepEqual(
    [...found],
    [[kind, (12 + 26) / 2]],
    'not of the links to others, nor for a device that has no equal',
  );
  const silent = new Map([['a', [{ peer: 'b', bandwidthMbps: 1, latencyMs: 0 }]]]);
  assert.equal(reduceCostByTimes(silent, times).size, 0);
});

test('a link held up by a processor is as fast as that processor usually is, a slow link as it was measured', () => {
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

test('links that carried the same were held up by no processor, whatever else it did', () => {
  // Four devices of a third of a core, links of 100 Mbps: the small ones seemed to work all the time.
  const link = (peer: string, bandwidthMbps: number, ms: number): LinkMeasurement => {
    return { peer, bandwidthMbps, latencyMs: 1, sendingMsPerMiB: ms, receivingMsPerMiB: ms };
  };
  const even = new Map([
    ['a', [link('b', 97.6, 43), link('c', 95.2, 44), link('d', 95.9, 36)]],
    ['b', [link('c', 95.5, 42), link('d', 80, 45)]],
  ]);
  const costs = transferCostByDevice(even);
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
  const [kind, other, third] = [timesOf(1), timesOf(2), timesOf(3)];
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
  const found = withTransferCosts(times, costs, new Map([[kind, 18]]));
  assert.deepEqual(found.get('a'), { ...kind, handlingMsPerMiB: 15, reducingMsPerMiB: 18 });
  assert.equal(found.get('a'), found.get('b'));
  const { frameMs = Number.NaN, ...rest } = found.get('c') ?? other;
  assert.deepEqual(rest, { ...other, passMs: 0.5, handlingMsPerMiB: 4 });
  assert.ok(Math.abs(frameMs - 0.65) < 1e-9, 'a frame costs what 1.3 passes do');
  assert.equal(found.get('d'), third);
  const corrected = { ...other, handlingMsPerMiB: 3, passMs: 1 };
  const again = withTransferCosts(new Map([['c', corrected]]), costs, new Map()).get('c');
  assert.equal(again, corrected, 'what training has found stays');
});
