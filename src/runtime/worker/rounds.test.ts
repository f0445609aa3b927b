// Rounds on one device, with a coordinator that the test plays: which rounds are computed, updated and prepared before
// others have committed, and which versions of the state are kept for a return.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { defined } from '../../assert.ts';
import { systemClock } from '../../clock.ts';
import { createReferenceEngine } from '../../engine/reference.ts';
import { ProtocolError } from '../../errors.ts';
import { model as control, feed, modelFrame, plan, state } from '../../testing/lone-worker.ts';
import { createMemoryLinks } from '../../transport/memory.ts';
import { createStage } from '../device/create-stage.ts';
import { Mailbox } from '../device/mailbox.ts';
import { feedName } from '../device/pieces.ts';
import { stageOptionsOf } from '../device/stage-options.ts';
import type { StateEntry } from '../device/stage-state.ts';
import { Commits } from './commits.ts';
import { WorkerContext } from './context.ts';
import { checkedProgram, Layout } from './layout.ts';
import { sessionOf } from './layout-session.ts';
import { fileData } from './links.ts';
import { Statistics } from './measuring.ts';
import { receiveModel } from './model.ts';
import { noMeters } from './options.ts';
import { Rounds } from './rounds.ts';
import { WorkReport } from './work-report.ts';

/** A device with all layers, version 0 of their state, and a backup called b. */
async function device(window: number) {
  const engine = createReferenceEngine();
  const [coordinator, link] = createMemoryLinks('coordinator', 'a');
  const context = new WorkerContext({
    ...{ name: 'a', coordinator: link, clock: systemClock, engine },
    createNetwork: () => Promise.reject(new Error('nobody calls')),
  });
  const model = receiveModel(control, modelFrame);
  const program = defined(checkedProgram(plan, model.sequence, 'a'), 'the program');
  const stage = await createStage(engine, stageOptionsOf(model, program, plan, undefined));
  for (const { control: entry, tensors } of state)
    stage.load({ ...(entry as Omit<StateEntry, 'value'>), value: defined(tensors?.[0], 'a value') });
  const layout = new Layout({ plan, program, stage, key: '' }, 0);
  layout.begin(undefined);
  model.layouts.current = layout;
  const topology = { peers: new Set<string>(), backup: 'b', kept: [] };
  const mailbox = new Mailbox(stage.mailboxBytes(plan.microBatchCount));
  Object.assign(context, { model, session: { ...sessionOf(1), program, topology, mailbox } });
  const losses: number[] = [];
  const copies: number[] = [];
  coordinator.receive(({ kind, control: result }) => {
    if (kind === 'prepared') losses.push((result as { lossSum: number }).lossSum);
  });
  const options = {
    peers: {
      send: async (_: string, { kind, round }: { kind: string; round: number }) =>
        void (kind === 'replica-end' && copies.push(round)),
      rates: () => ({}),
      rate: () => undefined,
    },
    work: new WorkReport(undefined, engine),
    statistics: new Statistics(noMeters),
    window,
  };
  const rounds = new Rounds(context, options, new Commits());
  const queued: number[] = [];
  return {
    ...{ layout, rounds, losses, copies, queued },
    /** A round is granted; `queued` has it once the next one can begin. */
    grant(round: number): void {
      for (const microBatch of [0, 1])
        for (const kind of ['input', 'label'] as const)
          fileData(context.session, feedName, feed(kind, microBatch, { round }));
      void rounds.run({ round, learningRate: 0.1, replicate: true }).then(() => queued.push(round));
    },
    async close(): Promise<void> {
      stage.dispose();
      await Promise.all([engine.close(), link.close('the test is over')]);
    },
  };
}

/** Long enough for a small net's rounds. */
async function rest(): Promise<void> {
  for (let turn = 0; turn < 20; turn++) await new Promise(setImmediate);
}

test('with a window of 1, round 1 is computed before round 0 has committed, and prepared afterwards', async () => {
  const { layout, rounds, losses, copies, queued, grant, close } = await device(1);
  grant(0);
  await rest();
  grant(1);
  await rest();
  assert.deepEqual([queued, losses.length, layout.stage.versions, copies], [[0], 1, [0, 1], [0]]);
  rounds.committed({ round: 0, gradientScale: 1 });
  await rest();
  assert.deepEqual([queued, losses.length, layout.stage.versions, copies], [[0, 1], 2, [0, 1], [0, 1]]);
  await close();
});

test('with a window of 2, round 1 is updated and prepared before round 0 has committed, round 2 is not', async () => {
  const { layout, rounds, losses, copies, queued, grant, close } = await device(2);
  grant(0);
  await rest();
  grant(1);
  await rest();
  grant(2);
  await rest();
  assert.deepEqual([queued, losses.length, layout.stage.versions, copies], [[0, 1], 2, [0, 1, 2], [0]]);
  assert.throws(() => rounds.committed({ round: 1, gradientScale: 1 }), /committed round 1, which was not prepared/);
  rounds.committed({ round: 0, gradientScale: 1 });
  await rest();
  assert.deepEqual([queued, losses.length, layout.committedRound, copies], [[0, 1, 2], 3, 1, [0, 1]]);
  rounds.committed({ round: 1, gradientScale: 1 });
  layout.release(2);
  await rest();
  assert.deepEqual([layout.committedRound, layout.stage.versions, copies], [2, [2], [0, 1, 2]]);
  await close();
});

test('a window changes no number: the losses of four rounds are the same with 1, 2 and 3', async () => {
  const found: (readonly number[])[] = [];
  for (const window of [1, 2, 3]) {
    const { rounds, losses, grant, queued, close } = await device(window);
    for (let round = 0; round < 4; round++) {
      grant(round);
      await rest();
      if (round >= window) rounds.committed({ round: round - window, gradientScale: 1 });
      await rest();
      assert.equal(queued.length, round + 1);
    }
    found.push(losses);
    await close();
  }
  assert.equal(new Set(found[0]).size, 4, 'four updates');
  assert.deepEqual(found, [found[0], found[0], found[0]]);
});

test('after a loss with a window of 2 the state returns to the last commit, and later versions go', async () => {
  const { layout, rounds, losses, grant, close } = await device(2);
  for (const round of [0, 1, 2]) {
    grant(round);
    await rest();
    if (round === 0) rounds.committed({ round: 0, gradientScale: 1 });
  }
  rounds.forget();
  assert.equal(layout.returnTo(1), true);
  assert.deepEqual([layout.committedRound, layout.stage.versions, layout.dueCopies.size], [1, [1], 0]);
  const [, second] = losses;
  grant(1);
  await rest();
  assert.deepEqual(losses.at(-1), second, 'round 1 computes with version 1 again');
  await close();
});

test('a smaller round that is not smaller than a batch is the coordinator’s mistake', async () => {
  const { rounds, layout, close } = await device(1);
  const { batchSize } = layout.plan;
  await assert.rejects(
    rounds.run({ round: 0, learningRate: 0.1, replicate: false, sampleCount: batchSize }),
    (error) =>
      error instanceof ProtocolError &&
      error.message === `The coordinator sent a smaller round of ${batchSize} samples; a batch has ${batchSize}.`,
  );
  await close();
});
