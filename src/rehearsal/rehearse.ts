// One rehearsal: the production's coordinator and workers on virtual time, network and disk, while the faults of a scenario happen to them, watched for what
// must hold. Invariants (faults.md): P1 each round commits once, in order, from each sample once, and every state told is the oracle's; P4 what waits is
// bounded, and nothing is left at the end; P6 within 30 s there is progress or a stated reason.

import { defined, unreachable } from '../assert.ts';
import { InputError, RunError } from '../errors.ts';
import { createRandom } from '../random.ts';
import {
  type Coordinator,
  type CoordinatorEnd,
  type CoordinatorOptions,
  createCoordinator,
  type RunHooks,
} from '../runtime/coordinator/coordinator.ts';
import type { MachineConfig, Phase } from '../runtime/coordinator/machine-types.ts';
import type { StagePort } from '../runtime/device/stage.ts';
import type { RunEvent } from '../runtime/events.ts';
import type { PeerNetwork } from '../runtime/worker/peers.ts';
import type { ProcessMeters } from '../runtime/worker/process-meters.ts';
import { type Served, serveToTheEnd } from '../runtime/worker/serve.ts';
import { runWorker } from '../runtime/worker/worker.ts';
import { type Checkpoint, loadLatestCheckpoint, saveCheckpoint } from '../storage/checkpoints.ts';
import type { Disk } from '../storage/disk.ts';
import type { Frame } from '../transport/link.ts';
import { createExactEngine } from './exact-engine.ts';
import { batchOf, createExactModel, gradientScale, initialRunState, learningRate, Oracle, trainingSpec } from './exact-model.ts';
import { ExactStage } from './exact-stage.ts';
import { coordinatorName, type Fault, randomPlan, type Scenario } from './scenario.ts';
import { VirtualDisk } from './virtual-disk.ts';
import { VirtualNetwork } from './virtual-network.ts';
import { VirtualProcess } from './virtual-process.ts';
import { atRest, VirtualTime } from './virtual-time.ts';
import { Witness } from './witness.ts';

/** Mistakes that are built in on purpose, to see that they are caught: each wraps what the production brings. */
export interface Bug {
  readonly name: string;
  readonly step?: NonNullable<CoordinatorOptions['step']>;
  stage?(stage: StagePort, device: string): StagePort;
  disk?(disk: Disk): Disk;
  /** What arrives in the place of a frame. */
  frame?(frame: Frame, from: string, to: string): readonly Frame[];
}

export interface RehearsalOptions {
  readonly bug?: Bug;
  /** Keeps a line for everything that happens. Default false. */
  readonly isTold?: boolean;
}

/** What came of it. */
export interface RehearsalReport {
  readonly seed: number;
  /** Of everything that happened, in order. */
  readonly traceHash: string;
  readonly eventCount: number;
  readonly virtualSeconds: number;
  /** One sentence. */
  readonly outcome: string;
  readonly violations: readonly string[];
  readonly lines: readonly string[] | undefined;
}

const coordinatorUrl = 'virtual://coordinator';
const checkpointFolder = '/run/checkpoints';
const peerToken = 'a secret of the rehearsal';
/** Progress or a stated reason within (P6). */
const hangMs = 30_000;
/** A run that takes longer does not end. */
const maxRunMs = 900_000;
/** How long somebody waits for devices that do not come. */
const patienceMs = 90_000;
const facts = { memoryMiB: 1024, cores: 1, engine: 'exact', machine: '' };

const noMeters: ProcessMeters = {
  start: () => {},
  stop: () => {},
  eventLoopDelayP99Ms: () => 0,
  eventLoopDelayMaxMs: () => 0,
  residentBytes: () => 0,
};

/** Runs a scenario to its end. */
export function rehearse(scenario: Scenario, options: RehearsalOptions = {}): Promise<RehearsalReport> {
  return new World(scenario, options).run();
}

interface Device {
  readonly name: string;
  process: VirtualProcess;
  slowness: number;
  /** The epoch of the last plan that reached it. */
  epoch: number;
}

class World {
  readonly #scenario: Scenario;
  readonly #bug: Bug | undefined;
  readonly #time = new VirtualTime();
  readonly #witness: Witness;
  readonly #network: VirtualNetwork;
  readonly #disk: VirtualDisk;
  readonly #oracle: Oracle;
  readonly #random;
  readonly #devices = new Map<string, Device>();
  #coordinator: VirtualProcess;
  #coordinatorLife = 0;
  /** Rounds committed in this life of the coordinator. */
  #round = 0;
  /** The last round whose checkpoint was said to be safe. */
  #safeRound = 0;
  #phase: Phase = 'gathering';
  #progressAtMs = 0;
  #frameCount = 0;
  #pendingFaults: Fault[];
  #outcome: string | undefined;

  constructor(scenario: Scenario, { bug, isTold = false }: RehearsalOptions) {
    this.#scenario = scenario;
    this.#bug = bug;
    this.#witness = new Witness(this.#time, { isTold });
    this.#random = createRandom(scenario.seed, 2);
    const { windowBytes, ...conditions } = scenario.network;
    this.#network = new VirtualNetwork(this.#time, createRandom(scenario.seed, 3), {
      conditions,
      windowBytes,
      onFrame: (from, to, frame) => this.#framed(from, to, frame),
    });
    this.#disk = new VirtualDisk(createRandom(scenario.seed, 4), ['/run']);
    this.#oracle = new Oracle({ ...scenario, batchSize: scenario.plan.batchSize });
    this.#coordinator = this.#process(coordinatorName);
    this.#pendingFaults = [...scenario.faults].sort((a, b) => a.afterFrames - b.afterFrames);
  }

  async run(): Promise<RehearsalReport> {
    const unhandled = (error: unknown): void => this.#crashed('a rejection that nobody handles would end the process', error);
    process.on('unhandledRejection', unhandled);
    try {
      await this.#live();
    } finally {
      process.off('unhandledRejection', unhandled);
    }
    this.#checkEnd();
    return this.#report();
  }

  async #live(): Promise<void> {
    this.#startCoordinator();
    let endMs = maxRunMs;
    for (;;) {
      await atRest();
      this.#check();
      if (this.#outcome !== undefined) endMs = Math.min(endMs, this.#time.nowMs + this.#afterlifeMs());
      if (this.#time.nowMs > endMs) return;
      try {
        if (!this.#time.runNext()) return;
      } catch (error) {
        this.#crashed('a throw that nobody catches would end the process', error);
      }
    }
  }

  #crashed(what: string, error: unknown): void {
    this.#witness.violate(`${what}: ${error instanceof Error ? error.stack : String(error)}`);
  }

  #report(): RehearsalReport {
    return {
      seed: this.#scenario.seed,
      traceHash: this.#witness.hash,
      eventCount: this.#witness.eventCount,
      virtualSeconds: this.#time.nowMs / 1000,
      outcome: this.#outcome ?? 'the run has not ended',
      violations: this.#witness.violations,
      lines: this.#witness.lines,
    };
  }

  // Processes

  #process(name: string): VirtualProcess {
    return new VirtualProcess(this.#time, { name, host: name, clockOriginMs: defined(this.#scenario.clockOriginsMs[name], name) });
  }

  /** The coordinator's process begins: from the last checkpoint, if there is one. */
  #startCoordinator(): void {
    const process = this.#process(coordinatorName);
    this.#coordinator = process;
    this.#coordinatorLife++;
    this.#phase = 'gathering';
    this.#progress('the coordinator starts');
    this.#network.lit(coordinatorName);
    const opened = this.#disk.openFor(process);
    const disk = this.#bug?.disk?.(opened) ?? opened;
    loadLatestCheckpoint(checkpointFolder, { disk }).then(
      ({ checkpoint }) => this.#coordinate(process, disk, checkpoint),
      (error: unknown) => this.#coordinatorEnded(process, error),
    );
  }

  #coordinate(process: VirtualProcess, disk: Disk, checkpoint: Checkpoint | undefined): void {
    const { scenario, firstRound } = { scenario: this.#scenario, firstRound: checkpoint?.round ?? 0 };
    if (firstRound < this.#safeRound) this.#witness.violate(`the checkpoint of round ${this.#safeRound} was safe, and is gone`);
    const { seed, layerCount, isClipped, plan } = scenario;
    const model = createExactModel(seed, layerCount);
    const state = checkpoint && { parameter: checkpoint.parameters, buffer: checkpoint.buffers, optimizer: checkpoint.optimizerState };
    if (state !== undefined) this.#compare('the checkpoint that was read', state, firstRound);
    this.#round = firstRound;
    const alive = [...this.#devices.values()].filter((device) => device.process.state !== 'dead').map(({ name }) => name);
    const devices = this.#coordinatorLife === 1 ? scenario.devices : alive;
    const refusal = this.#refusal(devices, firstRound);
    if (refusal !== undefined) return this.#coordinatorEnded(process, refusal);
    const layout = this.#coordinatorLife === 1 ? plan : { ...this.#anotherPlan(devices) };
    const coordinator = createCoordinator({
      machine: this.#machine(devices.length, firstRound),
      subject: {
        modelName: 'exact',
        sequence: model.sequence,
        label: model.label,
        training: trainingSpec(seed, plan.batchSize, isClipped),
        state: state ?? initialRunState(seed, layerCount),
      },
      hooks: this.#hooks(process, disk),
      clock: process.clock,
      peerToken,
      plan: () => {
        throw new RunError('the rehearsal gives its plans');
      },
      givenPlan: { ...layout, predicted: { roundMs: 0, samplesPerS: 0, peakMemoryMiB: {} } },
      ...(this.#bug?.step === undefined ? {} : { step: this.#bug.step }),
    });
    const stop = this.#network.listen(coordinatorUrl, process, (link) => coordinator.join(link.peer, link, facts));
    if (this.#coordinatorLife === 1) for (const name of devices) this.#startDevice(name);
    this.#stopWhenAlone(process, coordinator);
    // As the server of a real one does.
    const released = async (): Promise<void> => {
      stop();
      await this.#network.closeAll(process, 'the run is over');
    };
    coordinator.end.then(
      async (end) => released().then(() => this.#coordinatorEnded(process, end)),
      async (error: unknown) => released().then(() => this.#coordinatorEnded(process, error)),
    );
  }

  /** Why the program would not begin. */
  #refusal(devices: readonly string[], firstRound: number): Error | undefined {
    if (firstRound >= this.#scenario.endRound) return new InputError(`The run has done its ${firstRound} rounds already.`);
    return devices.length === 0 ? new RunError('There are no devices left.') : undefined;
  }

  /** Who waits for devices that do not come gives up at last. */
  #stopWhenAlone(process: VirtualProcess, coordinator: Coordinator): void {
    const roundBefore = this.#round;
    process.takes(patienceMs, () => {
      if (this.#phase === 'gathering' && this.#round === roundBefore) coordinator.stop();
    });
  }

  /** A plan for those who are left, of the same batch. */
  #anotherPlan(devices: readonly string[]): Scenario['plan'] {
    const { plan, layerCount } = this.#scenario;
    const { microBatchSize, microBatchCount, batchSize, schedule } = plan;
    const found = randomPlan(devices, layerCount, this.#random, { microBatchSize, microBatchCount, schedule });
    return { ...found, batchSize };
  }

  #machine(workerCount: number, firstRound: number): MachineConfig {
    const { endRound, checkpointEvery, plan } = this.#scenario;
    return {
      workerCount,
      firstRound,
      endRound,
      checkpointEvery,
      batchSize: plan.batchSize,
      batchSizesToProfile: [1, 2, 4],
      planGiven: true,
      learningRate,
      gradientScale,
    };
  }

  #hooks(process: VirtualProcess, disk: Disk): RunHooks {
    const { seed, plan } = this.#scenario;
    return {
      batch: (round) => batchOf(seed, round, plan.batchSize),
      observe: (event) => this.#observed(event),
      onCommitted: (round, loss, correctCount, rate) => this.#committed(round, loss, correctCount, rate),
      onCheckpoint: async (round, state) => {
        this.#compare('the checkpoint to be written', state, round);
        const checkpoint = { round, parameters: state.parameter, buffers: state.buffer, optimizerState: state.optimizer, state: {} };
        try {
          await saveCheckpoint(checkpointFolder, checkpoint, { disk });
        } catch (error) {
          if (!(error instanceof RunError)) throw error;
          this.#observed({ kind: 'warning', message: error.message });
          return;
        }
        if (process === this.#coordinator && process.state === 'running') this.#safeRound = Math.max(this.#safeRound, round);
        this.#progress('checkpoint', round);
      },
    };
  }

  #coordinatorEnded(process: VirtualProcess, result: unknown): void {
    if (process.state === 'dead') return;
    const { endRound, faults } = this.#scenario;
    if (result instanceof Error) {
      this.#outcome = result.message;
      if (!(result instanceof RunError || result instanceof InputError)) this.#crashed('the coordinator crashed', result);
      else if (faults.length === 0) this.#witness.violate(`the run failed without a fault: ${result.message}`);
    } else {
      const { round, stopped } = result as CoordinatorEnd;
      this.#outcome = `the run is done after ${round} rounds`;
      const isGivenUp = stopped && this.#phase === 'gathering';
      if (isGivenUp) this.#outcome = `too few devices came back: given up after ${round} rounds`;
      else if (round !== endRound || stopped || this.#round !== endRound)
        this.#witness.violate(`the run ended after ${round} rounds of ${endRound}, with ${this.#round} committed`);
    }
    this.#witness.note('the coordinator ended', this.#outcome);
    this.#endProcess(process);
  }

  #endProcess(process: VirtualProcess): void {
    if (process.state === 'dead') return;
    const standing = [...this.#network.connections].filter(({ from }) => from === process).length;
    if (standing > 0) this.#witness.violate(`${process.name} ended with ${standing} links open`);
    if (process.timerCount > 0) this.#witness.violate(`${process.name} ended with ${process.timerCount} timers waiting`);
    process.end();
    this.#network.ended(process, { isDark: false, isDataLost: false });
  }

  #startDevice(name: string): void {
    const known = this.#devices.get(name);
    if (known !== undefined && known.process.state !== 'dead') return;
    this.#network.lit(name);
    const process = this.#process(name);
    const device: Device = known ?? { name, process, slowness: defined(this.#scenario.slowness[name], name), epoch: 0 };
    device.process = process;
    this.#devices.set(name, device);
    this.#witness.note(name, 'starts');
    serveToTheEnd(() => this.#serve(device, process), {
      clock: process.clock,
      reconnectMs: this.#scenario.reconnectMs,
      pause: (milliseconds) => new Promise((resolve) => void process.after(milliseconds, resolve)),
      isStopped: () => false,
      onLost: (reason) => this.#witness.note(name, 'is alone:', reason),
    }).then(
      ({ reason }) => this.#deviceEnded(process, reason),
      (error: unknown) => {
        if (!(error instanceof RunError)) this.#crashed(`${name} crashed`, error);
        this.#deviceEnded(process, String(error));
      },
    );
  }

  #deviceEnded(process: VirtualProcess, reason: string): void {
    this.#witness.note(process.name, 'ended:', reason);
    this.#endProcess(process);
  }

  async #serve(device: Device, process: VirtualProcess): Promise<Served> {
    const link = await this.#network.dial(process, coordinatorName, coordinatorUrl);
    const engine = createExactEngine();
    const end = await runWorker({
      name: device.name,
      coordinator: link,
      clock: process.clock,
      engine,
      meters: noMeters,
      createNetwork: async (name, _token, onLink): Promise<PeerNetwork> => {
        const url = `virtual://${name}`;
        const stop = this.#network.listen(url, process, onLink);
        const close = async (): Promise<void> => {
          stop();
          await this.#network.closeAll(process, 'the worker has ended');
        };
        return { url, connect: (peer) => this.#network.dial(process, peer.name, peer.url), close };
      },
      createStage: async (options) => {
        const stage = new ExactStage(options, {
          process,
          engine,
          msPerSample: () => this.#scenario.msPerSample * device.slowness,
          epoch: device.epoch,
          violate: (what) => process.state === 'running' && this.#witness.violate(`${device.name}, ${what}`),
        });
        return this.#bug?.stage?.(stage, device.name) ?? stage;
      },
      readModel: ({ training, layerNames }) => createExactModel(training.seed, layerNames.length).sequence,
    });
    const { clean } = await link.ended;
    return { end, lost: !clean && !end.clean };
  }

  // What is seen

  #framed(from: string, to: string, frame: Frame): void {
    this.#frameCount++;
    this.#witness.note(from, '→', to, frame.kind, frame.epoch, frame.round, frame.microBatch);
    const device = this.#devices.get(to);
    if (device !== undefined && frame.kind === 'deploy') device.epoch = frame.epoch;
  }

  #observed(event: RunEvent): void {
    if (event.kind === 'trace' || event.kind === 'statistics') return;
    if (event.kind === 'phase') this.#phase = event.phase;
    const text = 'reason' in event ? event.reason : 'message' in event ? event.message : 'phase' in event ? event.phase : '';
    this.#progress(event.kind, 'device' in event ? event.device : '', text);
  }

  #committed(round: number, loss: number, correctCount: number, rate: number): void {
    const { batchSize } = this.#scenario.plan;
    this.#progress('committed', round);
    if (round !== this.#round) this.#witness.violate(`round ${round} committed after ${this.#round} rounds`);
    this.#round = round + 1;
    if (round >= this.#scenario.endRound) {
      this.#witness.violate(`round ${round} of ${this.#scenario.endRound} committed`);
      return;
    }
    const expected = this.#oracle.lossSum(round) / batchSize;
    if (loss !== expected) this.#witness.violate(`the loss of round ${round} is ${loss}, not ${expected}`);
    if (correctCount !== batchSize) this.#witness.violate(`round ${round} committed with ${correctCount} samples of ${batchSize}`);
    if (rate !== learningRate(round)) this.#witness.violate(`round ${round} committed with the rate ${rate}`);
  }

  #compare(what: string, state: Parameters<Oracle['difference']>[0], round: number): void {
    const difference = this.#oracle.difference(state, round);
    if (difference !== undefined) this.#witness.violate(`${what} after round ${round} is wrong: ${difference}`);
  }

  #progress(...words: readonly (string | number)[]): void {
    this.#progressAtMs = this.#time.nowMs;
    this.#witness.note(...words);
  }

  /** After each event. */
  #check(): void {
    while ((this.#pendingFaults[0]?.afterFrames ?? Number.POSITIVE_INFINITY) <= this.#frameCount) {
      const fault = this.#pendingFaults.shift() as Fault;
      this.#time.at(this.#time.nowMs + fault.delayMs, () => this.#happen(fault));
    }
    if (this.#outcome !== undefined) return;
    // Nobody expects progress of a coordinator that is not there, or says that it waits for devices.
    if (this.#coordinator.state !== 'running' || this.#phase === 'gathering') this.#progressAtMs = this.#time.nowMs;
    const silentMs = this.#time.nowMs - this.#progressAtMs;
    if (silentMs > hangMs) {
      this.#outcome = 'nothing goes on';
      this.#witness.violate(`nothing has gone on for ${(silentMs / 1000).toFixed(1)} s, and nobody says why`);
    }
  }

  /** How long after the run's end devices may still be busy: coming back, and going on. */
  #afterlifeMs(): number {
    return this.#scenario.reconnectMs + 120_000;
  }

  #checkEnd(): void {
    if (this.#outcome === undefined)
      this.#witness.violate(`after ${this.#time.nowMs / 1000} s the run has not ended, and nothing is left to happen`);
    for (const { name, process } of this.#devices.values()) {
      if (process.state === 'running') this.#witness.violate(`${name} has not ended`);
    }
    for (const { from, to } of this.#network.connections) {
      if (from.state !== 'frozen') this.#witness.violate(`the link from ${from.name} to ${to.name} is still open`);
    }
  }

  // What happens

  #happen(fault: Fault): void {
    const { afterFrames: _, delayMs: __, ...kind } = fault;
    this.#witness.note('FAULT', JSON.stringify(kind));
    switch (fault.kind) {
      case 'kill':
        return this.#kill(fault);
      case 'freeze':
        return this.#freeze(fault);
      case 'partition':
        return this.#partition(fault);
      case 'reset':
        return this.#network.reset(...fault.between);
      case 'impair':
        return this.#impair(fault);
      case 'slow':
        return this.#slow(fault);
      case 'join':
        return this.#startDevice(fault.device);
      case 'kill-coordinator':
        return this.#killCoordinator(fault);
      case 'disk':
        this.#disk.refuse(fault.code);
        this.#later(fault.ms, () => this.#disk.refuse(undefined));
        return;
      default:
        unreachable(fault);
    }
  }

  #later(delayMs: number, action: () => void): void {
    this.#time.at(this.#time.nowMs + delayMs, action);
  }

  #kill({ device, isDark, isDataLost, returnsAfterMs }: Extract<Fault, { kind: 'kill' }>): void {
    const process = this.#devices.get(device)?.process;
    if (process === undefined || process.state === 'dead') return;
    process.end();
    this.#network.ended(process, { isDark, isDataLost });
    if (returnsAfterMs !== undefined) this.#later(returnsAfterMs, () => this.#startDevice(device));
  }

  #freeze({ process: name, ms }: Extract<Fault, { kind: 'freeze' }>): void {
    const process = name === coordinatorName ? this.#coordinator : this.#devices.get(name)?.process;
    if (process?.state !== 'running') return;
    process.freeze();
    this.#network.frozen(process);
    this.#later(ms, () => process.thaw());
  }

  #partition({ hosts, isOneWay, ms }: Extract<Fault, { kind: 'partition' }>): void {
    const others = [...this.#scenario.devices, coordinatorName].filter((host) => !hosts.includes(host));
    const pairs = hosts.flatMap((host) =>
      others.flatMap((other) =>
        isOneWay
          ? [[host, other]]
          : [
              [host, other],
              [other, host],
            ],
      ),
    );
    for (const [from, to] of pairs as [string, string][]) this.#network.cut(from, to);
    this.#later(ms, () => {
      for (const [from, to] of pairs as [string, string][]) this.#network.mend(from, to);
    });
  }

  #impair({ host, conditions, ms }: Extract<Fault, { kind: 'impair' }>): void {
    const { windowBytes: _, ...usual } = this.#scenario.network;
    const set = (values: typeof conditions): void => {
      for (const other of [...this.#scenario.devices, coordinatorName]) {
        if (other === host) continue;
        Object.assign(this.#network.path(host, other), values);
        Object.assign(this.#network.path(other, host), values);
      }
    };
    set(conditions);
    this.#later(ms, () => set(usual));
  }

  #slow({ device: name, factor, ms }: Extract<Fault, { kind: 'slow' }>): void {
    const device = this.#devices.get(name);
    if (device === undefined) return;
    device.slowness *= factor;
    this.#later(ms, () => {
      device.slowness /= factor;
    });
  }

  #killCoordinator({ isPowerCut, restartsAfterMs }: Extract<Fault, { kind: 'kill-coordinator' }>): void {
    const process = this.#coordinator;
    if (process.state === 'dead') return;
    process.end();
    this.#network.ended(process, { isDark: isPowerCut, isDataLost: isPowerCut });
    if (isPowerCut) this.#disk.cutPower();
    this.#later(restartsAfterMs, () => {
      if (this.#outcome === undefined) this.#startCoordinator();
    });
  }
}
