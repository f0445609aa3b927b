// A lab, and training runs in it through the command line, with what is seen of them from outside (watch.ts).

import { execFileSync, spawn } from 'node:child_process';
import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { defined } from '../../dist/assert.js';
import type { Cluster, Plan, PlanLayout, Profile } from '../../dist/cluster/cluster.js';
import type { Priority } from '../../dist/lab/cgroups.js';
import { type Lab, makeLab, removeLab } from '../../dist/lab/lab.js';
import { keepAwake } from './awake.ts';
import { type DeviceRound, type DeviceRounds, deviceRounds, type JsonEvent, roundMsOf } from './events.ts';
import { between, type Counters, counters, processesOf, samplePorts, type Use, watchMemory } from './watch.ts';

const main = new URL('../../dist/cli/main.js', import.meta.url).pathname;

/** A device's memory limit, and the processes that the system has killed for it. */
export interface MemoryLimit {
  readonly device: string;
  readonly limitMiB: number;
  readonly killCount: number;
}

/** How a run is watched. */
export interface TrainOptions {
  /** Samples of a round. */
  readonly batch: number;
  /** First rounds that are not measured. Default 0. */
  readonly warmUp?: number;
  /** Sees each event of the run, with the time at which it came. */
  readonly onEvent?: (event: JsonEvent, nowMs: number) => void;
  /** The run is stopped after an event for which this is true. */
  readonly isEnough?: (event: JsonEvent) => boolean;
  /** It is not even waited for a layout or a round then. The run leaves no folder where it has computed none. */
  readonly stopsAtOnce?: boolean;
}

/** A second signal ends a run at once; signals that come sooner count as one. */
const secondSignalMs = 500;

/** What a run has shown. `Use` is of the time between the end of the warm-up and the end of the last round. */
export interface TrainRun extends Use {
  /** Of the measured rounds. */
  readonly roundMs: readonly number[];
  /** By device, what it reported of each of them. */
  readonly rounds: Readonly<Record<string, readonly DeviceRound[]>>;
  /** What devices reported of the last rounds before them. */
  readonly settled: readonly DeviceRounds[];
  readonly peakMemoryMiB: Readonly<Record<string, number>>;
  /** Reads the run folder's documents, while the lab stands. A run with a given plan has no profile. */
  readonly documents: () => RunDocuments;
}

export interface RunDocuments {
  readonly profile: Profile;
  readonly cluster: Cluster;
  readonly plan: Plan;
}

/** A lab that stands, and what can be done to it. */
export interface Testbed {
  readonly lab: Lab;
  /** The folder by which the command line finds it. */
  readonly state: string;
  /** `asteroid train ...args`. Rejects if it fails. */
  train(args: readonly string[], options: TrainOptions): Promise<TrainRun>;
  /** Ends all processes of a device at once, as if it had lost its power. */
  killDevice(device: string): void;
  /** Sets the bandwidth of both directions of a link. */
  setBandwidth(a: string, b: string, mbps: number): void;
  /** Sets a device's quota. */
  setCores(device: string, cores: number): void;
  limits(): MemoryLimit[];
  /** The next run measures all devices anew. */
  forgetProfiles(): void;
  /** Writes a plan to a file, whose path it returns; the file before is gone. */
  writePlan(plan: PlanLayout): string;
  /** Removes the lab; a second call waits for the same end. */
  close(): Promise<void>;
}

/** How a testbed is made. `caches`: a folder that holds measured profiles between labs of the same devices. */
export interface TestbedOptions {
  readonly name: string;
  readonly priority: Priority;
  readonly caches: string;
}

/** A lab for a cluster on cores that are kept awake, its files in a temporary folder. */
export async function openTestbed(cluster: Cluster, { name, priority, caches }: TestbedOptions): Promise<Testbed> {
  const folder = mkdtempSync(join(tmpdir(), 'asteroid-bench-'));
  const state = join(folder, 'state');
  await removeLab(name, state); // of a run that was killed
  const lab = await makeLab(cluster, { name, network: 'links', priority, coreCount: availableParallelism() }, state);
  const { devices } = lab.layout;
  // Profiles do not depend on links.
  const pairs = devices.map(({ name: device, cores }, index) => ({
    own: join(lab.folder, String(index + 1), 'cache'),
    kept: join(caches, `${device}@${cores}`),
  }));
  for (const { own, kept } of pairs) if (existsSync(kept)) cpSync(kept, own, { recursive: true });
  const letSleep = keepAwake();
  const remove = async () => {
    letSleep();
    for (const { own, kept } of pairs) if (existsSync(own)) cpSync(own, kept, { recursive: true });
    await removeLab(name, state);
    rmSync(folder, { recursive: true, force: true });
  };
  let runCount = 0;
  let closing: Promise<void> | undefined;
  return {
    lab,
    state,
    train: (args, options) => train({ lab, state, folder: join(folder, `run-${++runCount}`) }, args, options),
    killDevice: (device) => {
      for (const id of processesOf(lab, device)) process.kill(id, 'SIGKILL');
    },
    setBandwidth: (a, b, mbps) => {
      shape(lab, a, b, mbps);
      shape(lab, b, a, mbps);
    },
    setCores: (device, cores) => limit(lab, device, cores),
    limits: () => devices.map((device) => limitOf(lab, device.name)),
    forgetProfiles: () => {
      for (const { own } of pairs) rmSync(own, { recursive: true, force: true });
    },
    writePlan: (plan) => {
      const file = join(folder, 'plan.json');
      writeFileSync(file, JSON.stringify(plan));
      return file;
    },
    close: () => (closing ??= remove()),
  };
}

/** What devices report of the rounds in the last 30 s before those that are measured is kept: of at least three. */
const [settledMs, leastSettled] = [30_000, 3];

interface RunPlace {
  readonly lab: Lab;
  readonly state: string;
  readonly folder: string;
}

/** A look at the counters, and how many samples of the ports there were. */
type Mark = Counters & { readonly sample: number };

/** Collects the rounds of a run. `look` is taken after each. */
class RoundLog {
  readonly roundMs: number[] = [];
  readonly rounds: Record<string, DeviceRound[]> = {};
  readonly #options: TrainOptions;
  readonly #look: () => Mark;
  readonly #before: { readonly devices: DeviceRounds; readonly atMs: number }[] = [];
  start: Mark | undefined;
  end: Mark | undefined;

  constructor(options: TrainOptions, look: () => Mark) {
    this.#options = options;
    this.#look = look;
  }

  add(event: Extract<JsonEvent, { event: 'round' }>): void {
    const { batch, warmUp = 0 } = this.#options;
    const mark = this.#look();
    const devices = deviceRounds(event, batch);
    if (event.round < warmUp) {
      this.start = mark;
      this.#before.push({ devices, atMs: mark.atMs });
      return;
    }
    // Processes that have ended are not counted any more.
    if (Object.values(mark.usedMs).every((ms) => ms >= 0)) this.end = mark;
    this.roundMs.push(roundMsOf(event, batch));
    for (const [device, one] of Object.entries(devices)) {
      this.rounds[device] ??= [];
      this.rounds[device].push(one);
    }
  }

  settled(): DeviceRounds[] {
    const since = (this.start?.atMs ?? 0) - settledMs;
    const least = this.#before.length - leastSettled;
    return this.#before.filter(({ atMs }, index) => index >= least || atMs > since).map(({ devices }) => devices);
  }
}

function train({ lab, state, folder }: RunPlace, args: readonly string[], options: TrainOptions): Promise<TrainRun> {
  const words = ['lab', 'run', '--name', lab.layout.name, '--json', '--', 'train', ...args, '--out', folder];
  const child = spawn(process.execPath, [main, ...words], {
    env: { ...process.env, ASTEROID_STATE: state },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const ports = samplePorts(lab);
  const memory = watchMemory(lab);
  const log = new RoundLog(options, () => ({ ...counters(lab), sample: ports.samples.length }));
  let errors = '';
  let isStopped = false;
  let again: NodeJS.Timeout | undefined;
  child.stderr.setEncoding('utf8').on('data', (text) => (errors += text));
  createInterface({ input: child.stdout }).on('line', (line) => {
    const event: JsonEvent = JSON.parse(line);
    options.onEvent?.(event, performance.now());
    if (!isStopped && options.isEnough?.(event) === true) {
      isStopped = child.kill('SIGINT');
      if (options.stopsAtOnce === true) again = setInterval(() => child.kill('SIGINT'), secondSignalMs);
    }
    if (event.event === 'round') log.add(event);
  });
  return new Promise((resolve, reject) => {
    child.once('close', (code) => {
      clearInterval(again);
      memory.end();
      ports.end();
      if (code !== (isStopped ? 130 : 0)) {
        reject(new Error(`train ${args.join(' ')} ended with ${code}: ${errors.slice(-2000)}`));
        return;
      }
      const { roundMs, rounds, start, end } = log;
      const documents = () => documentsIn(folder);
      const use =
        start === undefined || end === undefined
          ? { links: [], sending: {}, coresUsed: {}, stolen: 0 }
          : between(lab, start, end, ports.samples.slice(start.sample, end.sample));
      resolve({ roundMs, rounds, settled: log.settled(), ...use, peakMemoryMiB: memory.peakMiB(), documents });
    });
  });
}

function documentsIn(folder: string): RunDocuments {
  const document = (name: string) => JSON.parse(readFileSync(join(folder, name), 'utf8'));
  return { profile: document('profile.json'), cluster: document('cluster.json'), plan: document('plan.json') };
}

/** Sets the rate of what a device sends to another. */
function shape({ layout: { devices } }: Lab, from: string, to: string, mbps: number): void {
  const { namespace } = defined(
    devices.find(({ name }) => name === from),
    from,
  );
  const id = `1:${(devices.findIndex(({ name }) => name === to) + 1).toString(16)}`;
  const rate = ['rate', `${mbps}mbit`, 'burst', '64kb', 'cburst', '64kb', 'quantum', '60000'];
  const words = ['class', 'change', 'dev', 'eth0', 'parent', '1:', 'classid', id, 'htb', ...rate];
  execFileSync('tc', ['-n', namespace, ...words]);
}

function limit({ cgroups }: Lab, device: string, cores: number): void {
  const folder = dirname(defined(cgroups.devices[device]?.[0], `the group of ${device}`));
  const periodUs = 10_000;
  const quota = existsSync(join(folder, 'cpu.max'))
    ? { file: 'cpu.max', value: `${cores * periodUs} ${periodUs}` }
    : { file: 'cpu.cfs_quota_us', value: String(cores * periodUs) };
  const burst = ['cpu.max.burst', 'cpu.cfs_burst_us']
    .map((name) => join(folder, name))
    .find((path) => existsSync(path));
  // A burst is never more than the quota.
  const burstUs = burst === undefined ? 0 : Math.min(Number(readFileSync(burst, 'utf8')), cores * periodUs);
  if (burst !== undefined) writeFileSync(burst, '0');
  writeFileSync(join(folder, quota.file), quota.value);
  if (burst !== undefined) writeFileSync(burst, String(burstUs));
}

function limitOf({ cgroups }: Lab, device: string): MemoryLimit {
  const read = (file: string) =>
    cgroups.devices[device]
      ?.map((path) => path.replace('cgroup.procs', file))
      .filter((path) => existsSync(path))
      .map((path) => readFileSync(path, 'utf8'))[0];
  const limitMiB = Number(read('memory.limit_in_bytes') ?? read('memory.max')) / 2 ** 20;
  const events = read('memory.oom_control') ?? read('memory.events') ?? '';
  return { device, limitMiB, killCount: Number(/^oom_kill (\d+)$/m.exec(events)?.[1]) };
}
