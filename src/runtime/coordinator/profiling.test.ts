import assert from 'node:assert/strict';
import { test } from 'node:test';
import { config, Drive, plan } from '../../testing/machine-drive.ts';
import type { MachineEffect, MachineInput } from './machine-types.ts';
import { linksMeasured } from './profiling.ts';

const link = { peer: 'b', bandwidthMbps: 900, latencyMs: 0.1, transferMsPerMiB: 1 };

/** Three devices that say what they are; `measured` collects the effects that spread what one has found. */
function gather(likenesses: Readonly<Record<string, string | undefined>>, thoroughness: 'quick' | 'full'): Drive {
  const drive = new Drive({ ...config, thoroughness });
  for (const [device, likeness] of Object.entries(likenesses))
    drive.input({ kind: 'joined', device, ...(likeness === undefined ? {} : { likeness }) } as MachineInput);
  return drive;
}

const asked = (drive: Drive): readonly string[] => drive.log.filter((line) => /^(measure|profile)→/.test(line));
const found = (drive: Drive): number => drive.log.filter((line) => line === 'profiled').length;

test('alike devices of one machine: one measures the model, and one pair its link, for all', () => {
  const drive = gather({ a: 'm', b: 'm', c: 'm' }, 'quick');
  assert.deepEqual(asked(drive), ['measure→a', 'profile→a']);
  assert.equal(found(drive), 3);
  assert.equal(drive.log.at(-1), 'finish 5');
});

test('in a full profile every device measures', () => {
  const drive = gather({ a: 'm', b: 'm', c: 'm' }, 'full');
  assert.deepEqual(asked(drive), ['measure→a', 'measure→b', 'profile→a', 'profile→b', 'profile→c']);
  assert.equal(found(drive), 3);
});

test('devices of other machines, and those of which nothing is known, measure for themselves, and every link', () => {
  const drive = gather({ a: 'm', b: 'm', c: undefined }, 'quick');
  assert.deepEqual(asked(drive), ['measure→a', 'measure→b', 'profile→a', 'profile→c']);
  assert.equal(found(drive), 3);
});

test('when the device that was to measure is lost, the next one like it does', () => {
  const drive = new Drive({ ...config, thoroughness: 'quick' });
  drive.answerOf = (device, message, honest) => (message === 'profile' && device === 'a' ? undefined : honest);
  drive.planFor = () => ({
    ...plan,
    stages: [
      { layers: [0, 2], devices: ['b'], samples: [4], inFlight: 2 },
      { layers: [2, 3], devices: ['c'], samples: [4], inFlight: 1 },
    ],
  });
  for (const device of ['a', 'b', 'c']) drive.input({ kind: 'joined', device, likeness: 'm' });
  assert.equal(drive.state.phase, 'profiling');
  drive.input({ kind: 'left', device: 'a', reason: 'gone' });
  assert.deepEqual(asked(drive).slice(1), ['profile→a', 'profile→b']);
  assert.equal(found(drive), 2);
  assert.equal(drive.log.at(-1), 'finish 5');
});

test('the link of one pair is every pair’s', () => {
  const members = ['a', 'b', 'c'].map((name) => ({ name, listenUrl: '', likeness: 'm' }));
  const spread = (thoroughness: 'quick' | 'full'): readonly MachineEffect[] =>
    linksMeasured({ ...config, thoroughness }, members, 'a', [link]);
  assert.deepEqual(spread('full'), [{ kind: 'links-measured', device: 'a', links: [link] }]);
  assert.deepEqual(spread('quick'), [
    { kind: 'links-measured', device: 'a', links: [link, { ...link, peer: 'c' }] },
    { kind: 'links-measured', device: 'b', links: [{ ...link, peer: 'c' }] },
  ]);
});
