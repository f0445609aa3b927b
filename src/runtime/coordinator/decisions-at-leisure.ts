// What the coordinator decides while devices train, and nobody waits for: whether another layout is worth a change,
// what devices prepare for in case one of them is lost, how often stages are copied, and what rounds say of devices and
// links. A layout that is found becomes a proposal; the machine takes it between two rounds.

import type { Plan } from '../../cluster/cluster.ts';
import { InputError } from '../../errors.ts';
import type { Drift } from '../knowledge/layout-planner.ts';
import { isRepartitionDue, type RecoveryPolicy, recoveryPolicies } from '../knowledge/recovery-policies.ts';
import type { Proposal } from '../protocol/layout-change.ts';
import { message, type RoundResult } from '../protocol/messages.ts';
import type { CoordinatorContext } from './context.ts';
import type { MachineEffect } from './machine-types.ts';
import { fullMembers } from './members.ts';

export class DecisionsAtLeisure {
  readonly #context: CoordinatorContext;
  #stopPreparing: () => void = () => {};
  /** When the layout began, and whether nothing more is announced of how ready devices are for losses of it. */
  #readying = { sinceMs: 0, isOver: false };

  constructor(context: CoordinatorContext) {
    this.#context = context;
    context.onClose(() => this.#stopPreparing());
  }

  /** Another layout begins: devices make themselves ready anew. */
  layoutBegins(): void {
    this.#context.readiness.clear();
    this.#readying = { sinceMs: this.#context.options.clock.now(), isOver: false };
  }

  /**
   * A round has committed, with what devices report of it. `smallerCount`: its samples, where it has fewer than a batch
   * or shorter ones. Training has few such rounds; a server may have no others.
   */
  committed(results: Readonly<Record<string, RoundResult>>, smallerCount: number | undefined): void {
    const isOwn = this.#recovery.replan === 'light';
    if (isOwn) this.#prepare();
    this.watchCopies();
    const { isInference = false } = this.#context.options.subject.training;
    if (isOwn && (smallerCount === undefined || isInference)) this.#watchDrift(results, smallerCount);
    if (smallerCount === undefined && !isOwn) this.#context.planner.batchTook(results);
    this.#repartition();
  }

  /** Looks for a better plan for these devices; or for one without a device that wants to leave. */
  consider({ devices, without }: Omit<Extract<MachineEffect, { kind: 'consider' }>, 'kind'>): void {
    const from = this.#context.state.plan;
    if (from === undefined) return;
    const found = without === undefined ? this.#improve(devices, from) : this.#spare(without, devices, from);
    found.catch((error: unknown) => this.#context.abort(error));
  }

  /** Looks for a better plan for the devices that are there. */
  reconsider(): void {
    if (this.#context.state.phase !== 'ended') this.consider({ devices: this.#devices() });
  }

  /** Copies are made as often as they cost little, unless the settings say how often. */
  watchCopies(): void {
    const { options, state, planner } = this.#context;
    if (options.machine.replicateEvery !== undefined) return;
    const { replication, round } = state;
    const copyEvery = planner.committed(replication !== undefined && replication.round <= round);
    if (copyEvery !== undefined) this.#context.input({ kind: 'copies-paced', copyEvery });
  }

  /** Devices or links have become much slower or faster. */
  drifted(drift: Drift): void {
    if (Object.keys(drift.factors).length + drift.links.length > 0) this.#context.observe({ kind: 'drift', ...drift });
    this.reconsider();
  }

  async #improve(devices: readonly string[], from: Plan): Promise<void> {
    const { planner, state } = this.#context;
    const isOver = (): boolean => !this.#isTrainingWith(from);
    try {
      const found = await planner.better(devices, from, { round: state.round, isOver });
      if (found !== undefined) this.#proposeWhenReady(found, isOver);
    } catch (error) {
      if (!(error instanceof InputError)) throw error; // nothing better fits: what runs goes on
    }
  }

  /** FTPipeHD: after some rounds the model is partitioned again, by what batches took. */
  #repartition(): void {
    const { planner, state, options } = this.#context;
    const { plan } = state;
    if (plan === undefined || !isRepartitionDue(this.#recovery, state.round - options.machine.firstRound)) return;
    const found = planner.repartitioned(this.#devices(), plan);
    if (found === undefined) return;
    const { capacities, plan: better, refusal, copyEvery } = found;
    this.#context.observe({ kind: 'capacities', capacities, isKept: better === undefined });
    if (refusal !== undefined) this.#context.observe({ kind: 'warning', message: refusal });
    if (better === undefined) return;
    const change = { cause: 'capacities call for other parts', lost: [] };
    this.#proposeWhenReady({ plan: better, change, copyEvery }, () => !this.#isTrainingWith(plan));
  }

  async #spare(device: string, others: readonly string[], from: Plan): Promise<void> {
    try {
      const found = await this.#context.planner.without(device, others, from, () => !this.#isTrainingWith(from));
      if (found !== undefined) this.#propose(found);
    } catch (error) {
      if (!(error instanceof InputError)) throw error;
      this.#context.observe({ kind: 'warning', message: `${device} cannot be spared: ${error.message}` });
    }
  }

  #propose(proposal: Proposal): void {
    this.#context.changeBegins();
    this.#context.input({ kind: 'proposed', ...proposal });
  }

  /** One after the other: what was found before is not wanted any more. */
  #proposeWhenReady(proposal: Proposal, isOver: () => boolean): void {
    this.#context.readiness.clear();
    this.#whenReady(proposal.plan, () => {
      if (!isOver()) this.#propose(proposal);
    });
  }

  /** Has devices make themselves ready for a layout while they go on with the one before. */
  #whenReady(plan: Plan, onReady: (isComplete: boolean) => void): void {
    const devices = new Set(plan.stages.flatMap((stage) => stage.devices));
    const id = this.#context.readiness.ask(devices, onReady);
    for (const device of devices) this.#context.send(device, message('reserve', { plan, id }));
  }

  /** Between two rounds: what to do about the next loss. */
  #prepare(): void {
    const { options, planner, readiness } = this.#context;
    this.#stopPreparing();
    this.#stopPreparing = options.clock.after(0, () => {
      const { plan } = this.#context.state;
      if (plan === undefined || !this.#isTrainingWith(plan)) return;
      try {
        planner.prepare(this.#devices(), plan);
        if (!readiness.isAsking) this.#announceReserve();
      } catch (error) {
        this.#context.abort(error);
      }
    });
  }

  /** Announces the next plan in reserve, or, once for each layout, that devices are ready for all of them. */
  #announceReserve(): void {
    const readying = this.#readying;
    const { planner, options } = this.#context;
    const reserved = planner.announceReserve();
    if (reserved !== undefined)
      this.#whenReady(reserved, (isComplete) => {
        readying.isOver ||= !isComplete; // one that takes too long may not be ready at all
      });
    else if (!readying.isOver && planner.isReserveAnnounced) {
      readying.isOver = true;
      this.#context.observe({ kind: 'reserve-ready', seconds: (options.clock.now() - readying.sinceMs) / 1000 });
    }
  }

  /** Devices are judged by what they computed for a round, not by its time, which says nothing where rounds overlap. */
  #watchDrift(results: Readonly<Record<string, RoundResult>>, smallerCount: number | undefined): void {
    const { planner, state } = this.#context;
    const drift = state.plan && planner.computed(results, state.plan, smallerCount);
    if (drift !== undefined) this.drifted(drift);
    for (const [device, peer] of planner.linksToMeasure(this.#devices()))
      this.#context.send(device, message('measure-link', { peer }));
  }

  get #recovery(): RecoveryPolicy {
    return this.#context.options.recovery ?? recoveryPolicies.asteroid;
  }

  /** Devices that may be given work. */
  #devices(): readonly string[] {
    return fullMembers(this.#context.state).map(({ name }) => name);
  }

  /** Whether this layout stands. */
  #isTrainingWith(plan: Plan): boolean {
    const { state } = this.#context;
    return state.plan === plan && (state.phase === 'training' || state.phase === 'snapshotting');
  }
}
