// Which devices are there: they join, are heard of, fall silent, leave or are dismissed. What that means for the run is
// the machine's decision.

import { type Frame, type Link, silenceLimitsMs } from '../../transport/link.ts';
import { likenessOf } from '../knowledge/device-classes.ts';
import { predictedMiB } from '../knowledge/memory-budgets.ts';
import type { DeviceFacts } from '../protocol/device-facts.ts';
import type { Phase } from '../protocol/events.ts';
import { message } from '../protocol/messages.ts';
import { batchAt, isUsualRound } from '../protocol/round-batch.ts';
import type { CoordinatorContext } from './context.ts';
import { Detector, type Silence } from './detector.ts';

/** How often silence is judged. */
const judgeEveryMs = 250;

/** How long a run without devices waits for one to come back. */
const waitMs = 120_000;

/** Machines of which the user is warned that they are slow. */
const mostWarnings = 100;

/** Why a device is not measured again. */
const tooLittleMemory =
  'its system killed it for want of memory before it had any work: it needs more memory for this model';

export class Presence {
  readonly #context: CoordinatorContext;
  readonly #received: (device: string, frame: Frame) => void;
  readonly #detector = new Detector(judgeEveryMs);
  /** Samples of rounds that have committed in a layout that infers. */
  #compiled: { readonly epoch: number; readonly sizes: Set<number> } = { epoch: -1, sizes: new Set() };
  #stopJudging: () => void = () => {};
  #stopWaiting: () => void = () => {};
  /** Machines whose engine was warned of. */
  readonly #warned = new Set<string>();
  /** By device that has come back and waits. */
  readonly #stopCooling = new Map<string, () => void>();

  /** Begins to judge silence. `received` gets all frames of devices that are there. */
  constructor(context: CoordinatorContext, received: (device: string, frame: Frame) => void) {
    this.#context = context;
    this.#received = received;
    context.onClose(() => {
      this.#stopJudging();
      this.#stopWaiting();
      for (const stop of this.#stopCooling.values()) stop();
    });
    this.#judge();
  }

  /** Takes in a device whose link is authenticated. */
  join(name: string, link: Link, facts: DeviceFacts): void {
    const { state, links, planner, options } = this.#context;
    // A device may come back before its former link is given up: it tries again. After the run there is nothing to come
    // back to.
    if (state.phase === 'ended') return turnAway(link, 'the run is over');
    if (links.has(name)) return void link.close(`another device is called ${name}`);
    const lowered = planner.joined(name, facts);
    if (lowered !== undefined) this.#context.observe({ kind: 'memory-lowered', device: name, ...lowered });
    const memoryMiB = planner.memoryMiB(name);
    if (memoryMiB === 0 && facts.memoryMiB > 0) return turnAway(link, tooLittleMemory);
    links.set(name, link);
    this.#detector.heard(name, options.clock.now());
    const { machine: _, ...announced } = facts;
    this.#context.observe({ kind: 'joined', device: name, ...announced, memoryMiB });
    this.#warn(name, facts);
    // What is still on its way from a device that was let go is no sign of life.
    link.receive((frame) => {
      if (links.get(name) !== link) return;
      this.#detector.heard(name, options.clock.now());
      this.#received(name, frame);
    });
    void link.ended.then(({ reason }) => {
      if (links.get(name) === link) this.#gone(name, reason);
    });
    const likeness = likenessOf(facts);
    this.#context.input({
      kind: 'joined',
      device: name,
      isCooling: this.#isCooling(name),
      ...(likeness === undefined ? {} : { likeness }),
    });
  }

  /** Says once for each machine that its devices are far slower than they could be. */
  #warn(name: string, { machine, engineWarning }: DeviceFacts): void {
    if (engineWarning === undefined || this.#warned.has(machine) || this.#warned.size >= mostWarnings) return;
    this.#warned.add(machine);
    this.#context.observe({ kind: 'warning', message: `${name}: ${engineWarning}` });
  }

  /** Ends the link to a device, which may live. */
  dismiss(device: string, reason: string): void {
    const { links, planner } = this.#context;
    const link = links.get(device);
    this.#context.send(device, message('end', { reason: reason.slice(0, 1000) }));
    this.#forget(device);
    planner.left(device);
    this.#context.observe({ kind: 'left', device, reason });
    if (this.#hasWork(device)) this.#context.changeBegins();
    void link?.close(reason);
    this.#context.input({ kind: 'left', device, reason });
  }

  /** Whether anything has been heard of a device at this time or later. */
  heardSince(device: string, ms: number): boolean {
    return this.#detector.heardSince(device, ms);
  }

  /** A device does not answer: the others go on without it. */
  giveUp(device: string, reason: string): void {
    const link = this.#context.links.get(device);
    this.#gone(device, reason);
    void link?.close(reason);
  }

  /** The run enters a phase; a run without devices waits for some, but not for ever. */
  phaseBegins(phase: Phase): void {
    this.#stopWaiting();
    if (phase !== 'waiting') return;
    this.#stopWaiting = this.#context.options.clock.after(waitMs, () => this.#context.input({ kind: 'gave-up' }));
  }

  /** A device that comes and goes waits, ever longer, unless it is needed. */
  #isCooling(device: string): boolean {
    const { state, planner, options } = this.#context;
    const isNeeded = state.phase === 'gathering' || state.phase === 'waiting';
    const coolDown = isNeeded ? undefined : planner.coolDownOf(device);
    if (coolDown === undefined) return false;
    this.#context.observe({ kind: 'cool-down', device, ...coolDown });
    const cooled = (): void => this.#context.input({ kind: 'cooled', device });
    this.#stopCooling.set(device, options.clock.after(1000 * coolDown.seconds, cooled));
    return true;
  }

  /** A device is not reached any more, or is given up. */
  #gone(name: string, reason: string): void {
    this.#forget(name);
    this.#context.planner.vanished(name, this.#heldMiB(name));
    if (this.#context.state.phase !== 'ended') this.#context.observe({ kind: 'left', device: name, reason });
    if (this.#hasWork(name)) this.#context.changeBegins();
    this.#context.input({ kind: 'left', device: name, reason });
  }

  #forget(device: string): void {
    this.#context.links.delete(device);
    this.#detector.forget(device);
    this.#context.readiness.gone(device);
    this.#stopCooling.get(device)?.();
    this.#stopCooling.delete(device);
  }

  /**
   * MiB that a device was predicted to hold, now or in the next layout; 0 while it is prepared for its first work;
   * undefined if nothing was predicted.
   */
  #heldMiB(device: string): number | undefined {
    const { plan, pending } = this.#context.state;
    return !this.#hasWork(device) && this.#owesWork(device) ? 0 : predictedMiB(device, [plan, pending]);
  }

  /** In the layout that stands, or in the next one. */
  #hasWork(device: string): boolean {
    const { plan, pending } = this.#context.state;
    return [plan, pending].some((layout) => layout?.stages.some(({ devices }) => devices.includes(device)));
  }

  /** A round has committed: what it took to compile for its size is done. */
  committed(round: number): void {
    const { machine, subject } = this.#context.options;
    if (machine.batchAt === undefined || subject.training.isInference !== true) return;
    const { epoch } = this.#context.state;
    if (epoch !== this.#compiled.epoch) this.#compiled = { epoch, sizes: new Set() };
    this.#compiled.sizes.add(batchAt(machine, round).sampleCount);
  }

  /** A round of fewer or shorter samples is in progress, for which devices may have to compile passes. */
  #isInSmallerRound(): boolean {
    const { options, state } = this.#context;
    const { machine } = options;
    if (machine.batchAt === undefined || state.phase !== 'training') return false;
    const { epoch, sizes } = this.#compiled;
    for (let { round } = state; round <= state.grantedRound; round++) {
      const isCompiled = epoch === state.epoch && sizes.has(batchAt(machine, round).sampleCount);
      if (!isUsualRound(machine, round) && !isCompiled) return true;
    }
    return false;
  }

  /**
   * How long a device may be silent at least, by what it owes. One that only infers compiles in another thread than the
   * one that is heard of: whoever asks need not wait as long as for one that differentiates its stage.
   */
  #patienceMs(device: string, isInSmallerRound: boolean): number {
    const owesLayout = this.#owesLayout(device);
    const { options, state } = this.#context;
    const { isInference = false } = options.subject.training;
    const isFirst = owesLayout && state.phase !== 'deploying';
    if (this.#isPreparing(device) || isFirst) return silenceLimitsMs.busy;
    if (!isInSmallerRound && !owesLayout) return 0;
    return isInference ? silenceLimitsMs.usual : silenceLimitsMs.busy;
  }

  /** Looks at regular times who has been silent for too long. */
  #judge(): void {
    const { options, state } = this.#context;
    if (state.phase === 'ended') return;
    this.#stopJudging = options.clock.after(judgeEveryMs, () => this.#judge());
    const isInSmallerRound = this.#isInSmallerRound();
    const patienceMs = (name: string): number => this.#patienceMs(name, isInSmallerRound);
    for (const [name, link] of this.#context.links) link.expectSilence?.(patienceMs(name) > silenceLimitsMs.usual);
    const silences = this.#detector.judge(options.clock.now(), patienceMs);
    for (const { verdict, ...silence } of silences) {
      if (verdict === 'dead') this.#giveUpSilent(silence);
      else {
        this.#context.observe({ kind: 'suspected', ...silence });
        this.#context.send(silence.device, message('probe', {}));
      }
    }
  }

  #giveUpSilent({ device, silentMs, deadAfterMs }: Omit<Silence, 'verdict'>): void {
    const [silentS, allowedS] = [silentMs / 1000, deadAfterMs / 1000];
    this.giveUp(device, `no sign of life for ${silentS.toFixed(1)} s, with ${allowedS.toFixed(1)} s allowed`);
  }

  /** Reading a model, profiling and compiling keep a device from answering. */
  #owesWork(device: string): boolean {
    return this.#isPreparing(device) || this.#owesLayout(device);
  }

  /** For its first work. */
  #isPreparing(device: string): boolean {
    const joining = this.#context.state.members.find(({ name }) => name === device)?.joining;
    return joining !== undefined && joining !== 'cooling';
  }

  /** Its part in the next layout, or what comes before the first one. */
  #owesLayout(device: string): boolean {
    const { phase, waitingFor } = this.#context.state;
    return phase !== 'training' && phase !== 'snapshotting' && waitingFor.includes(device);
  }
}

/** A device that nothing is expected of hears so, and does not try again. */
function turnAway(link: Link, reason: string): void {
  void link.send(message('end', { reason })).catch(() => {}); // it has gone
  void link.close(reason);
}
