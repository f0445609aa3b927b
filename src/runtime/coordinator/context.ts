// What the parts of a coordinator share: its links, the state of its machine, and the one way in for inputs. Every
// decision about rounds, layouts and members is the machine's (machine.ts); `perform` (effects.ts) performs the effects
// of a transition.

import { RunError } from '../../errors.ts';
import { cutBefore } from '../../graph/layers.ts';
import type { Frame, Link } from '../../transport/link.ts';
import { LayoutPlanner } from '../knowledge/layout-planner.ts';
import type { RunEvent } from '../protocol/events.ts';
import { message } from '../protocol/messages.ts';
import { NotFinite } from '../protocol/not-finite.ts';
import { batchAt } from '../protocol/round-batch.ts';
import { DataFeed } from './data-feed.ts';
import { initialState, step } from './machine.ts';
import type { MachineEffect, MachineInput, MachineState } from './machine-types.ts';
import type { CoordinatorEnd, CoordinatorOptions } from './options.ts';
import { Readiness } from './readiness.ts';
import { Results } from './results.ts';
import { Snapshots } from './snapshots.ts';

export class CoordinatorContext {
  readonly options: CoordinatorOptions;
  /** By device: the link to each that has joined and not left. */
  readonly links: Map<string, Link> = new Map();
  readonly planner: LayoutPlanner;
  readonly readiness: Readiness;
  readonly snapshots: Snapshots;
  readonly feed: DataFeed;
  /** Of a run that only infers. */
  readonly results: Results | undefined;
  /** Resolves at the run's end, with all links closed. */
  readonly end: Promise<CoordinatorEnd>;
  state: MachineState;
  /** The epoch of frames that are sent, and of messages about the layout that are heard. */
  epoch = 0;
  /** The last checkpoint that is safe, in committed rounds. */
  durableRound: number | undefined;
  /** When the change of the layout that is in progress began. */
  #changeMs: number | undefined;
  readonly #perform: (effect: MachineEffect) => void;
  readonly #inputs: MachineInput[] = [];
  readonly #closing: (() => void)[] = [];
  #resolve: (end: CoordinatorEnd) => void = () => {};
  #reject: (error: Error) => void = () => {};

  constructor(options: CoordinatorOptions, perform: (effect: MachineEffect) => void) {
    this.options = options;
    this.#perform = perform;
    this.planner = new LayoutPlanner(options);
    this.readiness = new Readiness(options.clock);
    this.feed = new DataFeed({
      batch: (round) => options.hooks.batch(round),
      send: (device, frame) => this.#handOver(device, frame, 'pipeline'),
      onError: (error) => this.abort(error),
    });
    const { machine, subject, hooks } = options;
    const outputs = cutBefore(subject.sequence, subject.sequence.layers.length);
    this.results =
      hooks.onResults === undefined
        ? undefined
        : new Results({ outputs, sampleCount: (round) => batchAt(machine, round).sampleCount });
    this.state = initialState(options.machine);
    this.snapshots = new Snapshots(options.subject, options.machine.firstRound);
    this.durableRound = options.machine.firstRound > 0 ? options.machine.firstRound : undefined;
    this.end = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    this.end.catch(() => {}); // whoever awaits `end` sees it; nobody may be waiting yet
  }

  /**
   * One input after the other: an effect that causes an input (a plan made at once) does not overtake the effects
   * behind it. A mistake of our own on the way ends the run.
   */
  input(input: MachineInput): void {
    this.#inputs.push(input);
    if (this.#inputs.length > 1) return;
    for (let next = this.#inputs[0]; next !== undefined; next = this.#inputs[0]) {
      try {
        const [state, effects] = (this.options.step ?? step)(this.options.machine, this.state, next);
        this.state = state;
        for (const effect of effects) this.#perform(effect);
      } catch (error) {
        this.abort(error);
      }
      this.#inputs.shift();
    }
  }

  observe(event: RunEvent): void {
    this.options.hooks.observe(event);
  }

  /** Sends; resolves when more may be sent. */
  sendInTurn(device: string, frame: Frame): Promise<void> {
    return this.#handOver(device, frame, 'control');
  }

  /** Sends without waiting. */
  send(device: string, frame: Frame): void {
    void this.#handOver(device, { ...frame, epoch: this.epoch }, 'control');
  }

  /**
   * Waits where the link is full. The end of a link is heard as 'left'; a frame that cannot be sent at all ends it too.
   */
  async #handOver(device: string, frame: Frame, priority: 'control' | 'pipeline'): Promise<void> {
    const link = this.links.get(device);
    try {
      await link?.send(frame, priority);
    } catch (error) {
      await link?.close(error instanceof Error ? error.message : String(error));
    }
  }

  /** A reason to change the layout has come up; of several the first counts. */
  changeBegins(): void {
    this.#changeMs ??= this.options.clock.now();
  }

  /** The new layout stands. Returns the seconds that the change took. */
  changeEnds(): number {
    const nowMs = this.options.clock.now();
    const seconds = (nowMs - (this.#changeMs ?? nowMs)) / 1000;
    this.#changeMs = undefined;
    return seconds;
  }

  /** Our own side failed (no plan, a disk error): all devices are released and the error is the run's. */
  abort(error: unknown): void {
    if (this.state.phase === 'ended') return;
    this.state = { ...this.state, phase: 'ended' };
    const reason = error instanceof Error ? error.message : String(error);
    for (const name of this.links.keys()) this.send(name, message('end', { reason: reason.slice(0, 1000) }));
    this.#close(() => this.#reject(error instanceof Error ? error : new Error(reason)));
  }

  /** The run has ended as it should. */
  finish(end: CoordinatorEnd): void {
    this.#close(() => this.#resolve(end));
  }

  /** The machine has ended the run, for this reason; in a round whose numbers are not finite, if one is given. */
  fail(why: string, notFiniteRound?: number): void {
    const reason = why.replace(/\.$/, '');
    const checkpoint = this.durableRound;
    const fix =
      checkpoint === undefined
        ? 'nothing was saved yet'
        : `the last checkpoint is after round ${checkpoint}; continue with --resume`;
    const message = this.options.subject.training.isInference
      ? `The run ended: ${reason}; what had not been answered is lost.`
      : `Training ended: ${reason}; ${fix}.`;
    const error = notFiniteRound === undefined ? new RunError(message) : new NotFinite(notFiniteRound, message);
    this.#close(() => this.#reject(error));
  }

  /** `stop` is called when the run ends: whatever waits must not outlive it. */
  onClose(stop: () => void): void {
    this.#closing.push(stop);
  }

  #close(settle: () => void): void {
    this.feed.stop();
    for (const stop of this.#closing) stop();
    this.readiness.clear();
    const links = [...this.links.values()];
    void Promise.all(links.map((link) => link.close('the run is over'))).then(settle, settle);
  }
}
