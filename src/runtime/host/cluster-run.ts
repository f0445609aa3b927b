// A run over workers on Node: the coordinator behind a WebSocket server, with the local worker processes that were
// asked for.

import { randomBytes } from 'node:crypto';
import { isIP } from 'node:net';
import type { Clock } from '../../clock.ts';
import { isLoopback } from '../../transport/admission.ts';
import { type LinkServer, listen } from '../../transport/node/websocket.ts';
import { type Coordinator, createCoordinator } from '../coordinator/coordinator.ts';
import type { CoordinatorEnd, CoordinatorOptions } from '../coordinator/options.ts';
import { factsSchema } from '../protocol/device-facts.ts';
import type { ClusterOptions } from '../run/session.ts';
import { type Announcement, announce } from './discovery.ts';
import { watchDrainRequests } from './drain-requests.ts';
import { type LocalWorkers, startLocalWorkers } from './local-workers.ts';
import { coordinatorName, type Door, openDoor } from './security/admission.ts';

/** How long the coordinator may take to tell what it heard from a worker that has ended. */
const lastWordMs = 1000;

/** Runs the coordinator to the run's end. All local workers are gone when it settles. */
export async function runCluster(
  options: Omit<CoordinatorOptions, 'peerToken' | 'clock'>,
  cluster: ClusterOptions,
): Promise<CoordinatorEnd> {
  const coordinator = createCoordinator({
    ...options,
    clock: cluster.clock,
    peerToken: randomBytes(24).toString('hex'),
  });
  const door = await openDoor(cluster);
  const server = await serve(coordinator, door, cluster);
  const { joinCode } = door;
  if (door.tls === undefined && !isOnThisMachine(cluster.host)) {
    const message =
      'INSECURE: everything travels unencrypted, and anyone on the network can read and change it. Leave ' +
      '--insecure away.';
    options.hooks.observe({ kind: 'warning', message });
  }
  const remoteCount = options.machine.workerCount - cluster.localCount;
  if (remoteCount > 0) options.hooks.observe({ kind: 'listening', url: server.url, joinCode, remoteCount });
  const stop = (): void => coordinator.stop();
  cluster.signal.addEventListener('abort', stop, { once: true });
  if (cluster.signal.aborted) stop();
  const announcement =
    remoteCount > 0 && !isOnThisMachine(cluster.host) ? await tell(server, options.hooks) : undefined;
  const unwatch =
    cluster.runFolder === undefined
      ? undefined
      : watchDrainRequests(cluster.runFolder, (device) => coordinator.drain(device));
  let workers: LocalWorkers | undefined;
  try {
    workers = startLocalWorkers({
      count: cluster.localCount,
      url: server.url,
      joinCode,
      threads: cluster.threads,
      engine: cluster.engine,
      insecure: cluster.insecure,
      isAwaited: () => coordinator.isGathering,
    });
    return await Promise.race([coordinator.end, afterLastWord(workers.failed, coordinator, cluster.clock)]);
  } finally {
    unwatch?.();
    cluster.signal.removeEventListener('abort', stop);
    await door.revoke();
    await announcement?.stop();
    await server.close('the run is over');
    await workers?.ended();
  }
}

function isOnThisMachine(host: string): boolean {
  return host === 'localhost' || isLoopback(host);
}

/** Announces the server on its network. Where multicast does not work, the printed address does. */
async function tell(
  { host, port, url }: LinkServer,
  { observe }: CoordinatorOptions['hooks'],
): Promise<Announcement | undefined> {
  if (isIP(host) !== 4) return undefined;
  const onError = (message: string): void =>
    observe({ kind: 'warning', message: `Workers do not find this run by themselves (${message}): give them --join.` });
  return announce({ host, port, url, onError });
}

/**
 * A worker that says why it ends is heard by the coordinator, whose message says more than the exit code of its
 * process.
 */
async function afterLastWord(failed: Promise<never>, coordinator: Coordinator, clock: Clock): Promise<CoordinatorEnd> {
  try {
    return await failed;
  } catch (error) {
    const silence = new Promise<never>((_, reject) => clock.after(lastWordMs, () => reject(error)));
    return Promise.race([coordinator.end, silence]);
  }
}

function serve(coordinator: Coordinator, door: Door, { host, port, clock }: ClusterOptions): Promise<LinkServer> {
  return listen({
    host,
    port,
    name: coordinatorName,
    clock,
    ...(door.tls && { tls: door.tls }),
    async authenticate(hello, address, certificate) {
      const verdict = await door.admit(hello, certificate, address);
      if (verdict.kind === 'refused' || hello.purpose === 'enrol' || factsSchema.safeParse(hello.facts).success)
        return verdict;
      const what = 'did not describe itself as this version expects: use the same version on both';
      const reason = `the worker ${address} ${what}`;
      return { kind: 'refused', reason, retry: false };
    },
    onLink(link, hello) {
      if (hello.purpose === 'enrol') return; // the device has its certificate, and calls again with it
      coordinator.join(link.peer, link, factsSchema.parse(hello.facts));
    },
  });
}
