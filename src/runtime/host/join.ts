// Joins a coordinator by URL and code and serves its run; reconnects when the link to it was lost.

import { hostname } from 'node:os';
import { setTimeout } from 'node:timers/promises';
import type { Clock } from '../../clock.ts';
import { bytesInMiB } from '../../cluster/memory.ts';
import type { Engine } from '../../engine/engine.ts';
import { type DeviceFacts, deviceFacts } from '../../engine/node/host-node.ts';
import type { ProcessClock } from '../../engine/process-clock.ts';
import { InputError } from '../../errors.ts';
import { isLoopback } from '../../transport/admission.ts';
import { type Hello, protocolVersion } from '../../transport/handshake.ts';
import { connect } from '../../transport/node/websocket.ts';
import type { StageStore } from '../device/compiled-stages.ts';
import type { ProfileCache } from '../device/measure/cached-profile.ts';
import type { WorkerEnd, WorkerOptions } from '../worker/options.ts';
import { runWorker } from '../worker/worker.ts';
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
  /** Allow plain links beyond this machine. */
  readonly insecure: boolean;
  readonly clock: Clock;
  /** Aborted: leaves the run. */
  readonly signal: AbortSignal;
  readonly profileCache?: ProfileCache;
  /** Keeps what stages are compiled to. */
  readonly stageStore?: StageStore;
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
  onJoined(name: string, joined: { readonly host: string; readonly encrypted: boolean }): void;
  /** The link was lost; the device tries again. */
  onLost?(reason: string): void;
}

/** How long a device that is stopped waits to be let go. */
const drainMs = 15_000;

/** Joins and serves until the run ends. Throws InputError for a wrong URL or code, RunError when nobody answers. */
export async function joinRun(options: JoinOptions): Promise<WorkerEnd> {
  const target = parseUrl(options.url);
  if (target.protocol === 'ws:' && !isLocal(target.hostname) && !options.insecure) {
    throw new InputError(
      `${options.url} would be unencrypted: use the wss:// address that asteroid train printed, ` +
        'or add --insecure if you trust the network between.',
    );
  }
  const host = options.host ?? (await addressTowards(target.hostname));
  const engine = await options.createEngine();
  const joinCode = once(options.joinCode);
  // Read when the process begins: this process is none of those that were killed before.
  const { oomKillCount } = deviceFacts();
  try {
    return await serveToTheEnd(() => serve({ ...options, joinCode }, host, { engine, oomKillCount }), {
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
function factsOf(machine: DeviceFacts, { engine, oomKillCount }: Joiner): NonNullable<Hello['facts']> {
  const { memoryMiB, coreCount, cpuModel, cpuQuota, battery, temperatureC } = machine;
  return {
    ...{ memoryMiB, cores: coreCount, engine: engine.name, machine: hostname(), cpuModel: cpuModel.slice(0, 200) },
    ...(oomKillCount === undefined ? {} : { oomKillCount }),
    ...(cpuQuota === undefined ? {} : { cpuQuotaCores: cpuQuota.cores }),
    ...(battery === undefined ? {} : { batteryPercent: battery.percent, isDischarging: battery.isDischarging }),
    ...(temperatureC === undefined ? {} : { temperatureC }),
  };
}

async function serve(options: JoinOptions, host: string, joiner: Joiner): Promise<Served> {
  const { url, signal, clock, stageStore: store } = options;
  const { engine } = joiner;
  const machine = deviceFacts();
  const memoryMiB = Math.min(machine.memoryMiB, options.maxMemoryMiB ?? machine.memoryMiB);
  const memoryBytes = memoryMiB * bytesInMiB;
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
    facts: factsOf({ ...machine, memoryMiB }, joiner),
  } as const;
  const { link, welcome } = await connect(url, {
    hello,
    abortSignal: signal,
    ...(admission && { tls: admission.tls }),
  });
  options.onJoined(welcome.name, { host, encrypted: admission !== undefined });
  // The coordinator finds out how to continue without this device; if it does not, the device leaves all the same.
  let cancel = (): void => {};
  const leave = (): void => {
    cancel = clock.after(drainMs, () => void link.close('the worker was stopped by its owner'));
  };
  signal.addEventListener('abort', leave, { once: true });
  const end = await runWorker({
    ...{ name: welcome.name, coordinator: link, clock, engine, memoryBytes, leave: signal, meters: processMeters() },
    createNetwork: (own, token, onLink) => createPeerNetwork(own, host, token, onLink, admission?.identity),
    ...(options.processWork === undefined ? {} : { processWork: options.processWork }),
    ...(options.startProfile === undefined ? {} : { startProfile: options.startProfile }),
    ...(options.profileCache === undefined ? {} : { profileCache: options.profileCache }),
    ...(store && { stageStore: store, stagesAhead: new StagesAhead({ engine, store, memoryBytes }) }),
  });
  signal.removeEventListener('abort', leave);
  cancel();
  return { end, lost: end.lost === true && !signal.aborted };
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

function parseUrl(text: string): URL {
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

function isLocal(host: string): boolean {
  return host === 'localhost' || isLoopback(host.replace(/^\[|\]$/g, ''));
}
