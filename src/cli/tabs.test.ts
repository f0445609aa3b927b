// Tabs of a real browser as devices of a run.

import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { type TestContext, test } from 'node:test';
import { type Browser, chromium, type Page } from 'playwright-core';
import { type RunningCommand, runCommand, startCommand, temporaryFolder, words } from '../testing/command.ts';

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
  const { url } = await run.event('window');
  const { joinCode } = await run.event('listening');
  const page = await (await browser.newContext()).newPage();
  page.setDefaultTimeout(30_000);
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) complaints.push(`${message.type()}: ${message.text()}`);
  });
  page.on('pageerror', (error) => complaints.push(error.message));
  await page.goto(new URL(`/join#${joinCode}`, String(url)).href);
  await page.getByLabel('Name').fill(name);
  await page.getByRole('button', { name: 'Join', exact: true }).click();
  await page.getByText(`Joined as ${name}`).waitFor();
  return page;
}

function train(...more: readonly string[]): RunningCommand {
  return startCommand(['train', ...subject, ...more], { cwd });
}

const lossesOf = (run: RunningCommand): number[] => run.events('round').map(({ loss }) => Number(loss));

test('two tabs and a worker train as one device does', { skip, timeout: 120_000 }, async (t) => {
  const alone = await runCommand(['train', ...subject, '--steps', '6', '--out', 'alone'], { cwd });
  assert.equal(alone.code, 0, alone.stderr);
  const expected = alone.stdout
    .split('\n')
    .filter((line) => line.includes('"event":"round"'))
    .map((line) => Number(JSON.parse(line).loss));
  const browser = await openBrowser(t);
  const place = '--workers 1 --remote 2 --planner straight --use-all --steps 6 --out together --dashboard';
  const run = train(...words(place));
  t.after(() => run.process.kill('SIGKILL'));
  const pages = await Promise.all(['first', 'second'].map((name) => joinByTab(browser, run, name)));
  const { code } = await run.end;
  assert.equal(code, 0, run.lastLines());
  const losses = lossesOf(run);
  assert.equal(losses.length, 6);
  for (const [round, loss] of losses.entries())
    assert.ok(Math.abs(loss - (expected[round] as number)) < 1e-4, `round ${round}: ${loss}, not ${expected[round]}`);
  for (const page of pages) await page.getByText('Ended: the run is done').waitFor();
  assert.deepEqual(complaints, []);
});
