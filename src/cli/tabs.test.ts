// Tabs of a real browser as devices of a run.

import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { type TestContext, test } from 'node:test';
import { type Browser, chromium, type Page } from 'playwright-core';
import { type RunningCommand, startCommand, temporaryFolder, words } from '../testing/command.ts';

const executablePath = process.env['CHROMIUM'] ?? '/usr/bin/chromium';
const skip = existsSync(executablePath) ? false : `there is no ${executablePath} here`;
const cwd = temporaryFolder();
const subject = words('--model digits --data mnist --batch 32 --micro-batch 8 --lr 0.05 --json');

async function openBrowser(t: TestContext): Promise<Browser> {
  const args = ['--no-sandbox', '--disable-gpu', '--disable-background-networking'];
  const browser = await chromium.launch({ executablePath, args });
  t.after(() => browser.close());
  return browser;
}

/** What pages complained of. */
const complaints: string[] = [];

/** Opens the page on which a browser joins, and joins. */
async function joinByTab(browser: Browser, run: RunningCommand, name: string): Promise<Page> {
  const { deviceUrl } = await run.event('window');
  const page = await (await browser.newContext()).newPage();
  page.setDefaultTimeout(30_000);
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) complaints.push(`${message.type()}: ${message.text()}`);
  });
  page.on('pageerror', (error) => complaints.push(error.message));
  await page.goto(String(deviceUrl));
  await page.getByLabel('Name').fill(name);
  await page.getByRole('button', { name: 'Join', exact: true }).click();
  await page.getByText(`Joined as ${name}`).waitFor();
  return page;
}

const lossesOf = (run: RunningCommand): number[] => run.events('round').map(({ loss }) => Number(loss));
const stepCount = 40;

test('two tabs and a worker train as one device does, also when a tab is closed in mid-round', {
  skip,
  timeout: 180_000,
}, async (t) => {
  const alone = startCommand(['train', ...subject, '--steps', String(stepCount), '--out', 'alone'], { cwd });
  const browser = await openBrowser(t);
  const place =
    '--workers 1 --remote 2 --planner straight --use-all --out together --dashboard --checkpoint-every 1000';
  const run = startCommand(['train', ...subject, ...words(place), '--steps', String(stepCount)], { cwd });
  t.after(() => run.process.kill('SIGKILL'));
  const [first, second] = await Promise.all(['first', 'second'].map((name) => joinByTab(browser, run, name)));
  const { plan } = (await run.event('plan')) as unknown as {
    readonly plan: { readonly stages: { devices: string[] }[] };
  };
  const devices = plan.stages.map((stage) => stage.devices[0]);
  assert.deepEqual([...devices].sort(), ['first', 'second', 'worker-1'], 'each has a stage');
  await run.event('round', ({ round }) => Number(round) >= 8);
  await second?.context().close();
  const { round, seconds } = await run.event('recovered');
  assert.ok(Number(seconds) < 8, `the others went on after ${seconds} s`);
  t.diagnostic(`the others went on at round ${round}, after ${seconds} s`);
  const { code } = await run.end;
  assert.equal(code, 0, run.lastLines());
  assert.equal((await alone.end).code, 0, alone.lastLines());
  assert.deepEqual(
    run.events('left').map(({ device }) => device),
    ['second'],
  );
  const [losses, expected] = [lossesOf(run), lossesOf(alone)];
  assert.equal(expected.length, stepCount);
  assert.equal(losses.length, stepCount, 'each round has one loss');
  for (const [index, loss] of losses.entries())
    assert.ok(Math.abs(loss - (expected[index] as number)) < 1e-4, `round ${index}: ${loss}, not ${expected[index]}`);
  await first?.getByText('Ended: the run is done').waitFor();
  assert.deepEqual(complaints, []);
});
