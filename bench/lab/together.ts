// @ts-nocheck
// What five devices can be at most on this machine: each trains the whole model by itself, alone and all at once. They share its cores, caches and memory, and
// nothing else.

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { commandOn, endDevices } from '../../dist/lab/lab.js';

const main = new URL('../../dist/cli/main.js', import.meta.url).pathname;

/** By device of `names`, which train at the same time: milliseconds of each round while all of them did, the warm-up left out. */
export async function trainApart(lab, names, settings, { batch, warmUp, rounds }) {
  const folder = mkdtempSync(join(tmpdir(), 'asteroid-together-'));
  const times = Object.fromEntries(names.map((name) => [name, []]));
  let end = () => {};
  const isOver = new Promise((resolve) => (end = resolve));
  try {
    const ends = names.map((name) => {
      const words = [
        'train',
        ...settings,
        '--steps',
        '100000',
        '--workers',
        '0',
        '--threads',
        '1',
        '--out',
        join(folder, name),
        '--json',
      ];
      const [program, ...args] = commandOn(lab, name, [process.execPath, main, ...words]);
      const child = spawn(program, args, {
        stdio: ['ignore', 'pipe', 'inherit'],
        env: { ...process.env, HOME: join(folder, name) },
      });
      createInterface({ input: child.stdout }).on('line', (line) => {
        const event = JSON.parse(line);
        if (event.event !== 'round') return;
        if (event.round >= warmUp) times[name].push((batch / event.samplesPerS) * 1000);
        // Until the last one has so many rounds, all go on.
        if (Object.values(times).every((own) => own.length >= rounds)) end();
      });
      return new Promise((resolve) => child.once('close', resolve));
    });
    await Promise.race([isOver, Promise.all(ends)]);
    await endDevices(lab);
    await Promise.all(ends);
    return times;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
