// Joins a coordinator by URL and code and serves its run.

import { hostname } from 'node:os';
import type { Clock } from '../../clock.ts';
import type { Engine } from '../../engine/engine.ts';
import { deviceFacts } from '../../engine/host-node.ts';
import { InputError } from '../../errors.ts';
import { isLoopback } from '../../transport/admission.ts';
import { protocolVersion } from '../../transport/handshake.ts';
import { connect } from '../../transport/websocket.ts';
import type { ProfileCache } from '../device/profiler.ts';
import { addressTowards, createPeerNetwork } from './network.ts';
import { runWorker, type WorkerEnd } from './worker.ts';

export interface JoinOptions {
  readonly url: string;
  readonly joinCode: string;
  /** Default: the host's name. */
  readonly name?: string;
  /** Where to listen for peers; default: the address that leads to the coordinator. */
  readonly host?: string;
  /** Allow plain links beyond this machine. */
  readonly insecure: boolean;
  readonly clock: Clock;
  /** Aborted: leaves the run. */
  readonly signal: AbortSignal;
  readonly profileCache?: ProfileCache;
  createEngine(): Promise<Engine>;
  onJoined(name: string): void;
}

/** Joins and serves until the run ends. Throws InputError for a wrong URL or code, RunError when nobody answers. */
export async function joinRun(options: JoinOptions): Promise<WorkerEnd> {
  const target = parseUrl(options.url);
  if (target.protocol === 'ws:' && !isLocal(target.hostname) && !options.insecure) {
    throw new InputError(`${options.url} would be unencrypted: add --insecure if you trust the network between.`);
  }
  const host = options.host ?? (await addressTowards(target.hostname));
  const engine = await options.createEngine();
  try {
    const facts = deviceFacts();
    const hello = {
      protocol: protocolVersion,
      purpose: 'worker',
      name: options.name ?? hostname(),
      credential: options.joinCode,
      facts: { memoryMiB: facts.memoryMiB, cores: facts.coreCount, engine: engine.name, machine: hostname() },
    } as const;
    const { link, welcome } = await connect(options.url, { hello, abortSignal: options.signal });
    options.onJoined(welcome.name);
    options.signal.addEventListener('abort', () => void link.close('the worker was stopped by its owner'), { once: true });
    return await runWorker({
      name: welcome.name,
      coordinator: link,
      clock: options.clock,
      engine,
      memoryBytes: facts.memoryMiB * 2 ** 20,
      createNetwork: (name, token, onLink) => createPeerNetwork(name, host, token, onLink),
      ...(options.profileCache === undefined ? {} : { profileCache: options.profileCache }),
    });
  } finally {
    await engine.close();
  }
}

function parseUrl(text: string): URL {
  let url: URL | undefined;
  try {
    url = new URL(text);
  } catch {
    // Said below, in the user's terms.
  }
  if (url === undefined || (url.protocol !== 'ws:' && url.protocol !== 'wss:')) {
    throw new InputError(`--join ${text} is no address such as ws://192.168.1.20:7700: copy the one that asteroid train printed.`);
  }
  return url;
}

function isLocal(host: string): boolean {
  return host === 'localhost' || isLoopback(host.replace(/^\[|\]$/g, ''));
}
