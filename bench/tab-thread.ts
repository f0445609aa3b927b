// For how long a tab hears nothing while it computes: the longest gap between two turns of the thread that holds its
// links, in each of ten seconds of a run that it computes alone, in milliseconds. Needs Chromium (CHROMIUM names it).
// Option: the folder of another build's dist/ to measure.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { chromium } from 'playwright-core';

const [dist = new URL('../dist', import.meta.url).pathname] = process.argv.slice(2);
const { startCommand, temporaryFolder } = (await import(
  `${dist}/testing/command.js`
)) as typeof import('../dist/testing/command.js');
const [batch, seconds] = [512, 10];

const cwd = temporaryFolder();
const stages = [{ layers: [0, 6], devices: ['tab'], samples: [batch], inFlight: 1 }];
const plan = { schedule: '1f1b', batchSize: batch, microBatchSize: batch, microBatchCount: 1, stages };
writeFileSync(join(cwd, 'plan.json'), JSON.stringify(plan));
const subject = ['--model', 'digits', '--data', 'mnist', '--batch', String(batch), '--micro-batch', String(batch)];
const place = ['--workers', '0', '--remote', '1', '--plan', 'plan.json', '--dashboard', '--epochs', '100', '--json'];
const run = startCommand(['train', ...subject, ...place, '--out', 'run'], { cwd });
const executablePath = process.env['CHROMIUM'] ?? '/usr/bin/chromium';
const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu'] });
try {
  const page = await browser.newPage();
  await page.goto(String((await run.event('window'))['deviceUrl']));
  await page.getByLabel('Name').fill('tab');
  await page.getByRole('button', { name: 'Join', exact: true }).click();
  await run.event('round', ({ round }) => Number(round) >= 2);
  const thread = page.workers().find((worker) => worker.url().endsWith('/compute.js'));
  // Run in that thread, where these are its globals.
  await thread?.evaluate(`
    globalThis.longest = 0;
    let last = performance.now();
    setInterval(() => {
      const now = performance.now();
      globalThis.longest = Math.max(globalThis.longest, now - last);
      last = now;
    }, 1);
  `);
  const before = run.events('round').length;
  const startMs = performance.now();
  const gaps: number[] = [];
  for (let second = 0; second < seconds; second++) {
    await pause(1000);
    gaps.push(
      Math.round(
        Number(
          await thread?.evaluate('(() => { const gap = globalThis.longest; globalThis.longest = 0; return gap; })()'),
        ),
      ),
    );
  }
  const rounds = run.events('round').length - before;
  console.log(`a round of ${batch} samples: ${Math.round((performance.now() - startMs) / rounds)} ms`);
  console.log(`longest gaps: ${gaps.join(', ')} ms`);
} finally {
  await browser.close();
  run.process.kill('SIGKILL');
}
