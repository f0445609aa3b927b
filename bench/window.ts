// What the window costs the coordinator: ten devices, ten rounds a second, with no viewer, one and a hundred, which a
// process of their own plays. In percent of a core.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { WebSocket } from 'ws';
import { systemClock } from '../dist/clock.js';
import type { RunEvent } from '../dist/runtime/protocol/events.js';
import { serveAlone } from '../dist/window/server/own-server.js';
import { RunWindow, type RunWindowOptions } from '../dist/window/server/run-window.js';

const [secondsEach, roundMs] = [6, 100];
const devices = Array.from({ length: 10 }, (_, index) => `device-${index}`);
const [role, countText = '0', origin = '', cookie = ''] = process.argv.slice(2);

/** Plays viewers until it is ended; says when all are there. */
async function view(count: number): Promise<void> {
  let bytes = 0;
  const sockets = Array.from({ length: count }, () => {
    const socket = new WebSocket(`${origin.replace('http', 'ws')}/events`, { headers: { origin, cookie } });
    socket.on('message', (data) => {
      bytes += (data as Buffer).length;
    });
    return socket;
  });
  await Promise.all(sockets.map((socket) => once(socket, 'message')));
  console.log('ready');
  process.once('SIGTERM', () => {
    console.log(`${Math.round(bytes / 1024)} KiB`);
    process.exit(0);
  });
  setInterval(() => {}, 1e6); // it stays until it is ended
  await new Promise(() => {});
}

function* events(): Generator<RunEvent> {
  for (const device of devices)
    yield { kind: 'joined', device, cores: 4, memoryMiB: 4096, engine: 'onnxruntime-node 1.30.0 cpu (1 thread)' };
  yield { kind: 'training', firstRound: 0, endRound: 100_000, roundsPerEpoch: 100 };
  for (let round = 0; ; round++) {
    const metrics = { round, epoch: 0, loss: 2 / (1 + round / 50), samplesPerS: 640, lr: 0.002, accuracy: 0.5 };
    const busyFraction = Object.fromEntries(devices.map((device) => [device, 0.837]));
    yield { kind: 'round', metrics, endRound: 100_000, busyFraction, work: {} };
    if (round % 5 === 0)
      for (const device of devices) yield { kind: 'load', device, usedCores: 0.91, residentMiB: 512 };
  }
}

async function measure(): Promise<void> {
  let link: () => string = () => '';
  const record = (): void => {};
  const onOpen: RunWindowOptions['onOpen'] = (opened) => {
    link = opened.link;
  };
  const window = new RunWindow({ model: 'net', clock: systemClock, record, onOpen });
  const server = await serveAlone(window, { host: '127.0.0.1', port: 0, clock: systemClock, insecure: false });
  const { origin: own, hash } = new URL(link());
  const answer = await fetch(`${own}/session`, { method: 'POST', body: hash.slice(1), headers: { origin: own } });
  const session = answer.headers.get('set-cookie')?.split(';')[0] ?? '';
  const stream = events();
  const timer = setInterval(() => {
    for (let next = stream.next(); next.done !== true; next = stream.next()) {
      window.observe(next.value);
      if (next.value.kind === 'round') return;
    }
  }, roundMs);
  for (const count of [0, 1, 100]) {
    const script = fileURLToPath(import.meta.url);
    const args = [script, 'view', String(count), own, session];
    const viewers = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
    await once(viewers.stdout, 'data');
    await pause(1000);
    const [before, beforeMs] = [process.cpuUsage(), performance.now()];
    await pause(secondsEach * 1000);
    const { user, system } = process.cpuUsage(before);
    const share = (user + system) / 1000 / (performance.now() - beforeMs);
    console.log(`${String(count).padStart(3)} viewers: ${(100 * share).toFixed(2)} % of a core`);
    viewers.kill('SIGTERM');
    await once(viewers, 'exit');
  }
  clearInterval(timer);
  await server.close('done');
}

await (role === 'view' ? view(Number(countText)) : measure());
