// What the machine's effects do: one handler for each kind. Effects decide nothing; what they cause comes back as an
// input of the machine.

import { stalenessOf } from '../../schedule/staleness.ts';
import { message } from '../protocol/messages.ts';
import { batchAt, isUsualRound } from '../protocol/round-batch.ts';
import { sampleMs } from './answer-checks.ts';
import type { BatchTimer } from './batch-timer.ts';
import type { CoordinatorContext } from './context.ts';
import type { DecisionsAtLeisure } from './decisions-at-leisure.ts';
import type { Deployment } from './deployment.ts';
import type { MachineEffect } from './machine-types.ts';
import type { Presence } from './presence.ts';

/** The parts of a coordinator that perform effects. */
export interface Performers {
  readonly context: CoordinatorContext;
  readonly presence: Presence;
  readonly deployment: Deployment;
  readonly decisions: DecisionsAtLeisure;
  readonly timer: BatchTimer;
}

type Handler<E> = (performers: Performers, effect: E) => void;

const handlers: {
  readonly [Kind in MachineEffect['kind']]: Handler<Extract<MachineEffect, { readonly kind: Kind }>>;
} = {
  send({ context }, { device, message: kind, control }) {
    if (kind === 'snapshot') context.snapshots.expect(context.epoch, control.round);
    context.send(device, message(kind, control));
  },
  'send-model': ({ deployment }, { device }) => deployment.sendModel(device),
  'send-peers'({ context }, { device, members }) {
    const peers = members.map(({ name, listenUrl }) => ({ name, url: listenUrl }));
    context.send(device, message('connect', { peers }));
  },
  'links-measured': ({ context }, { device, links }) => context.planner.measured(device, links),
  profiled({ context }, { device, profile }) {
    context.planner.profiled(device, profile);
    const layersMs = sampleMs(profile.times, context.options.machine.batchSizesToProfile);
    context.observe({ kind: 'profiled', device, cached: profile.cached, sampleMs: layersMs });
  },
  plan: ({ deployment }, effect) => void deployment.plan(effect),
  consider: ({ decisions }, effect) => decisions.consider(effect),
  deploy({ deployment, decisions }, effect) {
    decisions.layoutBegins();
    deployment.deploy(effect);
  },
  feed: ({ context }, { round }) => context.feed.feed(round, context.epoch),
  committed({ context, presence, decisions, timer }, { round, loss, correctCount, learningRate, results }) {
    const { machine, hooks } = context.options;
    timer.batchCame();
    presence.committed(round);
    const { sampleCount } = batchAt(machine, round);
    decisions.committed(results, isUsualRound(machine, round) ? undefined : sampleCount);
    hooks.onCommitted(round, loss, correctCount, learningRate, results);
    const outputs = context.results?.take(round);
    if (outputs !== undefined) hooks.onResults?.(round, outputs);
  },
  repeated({ context, decisions, timer }, { round }) {
    timer.batchCame();
    decisions.watchCopies();
    context.observe({ kind: 'repeated', round });
  },
  changing: ({ deployment }, effect) => deployment.changing(effect),
  changed({ context, decisions }, { change: { cause, lost }, round }) {
    context.observe({ kind: 'recovered', cause, round, seconds: context.changeEnds() });
    // What was found in a hurry may be improved at leisure.
    if (lost.length > 0) decisions.reconsider();
  },
  'stream-begins'({ context }, { plan, round }) {
    const { stalenessCorrection } = context.options.subject.training;
    const corrected = stalenessCorrection === undefined ? {} : { correction: stalenessCorrection };
    context.observe({ kind: 'stream', round, staleness: stalenessOf(plan), ...corrected });
  },
  'learning-rate-changes': ({ context }, { round, factor }) =>
    context.observe({ kind: 'learning-rate', round, factor }),
  replicated: ({ context }, { round }) => context.observe({ kind: 'replicated', round }),
  dismiss: ({ presence }, { device, reason }) => presence.dismiss(device, reason),
  'write-checkpoint': ({ deployment }, { round }) => deployment.writeCheckpoint(round),
  phase({ context, presence, timer }, { phase }) {
    context.observe({ kind: 'phase', phase });
    presence.phaseBegins(phase);
    if (phase === 'training') timer.trainingBegins();
  },
  finish: ({ context }, { round, stopped }) => context.finish({ round, stopped }),
  fail: ({ context }, { message: reason, notFiniteRound }) => context.fail(reason, notFiniteRound),
};

/** Performs an effect of the machine. */
export function perform(performers: Performers, effect: MachineEffect): void {
  const handle = handlers[effect.kind] as Handler<MachineEffect>;
  handle(performers, effect);
}
