// Tabs of a real browser that join a run. Used by tests only.

import { existsSync } from 'node:fs';
import type { TestContext } from 'node:test';
import { type Browser, chromium, type Page } from 'playwright-core';
import type { RunningCommand } from './command.ts';

export const executablePath: string = process.env['CHROMIUM'] ?? '/usr/bin/chromium';
/** Why there is no browser here; false where there is. */
export const browserMissing: string | false = existsSync(executablePath) ? false : `there is no ${executablePath} here`;

/** What every browser of tests is started with. */
export const browserArgs: readonly string[] = ['--no-sandbox', '--disable-background-networking'];
export const withoutGpu: readonly string[] = ['--disable-gpu'];
/** A graphics chip that is software, also without a screen (Debian's Chromium 156). */
export const softwareGpuArgs: readonly string[] = ['--enable-unsafe-webgpu', '--use-webgpu-adapter=swiftshader'];

/** A browser that ends with the test. */
export async function openBrowser(t: TestContext, more: readonly string[] = withoutGpu): Promise<Browser> {
  const browser = await chromium.launch({ executablePath, args: [...browserArgs, ...more] });
  t.after(() => browser.close());
  return browser;
}

/** A page with cookies and storage of its own. */
export const newPage = async (browser: Browser): Promise<Page> => (await browser.newContext()).newPage();

/** What functions use that run in the page. */
declare const navigator: object;

/** What pages complained of. */
export const complaints: string[] = [];

export interface TabOptions {
  readonly name: string;
  /** Behind the join code in the link, such as "&device=gpu". */
  readonly wish?: string;
  /** Low on battery, and the browser saves data. */
  readonly isPhone?: boolean;
  /** Called when nothing has been pressed. */
  readonly onOpen?: (page: Page) => Promise<void>;
}

/** Opens the page on which a browser joins, and joins. */
export async function joinByTab(page: Page, run: RunningCommand, options: TabOptions): Promise<Page> {
  const { name, wish = '', isPhone = false, onOpen } = options;
  const { deviceUrl } = await run.event('window');
  page.setDefaultTimeout(30_000);
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) complaints.push(`${message.type()}: ${message.text()}`);
  });
  page.on('pageerror', (error) => complaints.push(error.message));
  await page.addInitScript(visitor, isPhone);
  await page.goto(`${deviceUrl}${wish}`);
  await page.getByLabel('Name').fill(name);
  await onOpen?.(page);
  await page.getByRole('button', { name: 'Join', exact: true }).click();
  await page.getByText(`Joined as ${name}`).waitFor();
  return page;
}

/** Runs in the page: a device at the mains, or one that is low on battery and whose browser saves data. */
function visitor(isPhone: boolean): void {
  const battery = isPhone ? { level: 0.12, charging: false } : { level: 1, charging: true };
  Object.assign(navigator, { getBattery: async () => battery });
  Object.defineProperty(navigator, 'connection', { value: { saveData: isPhone } });
  Object.defineProperty(navigator, 'hardwareConcurrency', { value: isPhone ? 4 : 2 });
}
