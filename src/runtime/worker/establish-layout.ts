// A new layout in the place of the one in force. Its announcement interrupts whatever is going on: the round is given
// up, and frames of the new layout find their place. Then it is established: the state returns to the version that the
// coordinator names, layers travel, and what was before is kept until it is released (held-layouts.ts).

import { defined } from '../../assert.ts';
import type { Plan } from '../../cluster/cluster.ts';
import { ProtocolError } from '../../errors.ts';
import type { DeviceProgram } from '../../schedule/program.ts';
import { commitWindow } from '../../schedule/staleness.ts';
import { createStage } from '../device/create-stage.ts';
import { Mailbox } from '../device/mailbox.ts';
import type { StagePort } from '../device/stage.ts';
import type { StageOptions } from '../device/stage-graphs.ts';
import { stageOptionsOf } from '../device/stage-options.ts';
import { weightKeeping } from '../device/weight-files.ts';
import type { StatePart, ToWorker } from '../protocol/messages.ts';
import { Arrivals } from './arrivals.ts';
import type { WorkerContext } from './context.ts';
import { Departures, frozenFor } from './departures.ts';
import { checkedProgram, Layout, stageIdentity, topologyOf } from './layout.ts';
import { Superseded, sessionOf } from './layout-session.ts';
import type { Links } from './links.ts';

/** A layout has been announced: whatever waits for the one before gives up. Throws ProtocolError. */
export function announce(
  context: WorkerContext,
  links: Links,
  { plan, moves, stateCount }: ToWorker['deploy'],
  epoch: number,
): void {
  const { sequence, catalog, replicas } = context.modelFor('deploy');
  const { name } = context.options;
  const program = checkedProgram(plan, sequence, name);
  const topology = program && topologyOf(plan, program);
  const arriving = moves.filter(({ to }) => to === name);
  const partners = new Set([
    ...(topology?.peers ?? []),
    ...moves.filter(({ from }) => from === name).map(({ to }) => to),
  ]);
  for (const { from } of arriving) if (from !== null) partners.add(from);
  const before = context.session;
  const arrivals = new Arrivals({ catalog, moves: arriving, stateCount });
  context.session = { ...sessionOf(epoch), program, topology, arrivals, partners };
  replicas.interrupt();
  before.failure.fail(new Superseded());
  before.mailbox.fail(new Superseded());
  links.takeEarly();
}

/**
 * Establishes the announced layout: every device sends what others need, gets what it lacks, and reports when that is
 * done.
 */
export async function establish(
  context: WorkerContext,
  links: Links,
  { plan, round, moves, frozen = [], peers, window = 1 }: ToWorker['deploy'],
): Promise<void> {
  const { name, engine } = context.options;
  const model = context.modelFor('deploy');
  const { arrivals, program, epoch, failure } = context.session;
  model.layouts.returnTo(round);
  const departures = new Departures(model, { name, moves, frozen, round, failure });
  const send = (part: StatePart): Promise<void> =>
    departures.send(part, epoch, (to, frame, priority) => context.guard(links.peers.send(to, frame, priority)));
  const sent = links.connectPartners(peers).then(() => send('weights'));
  const done = context.guard(sent.then(() => send('optimizer')));
  context.inBackground(done.finally(() => departures.close()));
  if (program !== undefined) {
    const coming = moves.filter(({ to }) => to === name).flatMap(({ layers }) => [...model.catalog.names(layers)]);
    const arriving = new Set([...coming, ...frozenFor(name, frozen, model.catalog)]);
    await place(context, program, plan, { round, window, arriving });
  }
  await context.guard(context.explained(Promise.all([sent, arrivals?.weights])));
  if (model.layouts.current !== undefined) await ready(context, model.layouts.current);
  await context.send('deployed', { valueBytes: engine.valueBytes() });
  const { restSize } = model.training;
  if (program !== undefined && restSize !== undefined && restSize < plan.batchSize)
    void context.options.stagesAhead?.add(model, { device: program, plan, sampleCount: restSize });
}

/**
 * The stage of the new layout: the one that is here already, if it computes the same, else a new one with what this
 * device has of its state.
 */
async function place(
  context: WorkerContext,
  program: DeviceProgram,
  plan: Plan,
  {
    round,
    window,
    arriving,
  }: { readonly round: number; readonly window: number; readonly arriving: ReadonlySet<string> },
): Promise<void> {
  const model = context.modelFor('deploy');
  const { catalog, layouts } = model;
  const { arrivals, failure } = context.session;
  const options = stageOptionsOf(model, program, plan, context.options.memoryBytes);
  const key = stageIdentity(options);
  const same = layouts.takeLike(key);
  const begin = (stage: StagePort): Layout => {
    const layout = new Layout({ plan, program, stage, key }, round);
    layouts.current = layout;
    const roundCount = Math.ceil((Math.max(window, commitWindow(plan)) + 1) / 2);
    context.session.mailbox = new Mailbox(stage.mailboxBytes(plan.microBatchCount * roundCount));
    return layout;
  };
  if (same !== undefined) begin(same.stage).begin(undefined);
  else {
    const own = new Set([...catalog.names(program.layers)].filter((name) => !arriving.has(name)));
    const staying = layouts.held({ names: own, round }, failure);
    try {
      const { stage } = begin(await newStage(context, options));
      for await (const entry of staying) stage.load(entry);
    } finally {
      staying.close();
    }
  }
  const { stage } = defined(layouts.current, 'the layout');
  // A stage that stays has all that it needs, whatever others are to send: it may have been whole before the
  // coordinator knew.
  arrivals?.deliver(same === undefined ? (entry) => stage.load(entry) : () => {});
}

/**
 * Compiles a stage. One that is ready after another layout has been announced, or after the end, is disposed of at
 * once; until then the worker has not ended, and its engine is there.
 */
function newStage(context: WorkerContext, options: StageOptions): Promise<StagePort> {
  const { engine, stageStore, weightFiles, memoryBytes } = context.options;
  const keeping = weightKeeping(weightFiles, memoryBytes);
  const { createStage: create = () => createStage(engine, options, stageStore, keeping) } = context.options;
  const { session } = context;
  const creating = create(options);
  context.outlast(
    creating.then(
      (stage) => {
        if (context.session !== session || context.ended !== undefined) stage.dispose();
      },
      () => {}, // seen by the guard
    ),
  );
  return context.guard(creating);
}

/** Resolves when a round can begin: all weights are in place. */
async function ready(context: WorkerContext, layout: Layout): Promise<void> {
  if (!layout.isComplete) {
    const missing = layout.stage.missingState();
    if (missing.length > 0) throw new ProtocolError(`Nobody sent a value for ${missing.slice(0, 3).join(', ')}.`);
    if (layout.stage.finish !== undefined) await context.guard(layout.stage.finish());
    // Where nothing is trained, rounds wait for no optimizer state, and may commit before that is known to be none.
    const { isInference = false } = context.modelFor('deploy').training;
    layout.begin(isInference ? undefined : context.session.arrivals?.complete);
  }
  await context.guard(context.options.engine.settled());
}

/** Prepares this device's part in a layout that may come, while it works, and reports when that is done. */
export function reserve(context: WorkerContext, { plan, id }: ToWorker['reserve']): void {
  const model = context.modelFor('reserve');
  const program = checkedProgram(plan, model.sequence, context.options.name);
  const prepared = program && context.options.stagesAhead?.add(model, { device: program, plan });
  void Promise.resolve(prepared).then(() => context.notify('reserved', { id }));
}
