// A tab that computes on the graphics chip, through WebGPU: here on the software driver in Debian's package `chromium`.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type RunningCommand, startCommand, temporaryFolder, words } from '../testing/command.ts';
import { browserMissing, complaints, joinByTab, newPage, openBrowser, softwareGpuArgs } from '../testing/tabs.ts';

const skip = browserMissing;
const cwd = temporaryFolder();
const subject = words('--model digits --data mnist --batch 32 --micro-batch 8 --lr 0.05 --json --steps 12');
const place = words('--workers 1 --remote 1 --planner straight --use-all --out together --dashboard');

const lossesOf = (run: RunningCommand): number[] => run.events('round').map(({ loss }) => Number(loss));

test('a tab on the graphics chip and a worker train as one device does, also where a kernel is wrong', {
  skip,
  timeout: 300_000,
}, async (t) => {
  const alone = startCommand(['train', ...subject, '--out', 'alone'], { cwd });
  const browser = await openBrowser(t, softwareGpuArgs);
  const page = await newPage(browser);
  const run = startCommand(['train', ...subject, ...place], { cwd });
  t.after(() => run.process.kill('SIGKILL'));
  await joinByTab(page, run, { name: 'tab', wish: '&device=gpu' });
  const { engine } = await run.event('joined', ({ device }) => device === 'tab');
  assert.match(String(engine), /^onnxruntime-web .* webgpu$/);
  const { code } = await run.end;
  assert.equal(code, 0, run.lastLines());
  assert.equal((await alone.end).code, 0, alone.lastLines());
  const [losses, expected] = [lossesOf(run), lossesOf(alone)];
  assert.equal(losses.length, 12);
  const apart = Math.max(...losses.map((loss, index) => Math.abs(loss - (expected[index] as number))));
  t.diagnostic(`losses are at most ${apart} apart`);
  assert.ok(apart < 1e-4, `losses are ${apart} apart`);
  assert.deepEqual(complaints, []);
});
