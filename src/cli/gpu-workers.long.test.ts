// Workers with a graphics chip beside one without, planned from what each measures: here the chip is a software driver,
// far slower than the processor.

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { startCommand, temporaryFolder, words } from '../testing/command.ts';
import { softwareGpuEnvironment, softwareGpuMissing } from '../testing/software-gpu.ts';

const cwd = temporaryFolder();

/** Three numbers, and whether the first two sum up to more than zero. */
function table(): string {
  const rows = Array.from({ length: 200 }, (_, row) => {
    const [a, b, c] = [0.37, 0.73, 0.11].map((step) => 2 * (((row + 1) * step) % 1) - 1) as [number, number, number];
    return `${a},${b},${c},${a + b > 0 ? 'yes' : 'no'}`;
  });
  return ['a,b,c,label', ...rows].join('\n');
}

test('a slow graphics chip gets no layers, and auto leaves it alone and says why', {
  skip: softwareGpuMissing ?? false,
  timeout: 300_000,
}, async (t) => {
  writeFileSync(join(cwd, 'table.csv'), table());
  const subject = '--model mlp --data table:table.csv --batch 16 --lr 0.05 --steps 3';
  const run = startCommand(['train', ...words(`${subject} --workers 1 --remote 2 --json --out run`)], { cwd });
  t.after(() => run.process.kill('SIGKILL'));
  const { url, joinCode } = await run.event('listening');
  const [, auto] = ['gpu', 'auto'].map((device) => {
    const join = `worker --join ${url} --code ${joinCode} --name ${device} --device ${device} --json`;
    const worker = startCommand(words(join), { cwd, environment: softwareGpuEnvironment() });
    t.after(() => worker.process.kill('SIGKILL'));
    return worker;
  });
  assert.equal((await run.end).code, 0, run.lastLines());
  const engines = Object.fromEntries(run.events('joined').map(({ device, engine }) => [device, String(engine)]));
  assert.match(engines['gpu'] ?? '', / webgpu$/);
  assert.match(engines['auto'] ?? '', / cpu \(1 thread\)$/);
  const [choice] = auto?.events('device') ?? [];
  assert.equal(choice?.['device'], 'cpu');
  const said =
    /^It computes on the processor: a piece of a training step took \d+(\.\d)? ms on the processor and \d+ ms/;
  assert.match(String(choice?.['reason']), said);
  const sampleMs = Object.fromEntries(run.events('profiled').map(({ device, sampleMs: ms }) => [device, Number(ms)]));
  t.diagnostic(`milliseconds a sample: ${JSON.stringify(sampleMs)}`);
  assert.ok((sampleMs['gpu'] as number) > 2 * (sampleMs['worker-1'] as number), 'the chip was measured as it is');
  const { plan } = (await run.event('plan')) as unknown as { plan: { stages: readonly { devices: string[] }[] } };
  const chosen = plan.stages.flatMap(({ devices }) => devices);
  assert.ok(chosen.length > 0 && !chosen.includes('gpu'), `the plan has ${chosen}`);
});
