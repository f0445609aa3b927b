// What devices give each other when a layout is established: weights first, then the optimizer’s state.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { defined } from '../../assert.ts';
import type { Plan } from '../../cluster/cluster.ts';
import { createReferenceEngine } from '../../engine/reference.ts';
import { elementCount, tensor } from '../../graph/tensor.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import {
  data,
  deploy,
  deployFrame,
  frame,
  modelFrame,
  plan,
  predicted,
  roundFrame,
  type Session,
  snapshotFrame,
  start,
  startWithPeer,
  state,
  timeout,
} from '../../testing/lone-worker.ts';
import type { Frame, Link } from '../../transport/link.ts';
import type { ToPeer } from '../protocol/messages.ts';

/** What comes to a peer until all of the optimizer's state that it was to get has come. */
function framesUntilEnd(peer: Link): Promise<readonly Frame[]> {
  const frames: Frame[] = [];
  return new Promise((resolve) => {
    peer.receive((frame) => {
      frames.push(frame);
      if (frame.kind === 'state-end' && (frame.control as ToPeer['state-end']).part === 'optimizer') resolve(frames);
    });
  });
}

test('a device without a part in the plan says so, and gives what it holds to those who need it', {
  timeout,
}, async () => {
  const { worker, peer } = await startWithPeer();
  const given = framesUntilEnd(peer);
  const other: Plan = { ...plan, stages: [{ layers: [0, 4], devices: ['b'], samples: [2], inFlight: 1 }] };
  worker.send(
    frame('deploy', { ...deploy, plan: other, moves: [{ layers: [0, 2], from: 'a', to: 'b' }], stateCount: 0 }, [], {
      epoch: 2,
    }),
  );
  await worker.until('deployed');
  const sent = await given;
  assert.deepEqual(
    sent.map(({ kind, epoch, control }) => [kind, epoch, (control as { name?: string }).name]),
    [
      ...['a.weight', 'a.bias', 'b.weight', 'b.bias'].map((name) => ['state', 2, name]),
      ['state-end', 2, undefined],
      ['state-end', 2, undefined],
    ],
  );
  assert.deepEqual(
    sent.slice(-2).map(({ control }) => control),
    [
      { layers: [0, 2], part: 'weights', count: 4 },
      { layers: [0, 2], part: 'optimizer', count: 0 },
    ],
  );
  for (const [index, { tensors }] of sent.slice(0, 4).entries()) assert.deepEqual(tensors, state[index]?.tensors);
  worker.send(frame('end', { reason: 'done' }));
  await worker.end;
});

test('what others wait for leaves before a stage is compiled, which an engine in a thread of its own is busy with', {
  timeout,
}, async () => {
  const engine = createReferenceEngine();
  const { worker, peer } = await startWithPeer(engine);
  // From now on it answers in the order in which it is asked, and compiles until the test says so.
  const [compile, download] = [engine.compile.bind(engine), engine.download.bind(engine)];
  let [before, finish]: [Promise<void>, () => void] = [Promise.resolve(), () => {}];
  let compileCount = 0;
  engine.compile = (graph) => {
    if (compileCount++ === 0)
      before = new Promise((resolve) => {
        finish = resolve;
      });
    return before.then(() => compile(graph));
  };
  engine.download = (value) => {
    const [content, turn] = [download(value), before];
    return turn.then(() => content);
  };
  const arrived = new Promise<void>((resolve) => {
    peer.receive(({ kind }) => {
      if (kind === 'state-end') resolve();
    });
  });
  const narrow: Plan = {
    ...handPlan({ schedule: '1f1b', cuts: [1], shares: [[2], [2]], microBatchCount: 2 }, 4),
    predicted,
  };
  worker.send(
    frame('deploy', { ...deploy, plan: narrow, moves: [{ layers: [1, 2], from: 'a', to: 'b' }], stateCount: 0 }, [], {
      epoch: 2,
    }),
  );
  await arrived;
  assert.ok(compileCount > 0 && !worker.received.some(({ kind, epoch }) => kind === 'deployed' && epoch === 2));
  finish();
  await worker.until('deployed');
  worker.send(frame('end', { reason: 'done' }));
  await worker.end;
});

/** The frames with which a peer gives layers [2, 4) away, one part of their state. */
function framesOf(entries: readonly Frame[], part: ToPeer['state-end']['part']): readonly Frame[] {
  const end = frame('state-end', { layers: [2, 4], part, count: entries.length }, [], { epoch: 2, round: 0 });
  return [...entries.map((entry) => ({ ...entry, epoch: 2, round: 0 })), end];
}

/** The first round of the layout of epoch `epoch`. */
function roundOf(epoch: number): readonly Frame[] {
  return [roundFrame, ...data].map((one) => ({ ...one, epoch }));
}

/** A worker that is to take layers [2, 4) over from a peer. */
async function takingOver(): Promise<{ worker: Session; peer: Link }> {
  const { worker, peer } = await startWithPeer();
  const moves = [{ layers: [2, 4], from: 'b', to: 'a' }];
  worker.send(frame('deploy', { ...deploy, moves, stateCount: 0 }, [], { epoch: 2 }));
  return { worker, peer };
}

/** A worker's state after the first round, by role and name. */
async function committed(worker: Session): Promise<Map<string, readonly number[]>> {
  worker.send(frame('commit', { round: 0, gradientScale: 1 }), snapshotFrame);
  await worker.until('snapshot-end');
  const sent = worker.received.filter(({ kind }) => kind === 'state');
  worker.send(frame('end', { reason: 'done' }));
  await worker.end;
  return new Map(
    sent.map(({ control, tensors }) => {
      const { role, name } = control as { role: string; name: string };
      return [`${role} ${name}`, [...(defined(tensors?.[0], name).data as Float32Array)]];
    }),
  );
}

async function turns(count: number): Promise<void> {
  for (let turn = 0; turn < count; turn++) await new Promise(setImmediate);
}

test('a round begins with weights alone; its update waits for the optimizer’s state', {
  timeout,
}, async () => {
  // One device has all from the beginning: the momentum after its first update is the gradient.
  const alone = start();
  alone.send(modelFrame);
  await alone.until('ready');
  alone.send(deployFrame, ...state);
  await alone.until('deployed');
  alone.send(...roundOf(1));
  await alone.until('prepared');
  const fresh = await committed(alone);

  const { worker, peer } = await takingOver();
  for (const one of framesOf(state.slice(4), 'weights')) await peer.send(one, 'control');
  await worker.until('deployed');
  worker.send(...roundOf(2));
  await turns(100);
  assert.ok(!worker.received.some(({ kind }) => kind === 'prepared'));
  const names = [...fresh.keys()]
    .filter((key) => key.startsWith('optimizer '))
    .map((key) => key.slice('optimizer '.length));
  const late = names.slice(4).map((name, index) => {
    const { shape } = defined(state[4 + index]?.tensors?.[0], name);
    const values = new Array(elementCount(shape)).fill(index + 1);
    return frame('state', { role: 'optimizer', name }, [tensor('float32', shape, values)]);
  });
  for (const one of framesOf(late, 'optimizer')) await peer.send(one, 'control');
  await worker.until('prepared');
  const continued = await committed(worker);
  // Momentum 0.9, learning rate 0.1.
  for (const [key, values] of fresh) {
    const index = names.slice(4).findIndex((name) => key.endsWith(name) || key === `parameter ${name.split('/')[0]}`);
    const before = index < 0 ? 0 : 0.9 * (index + 1);
    const expected = values.map((value) => (key.startsWith('optimizer') ? value + before : value - 0.1 * before));
    const found = continued.get(key) as readonly number[];
    assert.equal(found.length, expected.length, key);
    for (const [place, value] of expected.entries())
      assert.ok(Math.abs((found[place] as number) - value) < 1e-6, `${key}[${place}]`);
  }
  assert.equal(continued.size, fresh.size);
});

test('a layout whose optimizer state has not come is no source for the next one: what it came from is', {
  timeout,
}, async () => {
  const { worker, peer } = await takingOver();
  for (const one of framesOf(state.slice(4), 'weights')) await peer.send(one, 'control');
  await worker.until('deployed');
  worker.send(...roundOf(2));
  await turns(20);
  const given = framesUntilEnd(peer);
  const other: Plan = { ...plan, stages: [{ layers: [0, 4], devices: ['b'], samples: [2], inFlight: 1 }] };
  worker.send(
    frame('deploy', { ...deploy, plan: other, moves: [{ layers: [0, 4], from: 'a', to: 'b' }], stateCount: 0 }, [], {
      epoch: 3,
    }),
  );
  const sent = await given;
  const names = sent.filter(({ kind }) => kind === 'state').map(({ control }) => (control as ToPeer['state']).name);
  assert.deepEqual(names, ['a.weight', 'a.bias', 'b.weight', 'b.bias']); // its stage of the layout before, [0, 2)
  for (const [index, { tensors }] of sent.slice(0, 4).entries()) assert.deepEqual(tensors, state[index]?.tensors);
  worker.send(frame('end', { reason: 'done' }));
  await worker.end;
});
