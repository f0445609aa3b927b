// What the doctor says of a healthy device and of spoilt ones.

import assert from 'node:assert/strict';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import type { DeviceFacts } from '../../engine/node/host-node.ts';
import { examine, type Finding } from './doctor.ts';

const folder = await mkdtemp(join(tmpdir(), 'asteroid-doctor-'));
after(() => rm(folder, { recursive: true, force: true }));
const nowMs = Date.UTC(2026, 10, 21, 10, 30);

const facts: DeviceFacts = {
  coreCount: 4,
  cpuModel: 'Example 3000',
  memoryMiB: 2048,
  platform: 'linux',
  arch: 'arm64',
  nodeVersion: process.versions.node,
  engineVersion: null,
};

async function findings(options: Partial<Parameters<typeof examine>[0]> = {}): Promise<Map<Finding['check'], Finding>> {
  const found = await examine({ port: 0, folder: join(folder, 'none'), addresses: [], nowMs, facts, ...options });
  return new Map(found.map((finding) => [finding.check, finding]));
}

test('a healthy device without a network: every check has its line, and nothing is wrong', async () => {
  const found = await findings();
  assert.deepEqual(
    [...found.keys()],
    ['node', 'engine', 'memory', 'processor', 'interfaces', 'port', 'mdns', 'certificates', 'clock'],
  );
  const stateOf = (check: Finding['check']): string | undefined => found.get(check)?.state;
  assert.deepEqual(
    ['node', 'engine', 'port', 'certificates', 'clock'].map((check) => stateOf(check as Finding['check'])),
    Array(5).fill('fine'),
  );
  assert.deepEqual([stateOf('interfaces'), stateOf('mdns')], ['warning', 'warning']);
  assert.equal(found.get('clock')?.text, '2026-11-21T10:30 UTC');
});

test('a taken port, keys open to others and a clock of another century are wrong, with the fix', async () => {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const address = server.address();
  const port = typeof address === 'object' && address !== null ? address.port : 0;
  const open = join(folder, 'open');
  await mkdir(open);
  await writeFile(join(open, 'authority.pem'), 'x', { mode: 0o644 });
  const found = await findings({ port, folder: open, nowMs: 0 });
  server.close();
  assert.equal(
    found.get('port')?.text,
    `port ${port} of 127.0.0.1 cannot be listened on (EADDRINUSE): choose another with --port`,
  );
  assert.match(found.get('certificates')?.text ?? '', /can be read by others: run "chmod 600 /);
  assert.equal(
    found.get('clock')?.text,
    '1970-01-01T00:00 UTC is in the past, and no certificate is valid then: set the clock',
  );
  for (const check of ['port', 'certificates', 'clock'] as const) assert.equal(found.get(check)?.state, 'wrong');
});

test('quota, battery and temperature are shown if they are known, with a warning if they matter', async () => {
  const calm = await findings({
    facts: {
      ...facts,
      cpuQuota: { cores: 0.35, periodMs: 10 },
      battery: { percent: 20, isDischarging: false },
      temperatureC: 56.2,
    },
  });
  assert.deepEqual(calm.get('processor'), {
    check: 'processor',
    state: 'fine',
    text: '4 cores (Example 3000), of which this process may use 0.35 (10 ms periods), 56 °C',
  });
  assert.deepEqual(calm.get('power'), { check: 'power', state: 'fine', text: 'battery at 20%' });
  const strained = await findings({
    facts: { ...facts, battery: { percent: 20, isDischarging: true }, temperatureC: 95 },
  });
  assert.equal(
    strained.get('processor')?.text,
    '4 cores (Example 3000), 95 °C: it will slow down; let it cool, or use --max-cpu',
  );
  assert.equal(strained.get('power')?.text, 'battery at 20%, discharging: plug the device in');
  assert.deepEqual([strained.get('processor')?.state, strained.get('power')?.state], ['warning', 'warning']);
});
