import assert from 'node:assert/strict';
import { mkdtemp, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { systemClock } from '../../clock.ts';
import { requestDrain } from './drain-requests.ts';

test('lines of events.jsonl that are damaged do not hide the others', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'asteroid-drain-'));
  const lines = [
    '{"event":"joined","device":"kitchen"}',
    '{"event":"joi',
    '7',
    'null',
    '{"event":"joined","device":{"name":"attic"}}',
  ];
  await writeFile(join(folder, 'events.jsonl'), `${lines.join('\n')}\n`);
  const ask = (device: string): Promise<unknown> =>
    requestDrain({
      folder,
      device,
      clock: systemClock,
      timeoutMs: 1,
      pause: (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds)),
    });
  await assert.rejects(ask('attic'), /^InputError: The run in .* has no device "attic"; it has kitchen\.$/);
  await assert.rejects(ask('kitchen'), /^RunError: Nobody answered for 0\.001 s/);
});
