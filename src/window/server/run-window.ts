// The window of a run that is under way: it hears the run's events, keeps the view for those who come later, and sends
// viewers what happened, several times a second and only if somebody looks on.

import type { Clock } from '../../clock.ts';
import type { OptimizerState } from '../../cluster/memory.ts';
import type { RunGuests, RunHandle } from '../../runtime/host/run-guests.ts';
import type { RunEvent } from '../../runtime/protocol/events.ts';
import type { Guests } from '../../transport/node/websocket-server.ts';
import type { Abilities, Command, ServerMessage, Timed, WhatIfChange } from '../messages.ts';
import { apply, emptyView, type View, type WindowEvent } from '../view.ts';
import { WindowDoor } from './door.ts';
import { createGuests } from './guests.ts';
import { invitation } from './invitation.ts';
import { readPageFiles } from './page-files.ts';
import { Translation } from './translation.ts';
import { Viewers } from './viewers.ts';
import { askWhatIf } from './what-if-thread.ts';

/** How browsers come to a run. */
export interface OpenedWindow {
  /** Each call's link lets one browser look on. */
  link(): string;
  /** Where a browser becomes a device, with the join code; absent where no device is awaited. */
  readonly deviceLink?: string;
  /** Other machines reach both. */
  readonly isFar: boolean;
}

export interface RunWindowOptions {
  readonly model: string;
  readonly clock: Clock;
  /** For what viewers ask of the run: it is on record as all other events are. */
  readonly record: (event: RunEvent) => void;
  /** Copies of each weight that the optimizer keeps. Absent: nobody asks what a change would do. */
  readonly optimizerState?: OptimizerState;
  /** Asks the run to stop, as Ctrl-C does. Absent: viewers cannot. */
  readonly stop?: () => void;
  /** The window is open. */
  onOpen(opened: OpenedWindow): void;
}

const overText = 'the run is over';

/** Milliseconds between two messages to viewers. */
export const tickMs = 200;
/** Events of one message, at most: beyond, rounds are left out, of which the next view has the curve. */
const mostEvents = 500;

export class RunWindow implements RunGuests {
  readonly #options: RunWindowOptions;
  readonly #view: View;
  readonly #startMs: number;
  readonly #viewers: Viewers;
  readonly #translation = new Translation();
  #isLookingAhead = false;
  #pending: Timed[] = [];
  #cancelTick: (() => void) | undefined;
  #run: RunHandle | undefined;
  /** Set when the run is over. */
  #closeServer: (() => Promise<void>) | undefined;
  #door: WindowDoor | undefined;

  constructor(options: RunWindowOptions) {
    this.#options = options;
    this.#view = emptyView(options.model);
    this.#startMs = options.clock.now();
    this.#viewers = new Viewers({
      clock: options.clock,
      welcome: () => JSON.stringify(this.#welcome()),
      command: (command, answer) => this.#obey(command, answer),
    });
  }

  /** Hears an event of the run. */
  observe(event: RunEvent): void {
    for (const shown of this.#translation.of(event)) this.#show(shown);
  }

  guests(server: Parameters<RunGuests['guests']>[0]): Guests {
    this.#door = new WindowDoor({ clock: this.#options.clock, ...server });
    return createGuests({ files: readPageFiles(), door: this.#door, viewers: this.#viewers });
  }

  begin(run: RunHandle): void {
    this.#run = run;
    const { isFar, url, joinCode } = run;
    const device = joinCode === undefined ? {} : { deviceLink: `${url}/join#${joinCode}` };
    this.#options.onOpen({ link: () => this.#link(), isFar, ...device });
  }

  end(closeServer: () => Promise<void>): void {
    this.#closeServer = closeServer;
    this.#show({ kind: 'phase', phase: 'ended' });
  }

  /** All has been told: viewers go. */
  async close(): Promise<void> {
    if (!['ended', 'stopped', 'failed'].includes(this.#view.phase)) this.#show({ kind: 'phase', phase: 'ended' });
    this.#cancelTick?.();
    this.#tick();
    this.#viewers.close(overText);
    await this.#closeServer?.();
  }

  #link(): string {
    return `${this.#run?.url}/#${this.#door?.mint()}`;
  }

  #show(event: WindowEvent): void {
    const atMs = Math.round(this.#options.clock.now() - this.#startMs);
    apply(this.#view, event, atMs);
    if (this.#viewers.count === 0) return;
    if (this.#pending.length < mostEvents || event.kind !== 'round') this.#pending.push([atMs, event]);
    this.#cancelTick ??= this.#options.clock.after(tickMs, () => this.#tick());
  }

  #tick(): void {
    this.#cancelTick = undefined;
    const events = this.#pending;
    this.#pending = [];
    if (events.length > 0) this.#viewers.broadcast(JSON.stringify({ kind: 'events', events }));
  }

  /** What is pending is in the view already: others get it first, so that nobody sees it twice. */
  #welcome(): ServerMessage {
    this.#tick();
    return { kind: 'view', view: this.#view, can: this.#abilities() };
  }

  #abilities(): Abilities {
    const { drain, scaleLearningRate, joinCode } = this.#run ?? {};
    return {
      ...{ stop: this.#options.stop !== undefined, drain: drain !== undefined, rate: scaleLearningRate !== undefined },
      ...{ whatIf: this.#options.optimizerState !== undefined, invite: true, join: joinCode !== undefined },
    };
  }

  #obey(command: Command, answer: (message: ServerMessage) => void): void {
    const { id } = command;
    const done = (text: string): void => answer({ kind: 'answer', id, text });
    const refuse = (text: string): void => answer({ kind: 'refused', id, text });
    const isWish = ['stop', 'drain', 'learning-rate'].includes(command.command);
    if (isWish && this.#closeServer !== undefined) return refuse('The run is over.');
    switch (command.command) {
      case 'stop':
        if (this.#options.stop === undefined) return refuse('This run is not stopped from here.');
        this.#options.record({ kind: 'asked', what: 'stop' });
        this.#options.stop();
        return done('It stops after this round.');
      case 'drain':
        return this.#drain(command.device, done, refuse);
      case 'learning-rate':
        if (this.#run?.scaleLearningRate === undefined) return refuse('This run has no learning rate to change.');
        this.#options.record({ kind: 'asked', what: 'learning-rate', factor: command.factor });
        this.#run.scaleLearningRate(command.factor);
        return done(`The learning rate will be ${command.factor} times what the schedule says.`);
      case 'invite':
        return answer({ kind: 'answer', id, text: '', invitation: invitation(this.#link()) });
      case 'what-if':
        return void this.#lookAhead(command.change, answer, id);
    }
  }

  /** One question at a time: it takes a thread. */
  async #lookAhead(change: WhatIfChange, answer: (message: ServerMessage) => void, id: number): Promise<void> {
    const { plan, profile, cluster } = this.#translation;
    const { optimizerState } = this.#options;
    const refuse = (text: string): void => answer({ kind: 'refused', id, text });
    if (plan === undefined || profile === undefined || cluster === undefined || optimizerState === undefined)
      return refuse('The devices have not been measured.');
    if (this.#isLookingAhead) return refuse('Another question is being answered: ask again in a moment.');
    this.#isLookingAhead = true;
    try {
      const whatIf = await askWhatIf({ plan, profile, cluster, optimizerState, change });
      answer({ kind: 'answer', id, text: '', whatIf });
    } catch (error) {
      refuse(error instanceof Error ? error.message : String(error));
    } finally {
      this.#isLookingAhead = false;
    }
  }

  #drain(device: string, done: (text: string) => void, refuse: (text: string) => void): void {
    if (this.#run?.drain === undefined) return refuse('This run has one device.');
    if (!this.#view.devices.some(({ name, isPresent }) => name === device && isPresent))
      return refuse(`There is no device ${device}.`);
    this.#options.record({ kind: 'asked', what: 'drain', device });
    this.#run.drain(device);
    done(`${device} leaves when the others have its work.`);
  }
}
