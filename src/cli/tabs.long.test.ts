// Tabs of a real browser as devices of a run.

import assert from 'node:assert/strict';
import { createHash, X509Certificate } from 'node:crypto';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import axe from 'axe-core';
import { chromium, type Page } from 'playwright-core';
import { type RunningCommand, startCommand, temporaryFolder, words } from '../testing/command.ts';
import { createSelfSigned } from '../testing/self-signed.ts';
import { repository } from '../testing/source-files.ts';
import {
  browserArgs,
  browserMissing,
  complaints,
  executablePath,
  joinByTab,
  newPage,
  openBrowser,
  withoutGpu,
} from '../testing/tabs.ts';

const skip = browserMissing;
const cwd = temporaryFolder();
const subject = words('--model digits --data mnist --batch 32 --micro-batch 8 --lr 0.05 --json');

/** What functions use that run in the page. */
declare const document: { readonly documentElement: { readonly scrollWidth: number } };

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
  const [first, second] = await Promise.all(
    ['first', 'second'].map(async (name) => joinByTab(await newPage(browser), run, { name })),
  );
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
  const apart = Math.max(...losses.map((loss, index) => Math.abs(loss - (expected[index] as number))));
  t.diagnostic(`losses are at most ${apart} apart`);
  assert.ok(apart < 1e-5, `losses are ${apart} apart`);
  await first?.getByText('Ended: the run is done').waitFor();
  assert.deepEqual(complaints, []);
});

/** The processes with all these words in their command lines. */
function processesWith(...wanted: readonly string[]): number[] {
  const has = (pid: string): boolean => {
    try {
      const line = readFileSync(`/proc/${pid}/cmdline`, 'utf8');
      return wanted.every((word) => line.includes(word));
    } catch {
      return false; // it has just ended
    }
  };
  return readdirSync('/proc')
    .filter((entry) => /^\d+$/.test(entry) && has(entry))
    .map(Number);
}

/** A page on a phone before it joins: it fits, can be read, and says what speaks against joining. */
async function looksRight(page: Page): Promise<void> {
  assert.equal(new URL(page.url()).hash, '', 'the code is gone from the address');
  await page.getByText('with the screen locked, a browser slows it down or stops it').waitFor();
  await page.getByRole('button', { name: 'Join', exact: true }).click();
  const objections = await page.getByRole('alert').textContent();
  assert.match(String(objections), /The battery is at 12 %: plug the device in first\. The browser saves data/);
  assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 360, 'nothing is wider than the phone');
  await page.evaluate(axe.source);
  const { violations } = (await page.evaluate('axe.run()')) as axe.AxeResults;
  assert.deepEqual(
    violations.filter(({ impact }) => impact === 'serious' || impact === 'critical'),
    [],
  );
  if (process.env['WINDOW_PICTURES'] === '1')
    await page.screenshot({ path: join(repository, 'docs', 'pictures', 'join-phone.png') });
  await page.getByLabel('Join all the same').check();
}

test('a phone joins over TLS where it trusts the certificate, and nowhere else', {
  skip,
  timeout: 60_000,
}, async (t) => {
  const { cert, key } = createSelfSigned();
  writeFileSync(join(cwd, 'cert.pem'), cert);
  writeFileSync(join(cwd, 'key.pem'), key);
  const place = '--remote 2 --dashboard --tls-cert cert.pem --tls-key key.pem --out unused';
  const run = startCommand(['train', ...subject, ...words(place)], { cwd });
  t.after(() => run.process.kill('SIGKILL'));
  const { deviceUrl } = await run.event('window');
  assert.match(String(deviceUrl), /^https:/);
  const stranger = await openBrowser(t);
  await assert.rejects((await stranger.newPage()).goto(String(deviceUrl)), /ERR_CERT_AUTHORITY_INVALID/);
  await stranger.close();
  // As a certificate of an authority that the phone knows: this key is accepted, and no other.
  const spki = new X509Certificate(cert).publicKey.export({ type: 'spki', format: 'der' });
  const hash = createHash('sha256').update(spki).digest('base64');
  const profile = join(cwd, 'phone');
  const context = await chromium.launchPersistentContext(profile, {
    ...{ executablePath, args: [...browserArgs, ...withoutGpu, `--ignore-certificate-errors-spki-list=${hash}`] },
    ...{ viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true },
  });
  t.after(() => context.close());
  const phone = await joinByTab(await context.newPage(), run, {
    ...{ name: 'phone', isPhone: true, onOpen: looksRight },
  });
  const { engine } = await run.event('joined');
  assert.match(String(engine), /^onnxruntime-web .* wasm \(2 threads\)$/);
  await t.test('a phone that sleeps is given up, and comes back by itself', async () => {
    const pages = processesWith(profile, '--type=renderer');
    assert.ok(pages.length > 0);
    for (const pid of pages) process.kill(pid, 'SIGSTOP');
    const { reason } = await run.event('left', ({ device }) => device === 'phone');
    for (const pid of pages) process.kill(pid, 'SIGCONT');
    assert.match(String(reason), /no sign of life/);
    await phone.getByText('Joined as phone-2').waitFor();
  });
  await phone.getByRole('button', { name: 'Leave' }).click();
  await run.event('left', ({ device }) => device === 'phone-2');
  await phone.getByText('Ended: the device was drained').waitFor();
  assert.deepEqual(complaints, []);
});

test('a plain page has no warning before it, and is for networks that are trusted', {
  skip,
  timeout: 60_000,
}, async (t) => {
  const place = '--remote 2 --dashboard --insecure --advertise 192.0.2.7 --out plain';
  const run = startCommand(['train', ...subject, ...words(place)], { cwd });
  t.after(() => run.process.kill('SIGKILL'));
  const browser = await openBrowser(t, [...withoutGpu, '--host-resolver-rules=MAP 192.0.2.7 127.0.0.1']);
  const page = await joinByTab(await newPage(browser), run, { name: 'plain' });
  assert.equal(new URL(page.url()).hostname, '192.0.2.7');
  assert.equal(await page.evaluate('isSecureContext'), false);
  await page.getByText('browsers give it to encrypted pages only').waitFor();
  assert.deepEqual(complaints, []);
});
