// Joins a coordinator by URL and code and serves its run; reconnects when the link to it was lost.

import { isIP } from 'node:net';
import { hostname } from 'node:os';
import { setTimeout } from 'node:timers/promises';
import type { Clock } from '../../clock.ts';
import { bytesInMiB } from '../../cluster/memory.ts';
import type { Engine } from '../../engine/engine.ts';
import { type DeviceFacts, deviceFacts } from '../../engine/node/host-node.ts';
import type { ProcessClock } from '../../engine/process-clock.ts';
import { InputError } from '../../errors.ts';
import { isLoopback } from '../../transport/admission.ts';
import { type Hello, protocolVersion, type Welcome } from '../../transport/handshake.ts';
import { connect } from '../../transport/node/websocket.ts';
import type { StageStore } from '../device/compiled-stages.ts';
import type { ProfileCache } from '../device/measure/cached-profile.ts';
import { comparableMiB } from '../device/memory-need.ts';
import type { WorkerEnd, WorkerOptions } from '../worker/options.ts';
import { runWorker } from '../worker/worker.ts';
import { type AdvertisedAddress, isThisMachine, isWildcard } from './addresses.ts';
import { addressTowards, createPeerNetwork } from './network.ts';
import { processMeters } from './process-meters.ts';
import type { DeviceStore } from './security/device-store.ts';
import { enrol } from './security/enrolment.ts';
import { type Served, serveToTheEnd } from './serve.ts';
import { StagesAhead } from './stages-ahead.ts';

export interface JoinOptions {
  readonly url: string;
  /** Called once, and only if this device has no certificate of the cluster yet. */
  joinCode(): Promise<string>;
  /** Default: the host's name. */
  readonly name?: string;
  /** The address on which to listen for peers. Default: the one that leads to the coordinator. */
  readonly host?: string;
  /** The port to listen on. Default: that of `advertised`, or any free one. */
  readonly port?: number;
  /**
   * What peers dial. Default: the address listened on; with a port that was chosen, the address that the coordinator
   * sees, since who chooses a port leads one there.
   */
  readonly advertised?: AdvertisedAddress;
  /** Allow plain links beyond this machine. */
  readonly insecure: boolean;
  readonly clock: Clock;
  /** Aborted: leaves the run. */
  readonly signal: AbortSignal;
  readonly profileCache?: ProfileCache;
  /** Keeps what stages are compiled to. */
  readonly stageStore?: StageStore;
  /** See WorkerOptions. */
  readonly weightFiles?: WorkerOptions['weightFiles'];
  /** Keeps certificates, so that this device needs no code the next time. */
  readonly store?: DeviceStore;
  /** Memory that this device may use. Default: all of the machine's. */
  readonly maxMemoryMiB?: number;
  /** How long to try to reconnect when the link to the coordinator is lost. Default 0: not at all. */
  readonly reconnectMs?: number;
  createEngine(): Promise<Engine>;
  /** See WorkerOptions. */
  readonly startProfile?: WorkerOptions['startProfile'];
  /** See WorkerOptions. */
  readonly processWork?: ProcessClock;
  /** The device's engine is a far slower one than it could have. */
  onWarning?(message: string): void;
  onJoined(name: string, joined: Joined): void;
  /** The link was lost; the device tries again. */
  onLost?(reason: string): void;
}

/** How a device has joined. */
export interface Joined {
  /** What peers dial. */
  readonly host: string;
  readonly port?: number;
  /** The address that the coordinator sees, where it is another: something between changes it. */
  readonly seenAs?: string;
  readonly encrypted: boolean;
}

/** How long a device that is stopped waits to be let go. */
const drainMs = 15_000;

/** Joins and serves until the run ends. Throws InputError for a wrong URL or code, RunError when nobody answers. */
export async function joinRun(options: JoinOptions): Promise<WorkerEnd> {
  const target = parseUrl(options.url);
  if (target.protocol === 'ws:' && !isThisMachine(bare(target.hostname)) && !options.insecure) {
    throw new InputError(
      `${options.url} would be unencrypted: use the wss:// address that asteroid train printed, ` +
        'or add --insecure if you trust the network between.',
    );
  }
  const own = await addressTowards(bare(target.hostname));
  const engine = await options.createEngine();
  if (engine.warning !== undefined) options.onWarning?.(engine.warning);
  const joinCode = once(options.joinCode);
  // Read when the process begins: this process is none of those that were killed before.
  const { oomKillCount } = deviceFacts();
  try {
    return await serveToTheEnd(() => serve({ ...options, joinCode }, own, { engine, oomKillCount }), {
      clock: options.clock,
      reconnectMs: options.reconnectMs ?? 0,
      pause: (milliseconds) => pause(milliseconds, options.signal),
      isStopped: () => options.signal.aborted,
      onLost: (reason) => options.onLost?.(reason),
    });
  } finally {
    await engine.close();
  }
}

/** A joining device: its engine, and how often its system had killed processes for memory when this one began. */
interface Joiner {
  readonly engine: Engine;
  readonly oomKillCount: number | undefined;
}

/** The hello's facts of this device and its machine. */
function factsOf(
  machine: DeviceFacts,
  { engine, oomKillCount }: Joiner,
  limitMiB: number | undefined,
): NonNullable<Hello['facts']> {
  const { coreCount, cpuModel, cpuQuota, battery, temperatureC } = machine;
  return {
    memoryMiB: Math.min(machine.memoryMiB, limitMiB ?? machine.memoryMiB),
    ...(limitMiB === undefined ? {} : { machineMemoryMiB: machine.memoryMiB }),
    ...{ cores: coreCount, engine: engine.name, machine: hostname(), cpuModel: cpuModel.slice(0, 200) },
    ...(engine.warning === undefined ? {} : { engineWarning: engine.warning.slice(0, 600) }),
    ...(oomKillCount === undefined ? {} : { oomKillCount }),
    ...(cpuQuota === undefined ? {} : { cpuQuotaCores: cpuQuota.cores }),
    ...(battery === undefined ? {} : { batteryPercent: battery.percent, isDischarging: battery.isDischarging }),
    ...(temperatureC === undefined ? {} : { temperatureC }),
  };
}

/** `own`: the address of this device that leads to the coordinator. */
async function serve(options: JoinOptions, own: string, joiner: Joiner): Promise<Served> {
  const { url, signal, clock, stageStore: store } = options;
  const { engine } = joiner;
  const machine = deviceFacts();
  const memoryMiB = Math.min(machine.memoryMiB, options.maxMemoryMiB ?? machine.memoryMiB);
  const memoryBytes = comparableMiB(memoryMiB, engine.name) * bytesInMiB;
  const wantedName = options.name ?? hostname();
  const { joinCode } = options;
  const admission = url.startsWith('wss:')
    ? await enrol({ url, name: wantedName, joinCode, signal, ...(options.store && { store: options.store }) })
    : undefined;
  const hello = {
    protocol: protocolVersion,
    purpose: 'worker',
    name: admission?.name ?? wantedName,
    credential: admission === undefined ? await joinCode() : '',
    facts: factsOf(machine, joiner, options.maxMemoryMiB),
  } as const;
  const { link, welcome } = await connect(url, {
    hello,
    abortSignal: signal,
    ...(admission && { tls: admission.tls }),
  });
  const { listening, joined } = placeOf(options, own, welcome);
  options.onJoined(welcome.name, { ...joined, encrypted: admission !== undefined });
  // The coordinator finds out how to continue without this device; if it does not, the device leaves all the same.
  let cancel = (): void => {};
  const leave = (): void => {
    cancel = clock.after(drainMs, () => void link.close('the worker was stopped by its owner'));
  };
  signal.addEventListener('abort', leave, { once: true });
  const end = await runWorker({
    ...{ name: welcome.name, coordinator: link, clock, engine, memoryBytes, leave: signal, meters: processMeters() },
    createNetwork: (name, token, onLink) =>
      createPeerNetwork({
        ...listening,
        ...{ name, token, onLink, advertised: joined },
        relay: { url, ...(admission && { tls: admission.tls }) },
        ...(admission && { identity: admission.identity }),
      }),
    ...(options.processWork === undefined ? {} : { processWork: options.processWork }),
    ...(options.startProfile === undefined ? {} : { startProfile: options.startProfile }),
    ...(options.weightFiles === undefined ? {} : { weightFiles: options.weightFiles }),
    ...(options.profileCache === undefined ? {} : { profileCache: options.profileCache }),
    ...(store && { stageStore: store, stagesAhead: new StagesAhead({ engine, store, memoryBytes }) }),
  });
  signal.removeEventListener('abort', leave);
  cancel();
  return { end, lost: end.lost === true && !signal.aborted };
}

/** Where a device listens for peers, and what they dial. */
function placeOf(
  { host: wanted, port, advertised }: JoinOptions,
  own: string,
  { facts }: Welcome,
): {
  readonly listening: { readonly host: string; readonly port: number };
  readonly joined: Omit<Joined, 'encrypted'>;
} {
  const seen = facts?.['address'];
  const seenAs = typeof seen === 'string' && isIP(seen) !== 0 && seen !== own && !isLoopback(seen) ? seen : undefined;
  const host = wanted ?? own;
  const reached = isWildcard(host) ? own : host;
  const dialled = advertised ?? (port === undefined ? { host: reached } : { host: seenAs ?? reached });
  return {
    listening: { host, port: port ?? advertised?.port ?? 0 },
    joined: { ...dialled, ...(seenAs === undefined ? {} : { seenAs }) },
  };
}

/** Waits, and unlike the clock's timers keeps the process alive. */
async function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  await setTimeout(milliseconds, undefined, { signal }).catch(() => {}); // aborted: the caller looks
}

function once<T>(ask: () => Promise<T>): () => Promise<T> {
  let answer: Promise<T> | undefined;
  return () => {
    answer ??= ask();
    return answer;
  };
}

/** The address of a coordinator. Throws InputError. */
export function parseUrl(text: string): URL {
  let url: URL | undefined;
  try {
    url = new URL(text);
  } catch {
    // Said below, in the user's terms.
  }
  if (url === undefined || (url.protocol !== 'ws:' && url.protocol !== 'wss:')) {
    throw new InputError(
      `--join ${text} is not an address such as wss://192.168.1.20:7700: copy the one that asteroid train printed.`,
    );
  }
  return url;
}

/** A URL's host without the brackets of IPv6. */
function bare(host: string): string {
  return host.replace(/^\[|\]$/g, '');
}
