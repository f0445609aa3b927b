// Tabs that compute on the graphics chip, through WebGPU: here on the software driver in Debian's package `chromium`,
// on which a few small kernels take as long as a net on a real one.

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import type { Page } from 'playwright-core';
import { type RunningCommand, startCommand, temporaryFolder, words } from '../testing/command.ts';
import { browserMissing, complaints, joinByTab, newPage, openBrowser, softwareGpuArgs } from '../testing/tabs.ts';

const skip = browserMissing;
const cwd = temporaryFolder();
const subject = words('--model digits --data mnist --batch 8 --micro-batch 4 --lr 0.05 --json --steps 3');
const stages = [
  { layers: [0, 1], devices: ['right'], samples: [4], inFlight: 2 },
  { layers: [1, 3], devices: ['wrong'], samples: [4], inFlight: 2 },
  { layers: [3, 6], devices: ['worker-1'], samples: [4], inFlight: 1 },
];
const plan = { schedule: '1f1b', batchSize: 8, microBatchSize: 4, microBatchCount: 2, stages };

/** Stands before the engine's code: this browser's graphics chip takes what is above 1/2 for what is above 0. */
const planted = `{
  const right = GPUDevice.prototype.createShaderModule;
  GPUDevice.prototype.createShaderModule = function (given) {
    const code = given.label === 'Relu' ? given.code.replace('> x_value_t(0)', '> x_value_t(0.5)') : given.code;
    return right.call(this, { ...given, code });
  };
}`;

async function plant(page: Page): Promise<void> {
  await page.context().route('**/ort-gpu.js', async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, body: `${planted}\n${await response.text()}` });
  });
}

const lossesOf = (run: RunningCommand): number[] => run.events('round').map(({ loss }) => Number(loss));
/** What a page says that its graphics chip does not compute. */
const detoursOf = (page: Page): Promise<string[]> => page.locator('#place li', { hasText: 'not on' }).allTextContents();

test('tabs on the graphics chip and a worker train as one device does, also where a kernel is wrong', {
  skip,
  timeout: 300_000,
}, async (t) => {
  const alone = startCommand(['train', ...subject, '--out', 'alone'], { cwd });
  writeFileSync(join(cwd, 'plan.json'), JSON.stringify(plan));
  const browser = await openBrowser(t, softwareGpuArgs);
  const place = words('--workers 1 --remote 2 --plan plan.json --out together --dashboard');
  const run = startCommand(['train', ...subject, ...place], { cwd });
  t.after(() => run.process.kill('SIGKILL'));
  const [right, wrong] = [await newPage(browser), await newPage(browser)];
  await plant(wrong);
  await joinByTab(right, run, { name: 'right', wish: '&device=gpu' });
  await joinByTab(wrong, run, { name: 'wrong', wish: '&device=gpu' });
  const engines = run.events('joined').map(({ engine }) => String(engine).split(' ').at(-1));
  assert.deepEqual(engines.sort(), ['thread)', 'webgpu', 'webgpu']);
  await run.event('round');
  assert.deepEqual(await detoursOf(right), []);
  const [detour, ...others] = await detoursOf(wrong);
  assert.match(String(detour), /^Computed on the processor, not on the graphics chip: Relu 4x\d+x\d+x\d+ \(wrong\)\.$/);
  assert.deepEqual(others, []);
  const { code } = await run.end;
  assert.equal(code, 0, run.lastLines());
  assert.equal((await alone.end).code, 0, alone.lastLines());
  const [losses, expected] = [lossesOf(run), lossesOf(alone)];
  assert.equal(losses.length, 3);
  const apart = Math.max(...losses.map((loss, index) => Math.abs(loss - (expected[index] as number))));
  t.diagnostic(`losses are at most ${apart} apart`);
  assert.ok(apart < 1e-4, `losses are ${apart} apart`);
  assert.deepEqual(complaints, []);
});
