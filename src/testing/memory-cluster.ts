// A whole run in one process: the real coordinator and real workers over memory links, with engines and a clock of the
// test's choosing. Also the same run on a single device, to compare with. Every link can be cut, and frames of one's
// own can be sent from either end of it.

import { defined } from '../assert.ts';
import { type Clock, systemClock } from '../clock.ts';
import type { Cluster, Plan, PlanLayout, Profile } from '../cluster/cluster.ts';
import type { Engine } from '../engine/engine.ts';
import { createReferenceEngine } from '../engine/reference.ts';
import { RunError } from '../errors.ts';
import { type Coordinator, createCoordinator } from '../runtime/coordinator/coordinator.ts';
import type { MachineConfig } from '../runtime/coordinator/machine-types.ts';
import type { Batch, CoordinatorEnd, CoordinatorOptions, RunHooks } from '../runtime/coordinator/options.ts';
import type { ProfileCache } from '../runtime/device/measure/cached-profile.ts';
import type { DeviceFacts } from '../runtime/protocol/device-facts.ts';
import type { Phase, RunEvent } from '../runtime/protocol/events.ts';
import type { RunState } from '../runtime/protocol/run-state.ts';
import type { RunSubject } from '../runtime/protocol/run-subject.ts';
import { trainHere } from '../runtime/run/local.ts';
import { localPlan } from '../runtime/run/local-plan.ts';
import { compare } from '../runtime/run/verify.ts';
import type { WorkerEnd } from '../runtime/worker/options.ts';
import type { PeerNetwork } from '../runtime/worker/peers.ts';
import { runWorker } from '../runtime/worker/worker.ts';
import type { Link } from '../transport/link.ts';
import { createMemoryLinks, type MemoryLinkOptions } from '../transport/memory.ts';
import { WireLink } from '../transport/wire-link.ts';

/** A run's plan, data and surroundings. */
export interface MemoryRun {
  readonly subject: RunSubject;
  /** The data of a round: the model's inputs and the labels. */
  batch(round: number): Batch;
  /** Used as it is. Absent: the workers are measured and `choosePlan` decides. */
  readonly plan?: PlanLayout;
  choosePlan?(profile: Profile, cluster: Cluster): Plan;
  /** Absent: plans are not improved, and not made again. */
  readonly planAgain?: CoordinatorOptions['planAgain'];
  /** Default: drift is watched, and re-planning is light. */
  readonly recovery?: CoordinatorOptions['recovery'];
  /** What each device says it has. Default: enough. */
  readonly memoryMiB?: number;
  /** What a device that joins says otherwise than the others. */
  factsOf?(device: string): Partial<DeviceFacts>;
  /** Default: the plan's devices. */
  readonly workerNames?: readonly string[];
  /** Rounds [firstRound, endRound), the learning rate, …; each has a default. */
  readonly machine?: Partial<MachineConfig>;
  /** Default: the reference engine. */
  createEngine?(device: string): Engine | Promise<Engine>;
  readonly clock?: Clock;
  readonly links?: MemoryLinkOptions;
  /** Of single links. Default: `links`. */
  linkBetween?(a: string, b: string): MemoryLinkOptions | undefined;
  readonly profileCache?: ProfileCache;
  /** Of a run that only infers: takes its results. */
  readonly onResults?: RunHooks['onResults'];
  readonly onReady?: CoordinatorOptions['onReady'];
  readonly weights?: CoordinatorOptions['weights'];
  /** Called with each event, after it was noted. */
  observe?(event: RunEvent, cluster: MemoryCluster): void;
  /** Called with each checkpoint, after it was noted. */
  onCheckpoint?(round: number, state: RunState): Promise<void>;
}

/** What a run came to. */
export interface Outcome {
  readonly end: CoordinatorEnd;
  /** The loss of each round. */
  readonly losses: readonly number[];
  readonly correctCounts: readonly number[];
  /** After the last round. */
  readonly state: RunState;
  /** By rounds committed. */
  readonly checkpoints: ReadonlyMap<number, RunState>;
}

/** A worker and both ends of its link to the coordinator. */
export interface MemoryWorker {
  readonly engine: Engine;
  /** The worker's end: what is sent here goes to the coordinator. */
  readonly link: Link;
  /** The coordinator's end. */
  readonly coordinatorLink: Link;
  /** Rejects where the worker throws. */
  readonly end: Promise<WorkerEnd>;
  /** Loses the connection to the coordinator. */
  cut(): void;
}

/** A run in progress. */
export interface MemoryCluster {
  readonly coordinator: Coordinator;
  readonly workers: ReadonlyMap<string, MemoryWorker>;
  readonly events: readonly RunEvent[];
  readonly losses: readonly number[];
  readonly checkpoints: ReadonlyMap<number, RunState>;
  /** Starts a worker and lets it join. */
  addWorker(name: string): Promise<void>;
  /** Joins a device without a worker; returns its end of the link. */
  joinAlone(name: string): Link;
  /** The ends of the link between two workers, the caller's first; undefined before it stands. */
  peerLink(a: string, b: string): readonly [Link, Link] | undefined;
  /** A device vanishes: all of its links end without a word. */
  kill(name: string): void;
  /** A device freezes: its links stand, and nothing comes in or out. */
  silence(name: string): void;
  /** Resolves when the phase has begun. */
  reached(phase: Phase): Promise<void>;
  /** How all workers ended, with the engines closed. */
  workersEnd(): Promise<ReadonlyMap<string, WorkerEnd>>;
  /** The outcome of a run that goes well; rejects as the coordinator's end does. All workers have ended either way. */
  outcome(): Promise<Outcome>;
}

export const peerToken = 'the token of the peers of a test';
const facts: DeviceFacts = { memoryMiB: 4096, cores: 1, engine: 'a test', machine: 'this one' };

/** Ends a link, given by its ends, as a lost connection does: without a word. */
export function cut(...ends: readonly Link[]): void {
  for (const end of ends) {
    if (!(end instanceof WireLink)) throw new TypeError('only links over a wire can be cut');
    end.wireEnded({ clean: false, reason: 'the connection was lost' });
  }
}

/** The settings of a run with a plan, where the test does not say otherwise. */
export function machineConfig(
  run: Pick<MemoryRun, 'plan' | 'machine' | 'subject'>,
  workerCount: number,
): MachineConfig {
  return {
    workerCount,
    firstRound: 0,
    endRound: 3,
    checkpointEvery: 1_000_000,
    replicateEvery: 1,
    batchSize: run.subject.training.batchSize,
    batchSizesToProfile: [1, 2],
    planGiven: run.plan !== undefined,
    learningRate: () => 0.1,
    gradientScale: () => 1,
    ...run.machine,
  };
}

/** Starts the coordinator and all workers. */
export async function startCluster(run: MemoryRun): Promise<MemoryCluster> {
  const names = run.workerNames ?? [...new Set(run.plan?.stages.flatMap((stage) => stage.devices))];
  const cluster = new ClusterInMemory(run, machineConfig(run, names.length));
  for (const name of names) await cluster.addWorker(name);
  return cluster;
}

/** Runs to the end. */
export async function runCluster(run: MemoryRun): Promise<Outcome> {
  const cluster = await startCluster(run);
  return cluster.outcome();
}

/** Trains the run's rounds on one device in this process, with micro-batches of the plan's size. */
export async function runAlone(run: MemoryRun & { readonly microBatchSize: number }): Promise<Outcome> {
  const { subject } = run;
  const record = new Recorder(run);
  const plan = localPlan(
    subject.sequence.layers.length,
    subject.training.batchSize,
    run.microBatchSize,
    subject.training,
  );
  const engine = await (run.createEngine?.('alone') ?? createReferenceEngine());
  try {
    const end = await trainHere(subject, record.hooks, machineConfig(run, 0), plan, {
      engine,
      clock: run.clock ?? systemClock,
      signal: new AbortController().signal,
    });
    return record.outcome(end);
  } finally {
    await engine.close();
  }
}

/** The largest relative difference of losses, and of weights and buffers, as `asteroid verify` measures it. */
export function difference(
  a: Outcome,
  b: Outcome,
): { readonly loss: number; readonly weight: number; readonly worst: string } {
  const plan = localPlan(1, 1, 1);
  const result = ({ end, losses, state }: Outcome) => ({
    rounds: end.round,
    stopped: end.stopped,
    losses,
    trainSeconds: 0,
    state,
    evaluation: undefined,
    modelRound: end.round,
    plan,
  });
  const { lossDifference, weightDifference, worstWeight } = compare(result(a), result(b));
  return { loss: lossDifference, weight: weightDifference, worst: worstWeight };
}

/** Collects what the hooks report. */
class Recorder {
  readonly events: RunEvent[] = [];
  readonly losses: number[] = [];
  readonly correctCounts: number[] = [];
  readonly checkpoints = new Map<number, RunState>();
  readonly hooks: RunHooks;
  onEvent: (event: RunEvent) => void = () => {};
  readonly #waiting: (() => void)[] = [];

  constructor(run: MemoryRun) {
    this.hooks = {
      batch: (round) => run.batch(round),
      ...(run.onResults === undefined ? {} : { onResults: run.onResults }),
      observe: (event) => {
        this.events.push(event);
        for (const check of [...this.#waiting]) check();
        this.onEvent(event);
      },
      onCommitted: (_round, loss, correctCount) => {
        this.losses.push(loss);
        this.correctCounts.push(correctCount);
      },
      onCheckpoint: async (round, state) => {
        this.checkpoints.set(round, state);
        await run.onCheckpoint?.(round, state);
        return true;
      },
    };
  }

  until(condition: () => boolean): Promise<void> {
    return new Promise((resolve) => {
      const check = (): void => {
        if (condition()) resolve();
      };
      this.#waiting.push(check);
      check();
    });
  }

  outcome(end: CoordinatorEnd): Outcome {
    const state = defined(this.checkpoints.get(end.round), 'the last checkpoint');
    return { end, losses: this.losses, correctCounts: this.correctCounts, state, checkpoints: this.checkpoints };
  }
}

class ClusterInMemory implements MemoryCluster {
  readonly coordinator: Coordinator;
  readonly workers = new Map<string, MemoryWorker>();
  readonly #run: MemoryRun;
  readonly #record: Recorder;
  /** By address: who takes in a link. */
  readonly #listeners = new Map<string, (link: Link) => void>();
  readonly #peerLinks = new Map<string, readonly [Link, Link]>();
  readonly #silent = new Set<string>();

  constructor(run: MemoryRun, machine: MachineConfig) {
    this.#run = run;
    this.#record = new Recorder(run);
    this.#record.onEvent = (event) => run.observe?.(event, this);
    const predicted = { roundMs: 0, samplesPerS: 0, peakMemoryMiB: {} };
    this.coordinator = createCoordinator({
      machine,
      subject: run.subject,
      hooks: this.#record.hooks,
      clock: run.clock ?? systemClock,
      peerToken,
      ...(run.onReady === undefined ? {} : { onReady: run.onReady }),
      ...(run.weights === undefined ? {} : { weights: run.weights }),
      plan: async (profile, cluster) => defined(run.choosePlan, 'a plan')(profile, cluster),
      ...(run.planAgain === undefined ? {} : { planAgain: run.planAgain }),
      ...(run.recovery === undefined ? {} : { recovery: run.recovery }),
      ...(run.plan === undefined ? {} : { givenPlan: { ...run.plan, predicted } }),
    });
  }

  get events(): readonly RunEvent[] {
    return this.#record.events;
  }

  get losses(): readonly number[] {
    return this.#record.losses;
  }

  get checkpoints(): ReadonlyMap<number, RunState> {
    return this.#record.checkpoints;
  }

  async addWorker(name: string): Promise<void> {
    const engine = await (this.#run.createEngine?.(name) ?? createReferenceEngine());
    const [coordinatorLink, link] = this.#connect('coordinator', name);
    const end = runWorker({
      name,
      coordinator: link,
      clock: this.#run.clock ?? systemClock,
      engine,
      createNetwork: async (_name, token, onLink) => this.#network(name, token, onLink),
      ...(this.#run.profileCache === undefined ? {} : { profileCache: this.#run.profileCache }),
    });
    end.catch(() => {}); // seen by workersEnd
    this.workers.set(name, { engine, link, coordinatorLink, end, cut: () => cut(link, coordinatorLink) });
    const { memoryMiB = facts.memoryMiB } = this.#run;
    this.coordinator.join(name, coordinatorLink, { ...facts, memoryMiB, ...this.#run.factsOf?.(name) });
  }

  joinAlone(name: string): Link {
    const [coordinatorLink, link] = this.#connect('coordinator', name);
    this.coordinator.join(name, coordinatorLink, facts);
    return link;
  }

  peerLink(a: string, b: string): readonly [Link, Link] | undefined {
    const reverse = this.#peerLinks.get(`${b}→${a}`);
    return this.#peerLinks.get(`${a}→${b}`) ?? (reverse === undefined ? undefined : [reverse[1], reverse[0]]);
  }

  kill(name: string): void {
    const worker = defined(this.workers.get(name), name);
    worker.cut();
    for (const [key, ends] of this.#peerLinks) if (key.split('→').includes(name)) cut(...ends);
  }

  #connect(a: string, b: string): [Link, Link] {
    const links = this.#run.linkBetween?.(a, b) ?? this.#run.links ?? {};
    const isSilent = (): boolean => this.#silent.has(a) || this.#silent.has(b);
    const tamper: MemoryLinkOptions['tamper'] = (message, from) =>
      isSilent() ? [] : (links.tamper?.(message, from) ?? [message]);
    // A prototype: bandwidth and latency may be changed during the run.
    return createMemoryLinks(a, b, Object.assign(Object.create(links) as MemoryLinkOptions, { tamper }));
  }

  silence(name: string): void {
    this.#silent.add(name);
  }

  reached(phase: Phase): Promise<void> {
    return this.#record.until(() => this.events.some((event) => event.kind === 'phase' && event.phase === phase));
  }

  async workersEnd(): Promise<ReadonlyMap<string, WorkerEnd>> {
    const ends = new Map<string, WorkerEnd>();
    const results = await Promise.allSettled(
      [...this.workers].map(async ([name, worker]) => ends.set(name, await worker.end)),
    );
    await Promise.all([...this.workers.values()].map(({ engine }) => engine.close()));
    const failed = results.find((result) => result.status === 'rejected');
    if (failed !== undefined) throw failed.reason;
    return ends;
  }

  async outcome(): Promise<Outcome> {
    try {
      return this.#record.outcome(await this.coordinator.end);
    } finally {
      await this.workersEnd();
    }
  }

  #network(name: string, token: string, onLink: (link: Link) => void): PeerNetwork {
    const url = `memory://${name}`;
    this.#listeners.set(url, onLink);
    return {
      url,
      connect: async (peer) => {
        const accept = this.#listeners.get(peer.url);
        if (accept === undefined || token !== peerToken) throw new RunError(`nothing listens at ${peer.url}`);
        const [own, other] = this.#connect(name, peer.name);
        this.#peerLinks.set(`${name}→${peer.name}`, [own, other]);
        accept(other);
        return own;
      },
      close: async () => {
        this.#listeners.delete(url);
      },
    };
  }
}
