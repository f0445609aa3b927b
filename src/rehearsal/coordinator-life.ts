// The coordinator's life, or its lives: each begins from the last checkpoint that its disk has, and its every word is
// compared with the oracle.

import type { Cluster, Plan, PlanLayout } from '../cluster/cluster.ts';
import { InputError, RunError } from '../errors.ts';
import { type Coordinator, createCoordinator } from '../runtime/coordinator/coordinator.ts';
import type { MachineConfig } from '../runtime/coordinator/machine-types.ts';
import type { CoordinatorEnd, CoordinatorOptions, RunHooks } from '../runtime/coordinator/options.ts';
import type { Phase, RunEvent } from '../runtime/protocol/events.ts';
import { type RunState, withFrozen } from '../runtime/protocol/run-state.ts';
import { type Checkpoint, loadLatestCheckpoint, saveCheckpoint } from '../storage/checkpoints.ts';
import type { Disk } from '../storage/disk.ts';
import {
  batchOf,
  exactSequence,
  gradientScale,
  initialRunState,
  label,
  learningRate,
  trainingSpec,
} from './exact-model.ts';
import { InferenceClient, inferenceSubject } from './inference-client.ts';
import { planWithin, predicted } from './plans.ts';
import { coordinatorName, randomPlan } from './scenario.ts';
import type { VirtualProcess } from './virtual-process.ts';
import { checkpointFolder, crashed, exitProcess, startProcess, type World } from './world.ts';

/** Where devices call it. */
export const coordinatorUrl = 'virtual://coordinator';

export const batchSizesToProfile: readonly number[] = [1, 2, 4];

const peerToken = 'a secret of the rehearsal';
const facts = { cores: 1, engine: 'exact', machine: '' };
/** A plan that is long in coming. */
const longestPlanningMs = 2_000;
/** How long somebody waits for devices that do not come. */
const patienceMs = 90_000;

/** A run of which the last checkpoint was written before the coordinator was killed. */
class AlreadyDone extends Error {}

/** The coordinator. */
export class CoordinatorLife {
  readonly #world: World;
  /** Called when devices can call for the first time. */
  readonly #onFirstListening: () => void;
  #process: VirtualProcess;
  #coordinator: Coordinator | undefined;
  #lifeCount = 0;
  #phase: Phase = 'gathering';
  /** When it last said or did something. */
  #progressAtMs = 0;
  /** Devices that have joined and not left. */
  readonly #present = new Set<string>();
  /** Those of them that came during the run and have had no work yet. */
  readonly #newcomers = new Set<string>();
  /** By device that was killed for want of memory: what plans may count on. */
  readonly #budgetsMiB = new Map<string, number>();
  /** Ends the planners that are at work, or have been. */
  readonly #planning = new Set<() => void>();
  /** Rounds that this life has reported as committed, including those of its checkpoint. */
  #round = 0;
  /** The layout that was deployed last. */
  #deployed: PlanLayout | undefined;
  /** Whether the next layout begins with what a checkpoint has. */
  #isFromSaved = false;
  /** The last round whose checkpoint was said to be safe. */
  #safeRound = 0;
  /** Who asks, where the run only infers. */
  #client: InferenceClient | undefined;

  constructor(world: World, onFirstListening: () => void) {
    this.#world = world;
    this.#onFirstListening = onFirstListening;
    this.#process = startProcess(world, coordinatorName);
  }

  get process(): VirtualProcess {
    return this.#process;
  }

  /** `asteroid drain` for a device. */
  drain(device: string): void {
    this.#process.run(() => this.#coordinator?.drain(device));
  }

  /** A life begins: from the last checkpoint, if there is one. */
  start(): void {
    const { world } = { world: this.#world };
    const process = startProcess(world, coordinatorName);
    this.#process = process;
    this.#coordinator = undefined;
    this.#lifeCount++;
    this.#phase = 'gathering';
    this.#present.clear();
    this.#newcomers.clear();
    this.#budgetsMiB.clear();
    this.#progress('the coordinator starts');
    const opened = world.disk.openFor(process);
    const disk = world.bug?.disk?.(opened) ?? opened;
    loadLatestCheckpoint(checkpointFolder, { disk }).then(
      ({ checkpoint }) => this.#coordinate(process, disk, checkpoint),
      (error: unknown) => this.#ended(process, error),
    );
  }

  /**
   * Milliseconds for which it has neither done nor said anything; 0 where nobody expects it to, or it says that it
   * waits for devices or measures.
   */
  silentMs(): number {
    const isAsked = this.#client?.isContent !== true;
    const isExpected =
      this.#process.state === 'running' && !this.#isWaiting() && this.#phase !== 'measuring' && isAsked;
    if (!isExpected) this.#progressAtMs = this.#world.time.nowMs;
    return this.#world.time.nowMs - this.#progressAtMs;
  }

  #coordinate(process: VirtualProcess, disk: Disk, checkpoint: Checkpoint | undefined): void {
    const { scenario, witness, network, devices } = this.#world;
    const { endRound } = scenario;
    const firstRound = checkpoint?.round ?? 0;
    if (firstRound < this.#safeRound)
      witness.violate(`the checkpoint of round ${this.#safeRound} was safe, and is gone`);
    const state = checkpoint && {
      parameter: checkpoint.parameters,
      buffer: checkpoint.buffers,
      optimizer: checkpoint.optimizerState,
    };
    this.#isFromSaved = state !== undefined;
    if (state !== undefined) this.#compare('the checkpoint that was read', state, firstRound, true);
    this.#round = firstRound;
    if (firstRound >= endRound)
      return this.#ended(process, new AlreadyDone(`the run has done its ${firstRound} rounds already`));
    const coordinator = createCoordinator(this.#options(process, disk, firstRound, state));
    const stopListening = network.listen(coordinatorUrl, process, (link) =>
      coordinator.join(link.peer, link, {
        ...{ ...facts, memoryMiB: scenario.memoryMiB },
        oomKillCount: devices.get(link.peer)?.oomKillCount ?? 0,
      }),
    );
    this.#coordinator = coordinator;
    this.#stopWhenAlone(process, coordinator);
    // As the server of a real one does.
    const released = async (end: CoordinatorEnd | Error): Promise<void> => {
      this.#client?.ended(end);
      stopListening();
      for (const cancel of this.#planning) cancel();
      this.#planning.clear();
      await network.closeAll(process, 'the run is over');
    };
    coordinator.end.then(
      (end) => released(end).then(() => this.#ended(process, end)),
      (error: Error) => released(error).then(() => this.#ended(process, error)),
    );
    if (this.#lifeCount === 1) this.#onFirstListening();
  }

  #options(process: VirtualProcess, disk: Disk, firstRound: number, state: RunState | undefined): CoordinatorOptions {
    const { scenario, bug } = this.#world;
    const { seed, layerCount, plan } = scenario;
    const training = trainingSpec(scenario);
    const saved = state && training.frozen.length > 0 ? withFrozen(state, initialRunState(seed, layerCount)) : state;
    this.#client = scenario.isInference
      ? new InferenceClient(this.#world, process, (round) => this.#progress('answered', round))
      : undefined;
    return {
      machine: { ...this.#machine(firstRound), ...this.#client?.machine },
      subject: {
        modelName: 'exact',
        sequence: exactSequence(layerCount),
        ...(this.#client === undefined
          ? { label, training, state: saved ?? initialRunState(seed, layerCount) }
          : { ...inferenceSubject, training: { ...training, isInference: true } }),
      },
      hooks: { ...this.#hooks(process, disk), ...this.#client?.hooks },
      ...this.#client?.options,
      clock: process.clock,
      peerToken,
      plan: (_profile, cluster) => this.#plan(process, cluster),
      planAgain: (_profile, cluster) => this.#plan(process, cluster),
      ...(scenario.isMeasured
        ? {}
        : { givenPlan: { ...plan, predicted: { ...predicted(plan, 1).predicted, peakMemoryMiB: {} } } }),
      ...(scenario.recovery === undefined ? {} : { recovery: scenario.recovery }),
      ...(bug?.step === undefined ? {} : { step: bug.step }),
    };
  }

  /** The first life waits for all devices, a later one for as many as may be left. */
  #machine(firstRound: number): MachineConfig {
    const { scenario, devices, random } = this.#world;
    const { endRound, checkpointEvery, replicateEvery, waitForDevices, plan, isMeasured } = scenario;
    const aliveCount = [...devices.values()].filter(({ process }) => process.state !== 'dead').length;
    return {
      workerCount: this.#lifeCount === 1 ? scenario.devices.length : 1 + random.integer(Math.max(1, aliveCount)),
      firstRound,
      endRound,
      checkpointEvery,
      replicateEvery,
      replicatesAtMultiples: scenario.recovery !== undefined,
      waitForDevices,
      batchSize: plan.batchSize,
      batchAt: (round) => ({ sampleCount: this.#world.samplesIn(round), factor: 1 }),
      batchSizesToProfile,
      planGiven: !isMeasured,
      learningRate,
      gradientScale,
    };
  }

  /** What a planner might find, at once or after a while: any plan that fits, as fast as chance will have it. */
  async #plan(process: VirtualProcess, cluster: Cluster): Promise<Plan> {
    const { scenario, random } = this.#world;
    if (random.uniform() < 0.5)
      await new Promise<void>((resolve) =>
        this.#planning.add(process.after(longestPlanningMs * random.uniform(), resolve)),
      );
    return planWithin(cluster, scenario.memoryMiB, (devices) =>
      predicted(randomPlan(devices, scenario.layerCount, random, scenario.plan), 1 + 1000 * random.uniform()),
    );
  }

  /** Who waits for devices that do not come gives up at last. */
  #stopWhenAlone(process: VirtualProcess, coordinator: Coordinator): void {
    let waitedMs = 0;
    const look = (): void => {
      waitedMs = this.#isWaiting() ? waitedMs + 1000 : 0;
      if (waitedMs >= patienceMs) coordinator.stop();
      else if (this.#world.outcome === undefined) process.takes(1000, look);
    };
    look();
  }

  #isWaiting(): boolean {
    return this.#phase === 'gathering' || this.#phase === 'waiting';
  }

  #hooks(process: VirtualProcess, disk: Disk): RunHooks {
    const { seed } = this.#world.scenario;
    return {
      batch: (round) => batchOf(seed, round, this.#world.samplesIn(round)),
      observe: (event) => this.#observed(event),
      onCommitted: (round, loss, correctCount, rate) => this.#committed(round, loss, correctCount, rate),
      onCheckpoint: (round, state) => this.#save(process, disk, round, state),
    };
  }

  async #save(process: VirtualProcess, disk: Disk, round: number, state: RunState): Promise<boolean> {
    this.#compare('the checkpoint to be written', state, round);
    this.#world.oracle.save(round);
    const checkpoint = {
      round,
      parameters: state.parameter,
      buffers: state.buffer,
      optimizerState: state.optimizer,
      state: {},
    };
    try {
      await saveCheckpoint(checkpointFolder, checkpoint, { disk });
    } catch (error) {
      if (!(error instanceof RunError)) throw error;
      this.#observed({ kind: 'warning', message: error.message });
      return false;
    }
    if (process.state === 'running') this.#safeRound = Math.max(this.#safeRound, round);
    this.#progress('checkpoint', round);
    return true;
  }

  #ended(process: VirtualProcess, result: unknown): void {
    const { world } = { world: this.#world };
    if (process.state === 'dead') return;
    if (result instanceof Error) {
      world.outcome = result.message;
      if (result instanceof InputError) {
        const isLowered = [...this.#present].every((device) => this.#budgetsMiB.has(device));
        if (!isLowered) world.witness.violate(`no plan fits devices that have all their memory: ${result.message}`);
      } else if (result instanceof RunError) {
        if (!this.#mayFail()) world.witness.violate(`the run did not survive: ${result.message}`);
      } else if (!(result instanceof AlreadyDone)) {
        crashed(world, 'the coordinator crashed', result);
      }
    } else {
      this.#finished(result as CoordinatorEnd);
    }
    world.witness.note('the coordinator ended', world.outcome ?? '');
    exitProcess(world, process);
  }

  #finished({ round, stopped }: CoordinatorEnd): void {
    const { world } = { world: this.#world };
    const { endRound } = world.scenario;
    if (stopped && this.#isWaiting()) {
      world.outcome = `no devices came: given up after ${round} rounds`;
      if (this.#phase === 'waiting' && this.#present.size > 0)
        world.witness.violate('devices were there, and the run waited for them');
      return;
    }
    world.outcome = `the run is done after ${round} rounds`;
    if (round !== endRound || stopped || this.#round !== endRound)
      world.witness.violate(`the run ended after ${round} rounds of ${endRound}, with ${this.#round} committed`);
  }

  /** Whether no device is left and the run does not wait for others. */
  #mayFail(): boolean {
    const { waitForDevices } = this.#world.scenario;
    const isAlone = [...this.#present].every((device) => this.#newcomers.has(device));
    return isAlone && (!waitForDevices || this.#reachableCount() === 0);
  }

  /** Devices that live and could talk to the coordinator. */
  #reachableCount(): number {
    const { devices, network } = this.#world;
    return [...devices.values()].filter(
      ({ name, process }) =>
        process.state === 'running' &&
        network.path(name, coordinatorName).cutSinceMs === undefined &&
        network.path(coordinatorName, name).cutSinceMs === undefined,
    ).length;
  }

  #observed(event: RunEvent): void {
    if (event.kind === 'trace' || event.kind === 'statistics') return;
    if (event.kind === 'phase') this.#phase = event.phase;
    if (event.kind === 'joined') {
      this.#present.add(event.device);
      if (!this.#isWaiting()) this.#newcomers.add(event.device);
    }
    if (event.kind === 'left') {
      if (!this.#present.has(event.device))
        this.#world.witness.violate(`${event.device} is said to leave, and was not there`);
      for (const devices of [this.#present, this.#newcomers]) devices.delete(event.device);
    }
    this.#observeStream(event);
    if (event.kind === 'memory-lowered') this.#budgetsMiB.set(event.device, event.toMiB);
    if (event.kind === 'deployment') {
      for (const device of event.plan.stages.flatMap(({ devices }) => devices)) {
        this.#newcomers.delete(device);
        this.#checkBudget(device, event.plan);
      }
    }
    const details = ['device', 'phase', 'round', 'cause', 'reason', 'message'].flatMap((key) =>
      key in event ? [(event as unknown as Record<string, string | number>)[key] as string | number] : [],
    );
    this.#progress(event.kind, ...details);
  }

  /** Where rounds overlap, the oracle begins anew where the run says that a stream does. */
  #observeStream(event: RunEvent): void {
    if (event.kind === 'recovering') this.#isFromSaved = event.source === 'checkpoint';
    if (event.kind === 'deployment') this.#deployed = event.plan;
    if (event.kind !== 'stream' || this.#client !== undefined) return;
    const stages = (this.#deployed?.stages ?? []).map(({ layers }, stage, { length }) => ({
      ...{ layers, staleness: event.staleness[stage] ?? 0, versionCount: length - stage },
    }));
    this.#world.oracle.restart(event.round, stages, this.#isFromSaved);
    this.#isFromSaved = false;
  }

  /**
   * Who was killed for want of memory is to hold no more than what is left to count on. Of a given plan nobody knows
   * what devices hold; and where they say that they have nothing, nothing fits.
   */
  #checkBudget(device: string, { predicted: { peakMemoryMiB } }: Plan): void {
    const budgetMiB = this.#budgetsMiB.get(device);
    const { isMeasured, memoryMiB } = this.#world.scenario;
    if (budgetMiB === undefined || !isMeasured || memoryMiB === 0) return;
    const heldMiB = peakMemoryMiB[device] ?? Number.POSITIVE_INFINITY;
    if (heldMiB > budgetMiB)
      this.#world.witness.violate(`${device} is to hold ${heldMiB} MiB, with ${budgetMiB} to count on`);
  }

  #committed(round: number, loss: number, correctCount: number, rate: number): void {
    const { scenario, witness, oracle } = this.#world;
    const { batchSize } = scenario.plan;
    this.#progress('committed', round);
    if (round !== this.#round) witness.violate(`round ${round} committed after ${this.#round} rounds`);
    this.#round = round + 1;
    if (round >= scenario.endRound) return witness.violate(`round ${round} of ${scenario.endRound} committed`);
    if (scenario.isInference) return;
    const expected = oracle.lossSum(round) / batchSize;
    if (loss !== expected) witness.violate(`the loss of round ${round} is ${loss}, not ${expected}`);
    if (correctCount !== this.#world.samplesIn(round))
      witness.violate(`round ${round} committed with ${correctCount} samples of ${this.#world.samplesIn(round)}`);
    if (rate !== learningRate(round)) witness.violate(`round ${round} committed with the rate ${rate}`);
  }

  #compare(what: string, state: RunState, round: number, isSaved = false): void {
    const difference = this.#world.oracle.difference(state, round, isSaved);
    if (difference !== undefined) this.#world.witness.violate(`${what} after round ${round} is wrong: ${difference}`);
  }

  #progress(...words: readonly (string | number)[]): void {
    this.#progressAtMs = this.#world.time.nowMs;
    this.#world.witness.note(...words);
  }
}
