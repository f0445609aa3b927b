// The window in a real browser: a run that is opened by its link, loses a worker, spares another and is stopped, then
// replayed from its folder. With WINDOW_PICTURES=1 it also takes the pictures of docs/window.md.

import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import axe from 'axe-core';
import { type Browser, type BrowserContextOptions, chromium, type Page } from 'playwright-core';
import { type RunningCommand, startCommand, temporaryFolder } from '../testing/command.ts';
import { repository } from '../testing/source-files.ts';

const executablePath = process.env['CHROMIUM'] ?? '/usr/bin/chromium';
const wantsPictures = process.env['WINDOW_PICTURES'] === '1';
const pictures = join(repository, 'docs', 'pictures');

/** What pages complained of. */
const complaints: string[] = [];

async function openPage(browser: Browser, url: string, options: BrowserContextOptions = {}): Promise<Page> {
  const context = await browser.newContext({ viewport: { width: 1200, height: 760 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) complaints.push(`${message.type()}: ${message.text()}`);
  });
  page.on('pageerror', (error) => complaints.push(error.message));
  page.on('request', (request) => {
    if (new URL(request.url()).host !== new URL(url).host) complaints.push(`a request to ${request.url()}`);
  });
  await page.goto(url);
  return page;
}

/** What axe finds serious. */
async function seriousFaults(page: Page): Promise<readonly string[]> {
  await page.evaluate(axe.source);
  const { violations } = (await page.evaluate('axe.run()')) as axe.AxeResults;
  return violations
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 120)).join(' ')}`);
}

async function picture(page: Page, name: string): Promise<void> {
  if (!wantsPictures) return;
  mkdirSync(pictures, { recursive: true });
  await page.screenshot({ path: join(pictures, name) });
}

/** The process of a worker that a command started: its descendant with this name among its arguments. */
function workerProcess(command: RunningCommand, name: string): number {
  const stat = (pid: string): readonly string[] =>
    readFileSync(`/proc/${pid}/stat`, 'utf8')
      .replace(/^.*\) /s, '')
      .split(' ');
  const isOurs = (pid: string): boolean =>
    pid !== '1' && pid !== '0' && (Number(pid) === command.process.pid || isOurs(stat(pid)[1] ?? '0'));
  for (const pid of readdirSync('/proc').filter((entry) => /^\d+$/.test(entry))) {
    try {
      if (readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(`\0--name\0${name}\0`) && isOurs(pid))
        return Number(pid);
    } catch {
      // It has just ended.
    }
  }
  throw new Error(`there is no process of ${name}`);
}

const numberIn = async (page: Page, name: string): Promise<number> =>
  Number(
    ((await page.locator('.number', { hasText: name }).locator('b').first().textContent()) ?? '').replaceAll(',', ''),
  );
const noteWith = (page: Page, text: RegExp): Promise<void> =>
  page.locator('.notes li', { hasText: text }).first().waitFor();

/** What functions use that run in the page. */
declare const document: {
  querySelector(selector: string): { readonly textContent: string | null; getAttribute(name: string): string } | null;
  readonly documentElement: { readonly scrollWidth: number };
};
const firstNumberIs = (page: Page, text: string): Promise<unknown> =>
  page.waitForFunction((wanted) => document.querySelector('.number b')?.textContent === wanted, text);
const dotSelector = '.dot[visibility=visible]';

/** Waits until the round is another one. */
async function roundsGoOn(page: Page): Promise<void> {
  const before = await numberIn(page, 'Round');
  await page.waitForFunction(
    (least) => Number(document.querySelector('.number b')?.textContent?.replaceAll(',', '')) > least,
    before + 2,
  );
}

async function pipelineMoves(page: Page): Promise<void> {
  await page.locator('.stages .row').nth(2).waitFor();
  const places = new Set<unknown>();
  while (places.size < 3) {
    await page.waitForFunction((dot) => document.querySelector(dot) !== null, dotSelector);
    places.add(await page.evaluate((dot) => document.querySelector(dot)?.getAttribute('transform'), dotSelector));
  }
}

async function asksWhatIf(page: Page): Promise<void> {
  const card = page.locator('.what-if');
  await card.getByLabel('device').selectOption('worker-2');
  await card.getByRole('button', { name: 'Ask' }).click();
  await card.locator('dt', { hasText: 'Pause' }).waitFor();
  assert.match((await card.locator('.answer').textContent()) ?? '', /samples\/s/);
}

async function watched(browser: Browser, command: RunningCommand, t: TestContext): Promise<void> {
  const { url } = await command.event('window');
  const page = await openPage(browser, String(url));
  await page.locator('.chip', { hasText: 'training' }).waitFor();
  assert.equal(new URL(page.url()).hash, '', 'the token is gone from the address');
  await roundsGoOn(page);
  await pipelineMoves(page);
  await asksWhatIf(page);
  assert.deepEqual(await seriousFaults(page), []);
  await picture(page, 'window.png');
  await t.test('a worker that is killed', async () => {
    process.kill(workerProcess(command, 'worker-2'), 'SIGKILL');
    await noteWith(page, /worker-2 left/);
    await noteWith(page, /at round \d+, after \d+\.\d s/);
    await roundsGoOn(page);
    assert.equal(await page.locator('.device.gone b').textContent(), 'worker-2');
  });
  await t.test('a worker that is drained', async () => {
    await page.getByRole('button', { name: 'Drain worker-3' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Drain worker-3' }).click();
    await noteWith(page, /worker-3 left: the device was drained/);
    await page.keyboard.press('Escape');
    await page.getByRole('dialog').waitFor({ state: 'detached' });
    await roundsGoOn(page);
  });
  await t.test('a phone, in the dark, invited by a code', async () => {
    await page.getByRole('button', { name: 'Open elsewhere' }).click();
    const link = (await page.locator('code.link', { hasText: '#' }).textContent()) ?? '';
    const phone = await openPage(browser, link, {
      ...{ viewport: { width: 360, height: 740 }, colorScheme: 'dark', reducedMotion: 'reduce' },
    });
    await phone.locator('.number').first().waitFor();
    await roundsGoOn(phone);
    assert.equal(
      await phone.evaluate(() => document.documentElement.scrollWidth),
      360,
      'nothing is wider than the phone',
    );
    assert.deepEqual(await seriousFaults(phone), []);
    await picture(phone, 'window-phone.png');
    await phone.context().close();
    await page.keyboard.press('Escape');
  });
  await page.getByRole('button', { name: 'Stop', exact: true }).click();
  await page.getByRole('button', { name: 'Stop the run' }).click();
  await page.locator('.chip', { hasText: 'stopped' }).waitFor();
  await noteWith(page, /after round \d+/);
  await page.context().close();
}

async function replayed(browser: Browser, folder: string): Promise<void> {
  const command = startCommand(['show', 'run', '--json'], { cwd: folder });
  try {
    const { url } = await command.event('window');
    const page = await openPage(browser, String(url));
    const slider = page.getByRole('slider', { name: 'time' });
    await slider.waitFor();
    await noteWith(page, /worker-2 left/);
    const last = await numberIn(page, 'Round');
    await slider.press('Home');
    await firstNumberIs(page, '0');
    assert.equal(await page.locator('.notes li', { hasText: 'worker-2 left' }).count(), 0);
    await page.getByRole('button', { name: 'Play' }).click();
    await roundsGoOn(page);
    await page.getByRole('button', { name: 'Pause' }).click();
    await slider.press('End');
    await firstNumberIs(page, last.toLocaleString('en-US'));
    assert.deepEqual(await seriousFaults(page), []);
    await picture(page, 'window-replay.png');
  } finally {
    command.process.kill('SIGTERM');
    await command.end;
  }
}

test('a browser sees a run, its losses and its end, and replays it', {
  skip: existsSync(executablePath) ? false : `there is no ${executablePath} here`,
}, async (t) => {
  const folder = temporaryFolder();
  const browser = await chromium.launch({
    executablePath,
    args: ['--no-sandbox', '--disable-gpu', '--disable-background-networking'],
  });
  t.after(() => browser.close());
  const flags = [
    '--model',
    'digits',
    '--data',
    'mnist',
    '--batch',
    '64',
    '--micro-batch',
    '8',
    '--optimizer',
    'adam',
    '--lr',
    '0.002',
  ];
  const cluster = ['--workers', '3', '--planner', 'straight', '--use-all', '--steps', '20000', '--out', 'run'];
  const command = startCommand(['train', ...flags, ...cluster, '--dashboard', '--json'], { cwd: folder });
  try {
    await watched(browser, command, t);
    const { code } = await command.end;
    assert.equal(code, 130, command.lastLines());
    assert.deepEqual(
      command.events('asked').map(({ what }) => what),
      ['drain', 'stop'],
    );
  } finally {
    command.process.kill('SIGKILL');
  }
  await replayed(browser, folder);
  assert.deepEqual(complaints, []);
});
