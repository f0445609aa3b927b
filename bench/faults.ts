// What losses cost, with real processes. `npm run build`, then
//   npm run bench -- faults [--strict] [--seeds N] [--start S]
//     one of four workers is killed at a seeded moment, N times (default 100)
//   npm run bench -- faults --coordinator [--seeds N]
//     the coordinator is killed and started again (default 10 times)
//   npm run bench -- faults --soak MINUTES
//     a kill every 30 s and a new worker in its place: memory, handles and sockets
//   npm run bench -- faults --flapping SECONDS [--measured]
//     one of four workers leaves or comes back every 2 s: throughput, cool-downs, handles and sockets
// R is the time from the kill to the next round that commits in a layout that stands. Every run of the first kind is
// stopped, and its rounds, losses and weights are compared with training on one device that nobody disturbed
// (src/testing/disturbed-run.ts).

import { mkdtemp, readdir, readFile, readlink, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { defined } from '../dist/assert.js';
import { createRandom } from '../dist/random.js';
import { mean, median } from '../dist/statistics.js';
import { type RunningCommand, startCommand } from '../dist/testing/command.js';
import {
  checkUndisturbed,
  reached,
  startJoinedRun,
  startRun,
  stopRun,
  workerNames,
  workerPid,
} from '../dist/testing/disturbed-run.js';
import { createSelfSigned } from '../dist/testing/self-signed.js';
import { at, quantile, sum } from './common/numbers.ts';

const { values: flags } = parseArgs({
  options: {
    seeds: { type: 'string' },
    start: { type: 'string', default: '0' },
    strict: { type: 'boolean', default: false },
    soak: { type: 'string' },
    flapping: { type: 'string' },
    measured: { type: 'boolean', default: false },
    coordinator: { type: 'boolean' },
  },
});
const cwd = await mkdtemp(join(tmpdir(), 'asteroid-faults-'));
const seconds = (ms: number) => `${(ms / 1000).toFixed(2)} s`;

/** Events that this reads, as the command prints them: each kind has some of the fields. */
interface RunEvent {
  readonly event: string;
  readonly phase: string;
  readonly round: number;
  readonly source: string;
  readonly repeatedRounds: number;
}

/** Calls back with each JSON event of a command when it arrives. */
function onEvents(run: RunningCommand, listener: (event: RunEvent, nowMs: number) => void): void {
  let rest = '';
  run.process.stdout?.on('data', (text: string) => {
    const lines = (rest + text).split('\n');
    rest = lines.pop() ?? '';
    for (const line of lines) listener(JSON.parse(line) as RunEvent, performance.now());
  });
}

/** Milliseconds from `killMs` to the first commit after a layout has been changed. Begin to listen before the kill. */
interface Heard {
  phase: string;
  recovering?: RunEvent;
  recoveredMs?: number;
  commitMs?: number;
}

function listenForRecovery(run: RunningCommand): { readonly heard: Heard; readonly done: Promise<void> } {
  const heard: Heard = { phase: 'training' };
  const done = new Promise<void>((resolve, reject) => {
    onEvents(run, (event, nowMs) => {
      if (event.event === 'phase') heard.phase = event.phase;
      if (event.event === 'recovering') heard.recovering = event;
      if (event.event === 'recovered' && heard.recovering !== undefined) heard.recoveredMs = nowMs;
      if (heard.recoveredMs === undefined || (event.event !== 'round' && event.event !== 'repeated')) return;
      heard.commitMs ??= nowMs;
      resolve();
    });
    void run.end.then(({ stderr }) => reject(new Error(`The run ended without a recovery: ${stderr}`)));
  });
  done.catch(() => {}); // whoever awaits it sees it; an early kill may need no recovery
  return { heard, done };
}

/** One run, one kill. Every tenth strikes before the first round: while the model and the layout are sent. */
async function killOnce(seed: number) {
  const random = createRandom(seed, 91);
  const victim = at(workerNames, random.integer(workerNames.length));
  const isEarly = seed % 10 === 9;
  const out = `seed-${seed}`;
  // Checkpoints are frequent, so that some are struck.
  const run = await startRun({ cwd, out, strict: flags.strict, more: ['--checkpoint-every', '4'] });
  const { heard, done } = listenForRecovery(run);
  if (isEarly) {
    await run.event('phase', ({ phase }) => phase === 'preparing');
    await pause(random.uniform() * 400);
  } else {
    await reached(run, 2 + random.integer(20));
    await pause(random.uniform() * 100);
  }
  const phase = heard.phase;
  const pid = await workerPid(run, victim);
  const killMs = performance.now();
  process.kill(pid, 'SIGKILL');
  // Before there is a layout, the others simply go on without the device.
  const simply = run.event('round').then(() => undefined);
  await (isEarly ? Promise.race([done, simply]) : done);
  const commitMs = heard.commitMs ?? performance.now();
  const round = Math.max(-1, ...run.events('round').map((event) => Number(event.round)));
  await reached(run, round + 3);
  const rounds = await stopRun(run);
  const difference = await checkUndisturbed({ cwd, out, strict: flags.strict }, rounds);
  await rm(join(cwd, out), { recursive: true });
  await rm(join(cwd, `alone-${out}`), { recursive: true });
  const { repeatedRounds = 0, source = 'none needed' } = heard.recovering ?? {};
  return { seed, victim, phase, repeatedRounds, source, rounds, recoveryMs: commitMs - killMs, ...difference };
}

type Killed = Awaited<ReturnType<typeof killOnce>>;

async function killMany(count: number, start: number): Promise<void> {
  const results: Killed[] = [];
  for (let seed = start; seed < start + count; seed++) {
    const result = await killOnce(seed).catch((error: Error) => {
      throw new Error(`seed ${seed} (npm run bench -- faults --seeds 1 --start ${seed}): ${error.message}`, {
        cause: error,
      });
    });
    results.push(result);
    console.log(JSON.stringify(result));
  }
  report(
    'one of four workers killed',
    results.map(({ recoveryMs }) => recoveryMs),
  );
  const counted = (name: 'victim' | 'phase' | 'source' | 'repeatedRounds') => {
    const counts = new Map<string | number, number>();
    for (const result of results) counts.set(result[name], (counts.get(result[name]) ?? 0) + 1);
    return [...counts].map(([key, count]) => `${key} ${count}`).join(', ');
  };
  for (const name of ['victim', 'phase', 'source', 'repeatedRounds'] as const)
    console.log(`by ${name}: ${counted(name)}`);
  const most = (name: 'loss' | 'weight') => Math.max(...results.map((result) => result[name]));
  console.log(
    `every round of all ${results.length} runs committed once; ` +
      `beside training on one device losses differ by ${most('loss')} at most, weights by ${most('weight')}`,
  );
}

function report(what: string, times: readonly number[]): void {
  console.log(
    `${what}, ${times.length} times: R median ${seconds(median(times))}, ` +
      `p95 ${seconds(quantile(times, 0.95))}, max ${seconds(Math.max(...times))}`,
  );
}

/**
 * Settings of a run on whose links devices are known by their certificates: they bear the same name when they come
 * back.
 */
async function tlsFlags(): Promise<string[]> {
  const { cert, key } = createSelfSigned();
  const [certPath, keyPath] = [join(cwd, 'cert.pem'), join(cwd, 'key.pem')];
  await Promise.all([writeFile(certPath, cert), writeFile(keyPath, key)]);
  return ['--tls-cert', certPath, '--tls-key', keyPath];
}

/** The coordinator is killed after a checkpoint and started again at the same port; four workers wait for it. */
async function killCoordinator(count: number): Promise<void> {
  const more = await tlsFlags();
  const environment = { ASTEROID_STATE: join(cwd, 'coordinator') };
  const times: number[] = [];
  for (let index = 0; index < count; index++) {
    const out = `restart-${index}`;
    const { run, workers, url } = await startJoinedRun({ cwd, out, environment, more });
    await run.event('checkpoint');
    const killMs = performance.now();
    run.process.kill('SIGKILL');
    await run.end;
    const again = startCommand(['train', '--resume', join(cwd, out), '--port', new URL(url).port, '--json'], {
      cwd,
      environment,
    });
    const { round } = await again.event('round');
    times.push(performance.now() - killMs);
    await reached(again, Number(round) + 3);
    await checkUndisturbed({ cwd, out }, await stopRun(again));
    for (const worker of workers.values()) await worker.end;
  }
  report('the coordinator killed and started again', times);
}

/** Resident memory in MiB, and open files by kind. */
interface Usage {
  readonly memoryMiB: number;
  readonly fileCount: number;
  readonly socketCount: number;
}

async function usageOf(pid: number): Promise<Usage> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8');
  const files = await readdir(`/proc/${pid}/fd`);
  const targets = await Promise.all(files.map((name) => readlink(`/proc/${pid}/fd/${name}`).catch(() => '')));
  const socketCount = targets.filter((target) => target.startsWith('socket:')).length;
  return { memoryMiB: Number(/VmRSS:\s+(\d+)/.exec(status)?.[1]) / 1024, fileCount: files.length, socketCount };
}

function pidOf(run: RunningCommand): number {
  return defined(run.process.pid, 'a process that has started');
}

/** The usage of each process now. */
async function usagesOf<Name extends string>(pids: Readonly<Record<Name, number>>): Promise<Record<Name, Usage>> {
  const found = Object.entries<number>(pids).map(async ([name, pid]) => [name, await usageOf(pid)] as const);
  return Object.fromEntries(await Promise.all(found)) as Record<Name, Usage>;
}

/** MiB a minute: least squares over [minute, MiB]. */
function slope(points: readonly (readonly [minute: number, memoryMiB: number])[]): number {
  const [x, y] = [mean(points.map(([minute]) => minute)), mean(points.map(([, memory]) => memory))];
  const spread = sum(points.map(([minute]) => (minute - x) ** 2));
  return spread === 0 ? 0 : sum(points.map(([minute, memory]) => (minute - x) * (memory - y))) / spread;
}

/** Every 30 s one of the workers but the first is killed, and a new one joins. The first third is warming up. */
async function soak(minutes: number): Promise<void> {
  const random = createRandom(Number(flags.start), 92);
  const {
    run,
    workers,
    join: start,
  } = await startJoinedRun({ cwd, out: 'soak', more: ['--checkpoint-every', '1000', '--steps', '100000000'] });
  let [lastRound, roundCount, recoveryCount] = [-1, 0, 0];
  onEvents(run, ({ event, round }) => {
    if (event === 'recovered') recoveryCount++;
    if (event !== 'round') return;
    if (round !== lastRound + 1) throw new Error(`round ${round} after round ${lastRound}`);
    lastRound = round;
    roundCount++;
  });
  const survivor = defined(workers.get('worker-1'), 'worker-1');
  const others = workerNames.slice(1).map((name) => defined(workers.get(name), name));
  const kept = { coordinator: pidOf(run), survivor: pidOf(survivor) };
  type Sample = Record<'minute' | 'round', number> & Record<keyof typeof kept, Usage>;
  const samples: Sample[] = [];
  await reached(run, 50);
  const startMs = performance.now();
  const sample = async () => {
    const usage = await usagesOf(kept);
    samples.push({ minute: (performance.now() - startMs) / 60_000, round: lastRound, ...usage });
    console.log(JSON.stringify(samples.at(-1)));
  };
  await sample();
  for (let count = 0; performance.now() - startMs < minutes * 60_000; count++) {
    const place = random.integer(others.length);
    at(others, place).process.kill('SIGKILL');
    const started = start(`new-${count}`);
    others[place] = started;
    await started.event('joined');
    await pause(30_000 - ((performance.now() - startMs) % 30_000));
    await sample();
  }
  const steady = samples.filter(({ minute }) => minute >= minutes / 3);
  for (const name of ['coordinator', 'survivor'] as const) {
    const [first, last] = [at(steady, 0)[name], at(steady, -1)[name]];
    console.log(
      `${name}: ` +
        `${slope(steady.map((entry) => [entry.minute, entry[name].memoryMiB] as const)).toFixed(2)} MiB a minute ` +
        `(${first.memoryMiB.toFixed(0)} to ${last.memoryMiB.toFixed(0)} MiB), ` +
        `files ${first.fileCount} to ${last.fileCount}, sockets ${first.socketCount} to ${last.socketCount}`,
    );
  }
  console.log(
    `${samples.length - 1} kills, ${recoveryCount} recoveries, ${roundCount} rounds, each committed once and in order`,
  );
  await stopRun(run);
  for (const worker of [survivor, ...others]) await worker.end;
}

/** How long a device stays, and how long it stays away. */
const rhythmMs = 2000;
const batchSize = 16;

/** Samples a second in the rounds that commit within `ms` from now. */
async function throughput(counter: RoundCounter, ms: number): Promise<number> {
  const [startMs, start] = [performance.now(), counter.count];
  await pause(ms);
  return (batchSize * (counter.count - start) * 1000) / (performance.now() - startMs);
}

interface RoundCounter {
  count: number;
  last?: number;
}

/** Counts a run's rounds from now on; each must be the one after the last. */
function countRounds(run: RunningCommand): RoundCounter {
  const counter: RoundCounter = { count: 0 };
  onEvents(run, ({ event, round }) => {
    if (event !== 'round') return;
    if (round !== (counter.last ?? round - 1) + 1) throw new Error(`round ${round} after round ${counter.last}`);
    counter.last = round;
    counter.count++;
  });
  return counter;
}

/**
 * One of four workers leaves, by SIGKILL and SIGTERM in turn, and comes back 2 s after it is gone, and leaves 2 s after
 * it has joined. Before and after, all four are there.
 */
async function flap(totalSeconds: number): Promise<void> {
  const out = 'flapping';
  const options = { cwd, out, strict: true, isMeasured: flags.measured };
  const joined = await startJoinedRun({ ...options, more: [...(await tlsFlags()), '--checkpoint-every', '1000'] });
  const { run, workers } = joined;
  const counter = countRounds(run);
  const kept = { coordinator: pidOf(run), 'worker-1': pidOf(defined(workers.get('worker-1'), 'worker-1')) };
  await reached(run, 200);
  const steady = await throughput(counter, 20_000);
  console.log(`steady: ${steady.toFixed(0)} samples/s`);
  const before = await usagesOf(kept);
  const [startMs, start] = [performance.now(), counter.count];
  const elapsedMs = () => performance.now() - startMs;
  let flapper = defined(workers.get('worker-3'), 'worker-3');
  for (let turn = 0; elapsedMs() < totalSeconds * 1000; turn++) {
    flapper.process.kill(turn % 2 === 0 ? 'SIGKILL' : 'SIGTERM');
    await Promise.all([flapper.end, pause(rhythmMs)]);
    flapper = joined.join('worker-3');
    await flapper.event('joined');
    await pause(rhythmMs);
  }
  const during = (batchSize * (counter.count - start) * 1000) / elapsedMs();
  const part = ((100 * during) / steady).toFixed(0);
  console.log(
    `leaving and joining for ${(elapsedMs() / 1000).toFixed(0)} s: ${during.toFixed(0)} samples/s, ` +
      `${part} % of the steady throughput`,
  );
  const coolDowns = run.events('cool-down');
  console.log(
    `left ${run.events('left').length} times, joined ${run.events('joined').length - workers.size} times; ` +
      `layouts changed ${run.events('recovered').length} times, ` +
      `cool-downs of ${coolDowns.map(({ seconds: left }) => Number(left).toFixed(0)).join(', ')} s`,
  );
  console.log(`afterwards, with all four: ${(await throughput(counter, 20_000)).toFixed(0)} samples/s`);
  const after = await usagesOf(kept);
  for (const name of ['coordinator', 'worker-1'] as const) {
    const [first, last] = [before[name], after[name]];
    console.log(
      `${name}: ${first.memoryMiB.toFixed(0)} to ${last.memoryMiB.toFixed(0)} MiB, ` +
        `files ${first.fileCount} to ${last.fileCount}, sockets ${first.socketCount} to ${last.socketCount}`,
    );
  }
  const rounds = await stopRun(run);
  for (const worker of [...workers.values(), flapper]) await worker.end;
  const { loss, weight } = await checkUndisturbed(options, rounds);
  console.log(
    `${rounds} rounds, each committed once and in order; ` +
      `beside training on one device losses differ by ${loss} at most, weights by ${weight}`,
  );
}

try {
  if (flags.flapping !== undefined) await flap(Number(flags.flapping));
  else if (flags.soak !== undefined) await soak(Number(flags.soak));
  else if (flags.coordinator) await killCoordinator(Number(flags.seeds ?? 10));
  else await killMany(Number(flags.seeds ?? 100), Number(flags.start));
} finally {
  await rm(cwd, { recursive: true, force: true });
}
