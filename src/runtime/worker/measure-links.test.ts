import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ProtocolError, RunError } from '../../errors.ts';
import type { LinkMeasurement } from '../protocol/messages.ts';
import { measureLinks } from './measure-links.ts';

/** What a device finds on links of which each has a list of what its measurements give, and what it measured. */
async function found(
  mbps: Readonly<Record<string, readonly (number | Error)[]>>,
): Promise<readonly [Record<string, number>, readonly string[]]> {
  const measured: string[] = [];
  const left = new Map(Object.entries(mbps).map(([peer, values]) => [peer, [...values]]));
  const links = await measureLinks(Object.keys(mbps), async (peer): Promise<LinkMeasurement> => {
    measured.push(peer);
    const value = left.get(peer)?.shift();
    if (typeof value !== 'number') throw value;
    return { peer, bandwidthMbps: value, latencyMs: 1 };
  });
  return [Object.fromEntries(links.map(({ peer, bandwidthMbps }) => [peer, bandwidthMbps])), measured];
}

test('a link 3 % slower than the others is measured again until two agree, at most four times', async () => {
  assert.deepEqual(await found({ a: [900], b: [880], c: [900] }), [{ a: 900, b: 880, c: 900 }, ['a', 'b', 'c']]);
  assert.deepEqual(await found({ a: [900], b: [140, 885], c: [900] }), [
    { a: 900, b: 885, c: 900 },
    ['a', 'b', 'c', 'b'],
  ]);
  assert.deepEqual(await found({ a: [900], b: [140, 850, 860], c: [900] }), [
    { a: 900, b: 860, c: 900 },
    ['a', 'b', 'c', 'b', 'b'],
  ]);
  assert.deepEqual(await found({ a: [900], b: [20, 19.5], c: [900] }), [
    { a: 900, b: 20, c: 900 },
    ['a', 'b', 'c', 'b'],
  ]);
  assert.deepEqual(await found({ a: [900], b: [300, 500, 400, 600], c: [900] }), [
    { a: 900, b: 600, c: 900 },
    ['a', 'b', 'c', 'b', 'b', 'b'],
  ]);
  assert.deepEqual(await found({ a: [95.5], b: [82.3, 95.1], c: [95.9] }), [
    { a: 95.5, b: 95.1, c: 95.9 },
    ['a', 'b', 'c', 'b'],
  ]);
  assert.deepEqual(await found({}), [{}, []]);
});

test('of two links the slower is measured again; an only link until two measurements agree', async () => {
  assert.deepEqual(await found({ a: [486, 790], b: [798] }), [{ a: 790, b: 798 }, ['a', 'b', 'a']]);
  assert.deepEqual(await found({ a: [95, 95.2] }), [{ a: 95.2 }, ['a', 'a']]);
  assert.deepEqual(await found({ a: [486, 810, 830] }), [{ a: 830 }, ['a', 'a', 'a']]);
});

test('a lost peer has no measurement; any other error is passed on', async () => {
  const lost = new RunError('the link to b ended');
  assert.deepEqual(await found({ a: [900], b: [lost], c: [100, lost] }), [{ a: 900, c: 100 }, ['a', 'b', 'c', 'c']]);
  assert.deepEqual(await found({ a: [900], b: [900], c: [100, lost] }), [
    { a: 900, b: 900, c: 100 },
    ['a', 'b', 'c', 'c'],
  ]);
  await assert.rejects(found({ a: [900], b: [new ProtocolError('nonsense')] }), ProtocolError);
});
