// A run over workers on Node: the coordinator behind a WebSocket server, with the local worker processes that were
// asked for.

import { randomBytes } from 'node:crypto';
import type { Clock } from '../../clock.ts';
import { type Coordinator, createCoordinator } from '../coordinator/coordinator.ts';
import type { CoordinatorEnd, CoordinatorOptions } from '../coordinator/options.ts';
import type { LocalWorkers } from '../run/local-workers.ts';
import type { ClusterOptions } from '../run/session.ts';
import { dialledAt, parseAdvertised } from './addresses.ts';
import { announceServer, serveWorkers } from './coordinator-server.ts';
import { watchDrainRequests } from './drain-requests.ts';
import { startLocalWorkers } from './local-workers.ts';
import type { RunGuests, RunHandle } from './run-guests.ts';
import { openDoor, staysHere } from './security/admission.ts';

/** How long the coordinator may take to tell what it heard from a worker that has ended. */
const lastWordMs = 1000;

const overText = 'the run is over';

const insecureText =
  'INSECURE: everything travels unencrypted, and anyone on the network can read and change it. Leave --insecure away.';

/** Runs the coordinator to the run's end. All local workers are gone when it settles. */
export async function runCluster(
  options: Omit<CoordinatorOptions, 'peerToken' | 'clock'>,
  cluster: ClusterOptions,
  runGuests?: RunGuests,
): Promise<CoordinatorEnd> {
  const peerToken = randomBytes(24).toString('hex');
  const coordinator = createCoordinator({ ...options, clock: cluster.clock, peerToken });
  const { observe } = options.hooks;
  const door = await openDoor(cluster);
  const guests = runGuests?.guests({
    isEncrypted: door.tls !== undefined,
    ...(cluster.advertise === undefined ? {} : { advertised: parseAdvertised(cluster.advertise) }),
  });
  const { server, urls } = await serveWorkers({
    coordinator,
    door,
    peerToken,
    observe,
    cluster,
    ...(guests && { guests }),
  });
  const { joinCode } = door;
  if (door.tls === undefined && !staysHere(cluster)) observe({ kind: 'warning', message: insecureText });
  const remoteCount = options.machine.workerCount - cluster.localCount;
  const [url = server.url, ...otherUrls] = new Set(urls.values());
  if (remoteCount > 0)
    observe({ kind: 'listening', url, ...(otherUrls.length > 0 ? { otherUrls } : {}), joinCode, remoteCount });
  const awaited = remoteCount > 0 ? { joinCode } : {};
  runGuests?.begin({ ...handleOf(coordinator, url, options, cluster), ...awaited });
  const stop = (): void => coordinator.stop();
  cluster.signal.addEventListener('abort', stop, { once: true });
  if (cluster.signal.aborted) stop();
  const announcement =
    remoteCount > 0 && !staysHere(cluster) ? await announceServer(server.port, urls, observe) : undefined;
  const unwatch =
    cluster.runFolder === undefined
      ? undefined
      : watchDrainRequests(cluster.runFolder, (device) => coordinator.drain(device));
  let workers: LocalWorkers | undefined;
  try {
    const { localCount: count, threads, engine, device, localWorkers } = cluster;
    workers = localWorkers ?? startLocalWorkers({ count, threads, engine, device });
    workers.join({
      url: server.urlAt(dialledAt(server.host)),
      joinCode,
      insecure: cluster.insecure,
      isAwaited: () => coordinator.isGathering,
    });
    return await Promise.race([coordinator.end, afterLastWord(workers.failed, coordinator, cluster.clock)]);
  } finally {
    unwatch?.();
    cluster.signal.removeEventListener('abort', stop);
    await door.revoke();
    await announcement?.stop();
    if (runGuests === undefined) await server.close(overText);
    else {
      await server.closeLinks(overText);
      runGuests.end(() => server.close(overText));
    }
    await workers?.ended();
  }
}

/** The run as its guests reach it. */
function handleOf(
  coordinator: Coordinator,
  url: string,
  { hooks }: Pick<CoordinatorOptions, 'hooks'>,
  cluster: ClusterOptions,
): RunHandle {
  return {
    ...{ url: url.replace(/^ws/, 'http'), isFar: !staysHere(cluster) },
    drain: (device) => coordinator.drain(device),
    ...(hooks.onResults === undefined && {
      scaleLearningRate: (factor: number) => coordinator.scaleLearningRate(factor),
    }),
  };
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
