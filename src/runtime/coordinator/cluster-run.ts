// A run over workers on Node: the coordinator behind a WebSocket server, with the local worker processes that were asked for.

import { randomBytes } from 'node:crypto';
import { z } from 'zod';
import type { Clock } from '../../clock.ts';
import { createJoinCodes, joinCodeBytes } from '../../transport/join-code.ts';
import { type LinkServer, listen } from '../../transport/websocket.ts';
import { type LocalWorkers, startLocalWorkers } from '../worker/local-workers.ts';
import { type Coordinator, type CoordinatorEnd, type CoordinatorOptions, createCoordinator, type DeviceFacts } from './coordinator.ts';

/** Where to listen and whom to wait for. */
export interface ClusterOptions {
  readonly host: string;
  readonly port: number;
  /** Allow plain links beyond this machine. */
  readonly insecure: boolean;
  /** Worker processes to start on this machine. */
  readonly localCount: number;
  /** Compute threads of each of them. */
  readonly threads: number;
  readonly engine: 'onnxruntime' | 'reference';
  readonly clock: Clock;
  readonly signal: AbortSignal;
}

/** How long the coordinator may take to tell what it heard from a worker that has ended. */
const lastWordMs = 1000;

const factsSchema: z.ZodType<DeviceFacts> = z.object({
  memoryMiB: z.number().int().positive().max(1e9),
  cores: z.number().int().positive().max(1e5),
  engine: z.string().max(200),
  machine: z.string().max(200),
});

/** Runs the coordinator to the run's end. All local workers are gone when it settles. */
export async function runCluster(options: Omit<CoordinatorOptions, 'peerToken'>, cluster: ClusterOptions): Promise<CoordinatorEnd> {
  const coordinator = createCoordinator({ ...options, peerToken: randomBytes(24).toString('hex') });
  const codes = createJoinCodes({ clock: cluster.clock });
  const server = await serve(coordinator, codes, cluster);
  const joinCode = codes.issue(randomBytes(joinCodeBytes));
  const remoteCount = options.machine.workerCount - cluster.localCount;
  if (remoteCount > 0) options.hooks.observe({ kind: 'listening', url: server.url, joinCode, remoteCount });
  const stop = (): void => coordinator.stop();
  cluster.signal.addEventListener('abort', stop, { once: true });
  if (cluster.signal.aborted) stop();
  let workers: LocalWorkers | undefined;
  try {
    workers = startLocalWorkers({
      count: cluster.localCount,
      url: server.url,
      joinCode,
      threads: cluster.threads,
      engine: cluster.engine,
      insecure: cluster.insecure,
    });
    return await Promise.race([coordinator.end, afterLastWord(workers.failed, coordinator, cluster.clock)]);
  } finally {
    cluster.signal.removeEventListener('abort', stop);
    await server.close('the run is over');
    await workers?.ended();
  }
}

/** A worker that says why it ends is heard by the coordinator, whose message says more than the exit code of its process. */
async function afterLastWord(failed: Promise<never>, coordinator: Coordinator, clock: Clock): Promise<CoordinatorEnd> {
  try {
    return await failed;
  } catch (error) {
    const silence = new Promise<never>((_, reject) => clock.after(lastWordMs, () => reject(error)));
    return Promise.race([coordinator.end, silence]);
  }
}

function serve(
  coordinator: Coordinator,
  codes: ReturnType<typeof createJoinCodes>,
  { host, port, clock }: ClusterOptions,
): Promise<LinkServer> {
  const names = new Set<string>();
  return listen({
    host,
    port,
    name: 'coordinator',
    clock,
    authenticate(hello, address) {
      if (hello.purpose !== 'worker') return { kind: 'refused', reason: 'only workers join here', retry: false };
      const verdict = codes.check(hello.credential);
      if (verdict === 'expired')
        return { kind: 'refused', reason: 'the join code has expired: start a new run and use its code', retry: false };
      if (verdict === 'wrong')
        return { kind: 'refused', reason: 'the join code is wrong: use the one that asteroid train printed', retry: false };
      const facts = factsSchema.safeParse(hello.facts);
      if (!facts.success)
        return {
          kind: 'refused',
          reason: `the worker ${address} did not describe itself as this version expects: use the same version on both`,
          retry: false,
        };
      return { kind: 'accepted', name: uniqueName(hello.name, names) };
    },
    onLink(link, hello) {
      const facts = factsSchema.parse(hello.facts);
      coordinator.join(link.peer, link, facts);
    },
  });
}

/** The name that a device asked for, with a number where it is taken. */
function uniqueName(wanted: string, names: Set<string>): string {
  let name = wanted;
  for (let number = 2; names.has(name); number++) name = `${wanted}-${number}`;
  names.add(name);
  return name;
}
