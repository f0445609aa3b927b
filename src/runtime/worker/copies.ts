// Copies of a stage's state that leave a layout while it runs: to the stage's backup (Asteroid §3.4, topology-driven
// replication) and, as a snapshot, to the coordinator; and the copies that this device keeps for others. Frozen weights
// are in none of them: they never change, and the coordinator has them.

import { ProtocolError } from '../../errors.ts';
import type { Frame } from '../../transport/link.ts';
import type { StateEntry } from '../device/stage-state.ts';
import { message, type ToPeer, type ToWorker } from '../protocol/messages.ts';
import type { LayerRange } from './catalog.ts';
import type { WorkerContext } from './context.ts';
import type { Layout } from './layout.ts';
import { guarded } from './layout-session.ts';
import type { Statistics } from './measuring.ts';
import type { Peers } from './peers.ts';

/** Of a worker's links. */
type Sender = Pick<Peers, 'send'>;

/** Version `round` goes to the stage's backup as soon as it has committed. */
export function copyWhenCommitted(context: WorkerContext, layout: Layout, round: number, peers: Sender): void {
  layout.pin(round);
  layout.dueCopies.add(round);
  startDueCopy(context, layout, peers);
}

/** Starts the copy of the version that has just committed, if one is due. */
export function startDueCopy(context: WorkerContext, layout: Layout, peers: Sender): void {
  const round = layout.committedRound;
  if (layout.dueCopies.delete(round)) context.inBackground(sendCopy(context, layout, round, peers));
}

/** Sends a copy of a version, as far as it differs from the one that the backup has; with the lowest priority. */
async function sendCopy(context: WorkerContext, layout: Layout, round: number, peers: Sender): Promise<void> {
  const { epoch, topology, failure } = context.session;
  const to = topology?.backup;
  if (to === undefined) return;
  await failure.guard(layout.complete);
  const base = layout.copiedRound;
  layout.copiedRound = round;
  let count = 0;
  const names = context.modelFor('round').catalog.changing(layout.program.layers);
  const entries = layout.stage.state({ round, names, ...(base === undefined ? {} : { since: base }) });
  for await (const { role, name, value } of guarded(entries, failure)) {
    await failure.guard(peers.send(to, message('replica', { role, name }, [value], { epoch, round }), 'bulk'));
    count++;
  }
  const control = { layers: layout.program.layers, count, base: base ?? -1 };
  await failure.guard(peers.send(to, message('replica-end', control, [], { epoch, round }), 'bulk'));
}

/** A piece of a copy has come from a peer. Throws ProtocolError. */
export function copyArrived(
  context: WorkerContext,
  from: string,
  control: ToPeer['replica'],
  { round, tensors }: Frame,
): void {
  const { replicas } = context.modelFor('deploy');
  replicas.add(from, { round, layers: layersOfCopy(context, from, round) }, control, tensors?.[0]);
}

/** A peer's copy is whole. Throws ProtocolError. */
export function copyEnded(
  context: WorkerContext,
  from: string,
  control: ToPeer['replica-end'],
  { round }: Frame,
): void {
  const layers = layersOfCopy(context, from, round);
  context.modelFor('deploy').replicas.end(from, { round, layers }, control);
  context.notify('replicated', { round, layers });
}

/** The layers of which this device keeps a peer's copies. */
function layersOfCopy({ session }: WorkerContext, from: string, round: number): LayerRange {
  const kept = session.topology?.kept.find(({ owner }) => owner === from);
  if (kept === undefined || round < 0)
    throw new ProtocolError(`${from} sent a copy of its stage, which this device does not keep.`);
  return kept.layers;
}

/**
 * Sends the coordinator what training changes of the version after `round` rounds, which have all `committed`, and the
 * statistics of this device. Whatever comes in between, the answer is about the layout that was asked.
 */
export async function snapshot(
  context: WorkerContext,
  { round, withState }: ToWorker['snapshot'],
  { committed, statistics }: { readonly committed: Promise<void> | undefined; readonly statistics: Statistics },
): Promise<void> {
  const { session } = context;
  const { failure } = session;
  const { stage, complete, program } = context.running('snapshot');
  const names = context.modelFor('snapshot').catalog.changing(program.layers);
  await failure.guard(Promise.all([committed, complete]));
  for await (const { role, name, value } of guarded(withState ? stage.state({ round, names }) : noEntries(), failure))
    await failure.guard(context.send('state', { role, name }, [value], session));
  await failure.guard(context.send('statistics', statistics.report(), [], session));
  await failure.guard(context.send('snapshot-end', { round }, [], session));
}

async function* noEntries(): AsyncGenerator<StateEntry> {}
