// A run's coordinator, wired: frames of devices (answers.ts) and their coming and going (presence.ts) are inputs of the
// state machine (machine.ts); its effects (effects.ts) go to devices (deployment.ts) and to what is decided while they
// train (decisions-at-leisure.ts). It has no network of its own: links are given to it.

import type { Link } from '../../transport/link.ts';
import type { DeviceFacts } from '../protocol/device-facts.ts';
import { message } from '../protocol/messages.ts';
import { receive } from './answers.ts';
import { BatchTimer } from './batch-timer.ts';
import { CoordinatorContext } from './context.ts';
import { DecisionsAtLeisure } from './decisions-at-leisure.ts';
import { Deployment } from './deployment.ts';
import { perform } from './effects.ts';
import type { CoordinatorEnd, CoordinatorOptions } from './options.ts';
import { Presence } from './presence.ts';

/** One run's coordinator. */
export interface Coordinator {
  /** Takes in a device whose link is authenticated. */
  join(name: string, link: Link, facts: DeviceFacts): void;
  /** Asks for a clean stop: the round in progress commits, a checkpoint is written. */
  stop(): void;
  /**
   * Asks a device to call another, `from`, which cannot reach it and has this ticket. False where either is not there.
   */
  ask(device: string, from: string, ticket: string): boolean;
  /** Continues without a device, from a boundary between two rounds, if the others can do its work. */
  drain(device: string): void;
  /** From the next round that nobody has begun on, the learning rate is `factor` times what the settings say. */
  scaleLearningRate(factor: number): void;
  /** True until all devices that the run asked for have joined. */
  readonly isGathering: boolean;
  /** Resolves at the run's end, with all links closed; rejects with RunError or InputError when it fails. */
  readonly end: Promise<CoordinatorEnd>;
}

/** Starts a coordinator that waits for its workers. */
export function createCoordinator(options: CoordinatorOptions): Coordinator {
  const context: CoordinatorContext = new CoordinatorContext(options, (effect) => perform(performers, effect));
  const decisions = new DecisionsAtLeisure(context);
  const presence = new Presence(context, (device, frame) => receive({ context, decisions }, device, frame));
  options.onReady?.((rounds, isLast) => context.input({ kind: 'offered', rounds, isLast }));
  const performers = {
    context,
    presence,
    deployment: new Deployment(context),
    decisions,
    timer: new BatchTimer(context, presence),
  };
  return {
    join: (name, link, facts) => presence.join(name, link, facts),
    stop: () => context.input({ kind: 'stop' }),
    ask(device, from, ticket) {
      const caller = context.state.members.find(({ name }) => name === from);
      if (caller === undefined || !context.links.has(device)) return false;
      context.send(device, message('call', { peer: { name: from, url: caller.listenUrl }, ticket }));
      return true;
    },
    drain: (device) => context.input({ kind: 'answer', device, answer: { kind: 'leaving' } }),
    scaleLearningRate: (factor) => context.input({ kind: 'learning-rate-scaled', factor }),
    get isGathering() {
      return context.state.phase === 'gathering';
    },
    end: context.end,
  };
}
