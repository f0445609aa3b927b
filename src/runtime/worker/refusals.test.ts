// What a worker refuses, of the coordinator and of peers: with one sentence, and without harm.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type Tensor, tensor } from '../../graph/tensor.ts';
import { createRandom } from '../../random.ts';
import {
  connectFrame,
  data,
  deploy,
  deployFrame,
  feed,
  frame,
  model,
  modelBytes,
  modelFrame,
  plan,
  roundFrame,
  snapshotFrame,
  start,
  startWithPeer,
  state,
  timeout,
  vector,
} from '../../testing/lone-worker.ts';
import { mutate } from '../../testing/mutations.ts';
import { mutateJson } from '../../testing/wrong-messages.ts';
import type { Frame } from '../../transport/link.ts';

const { parameters } = model;

/** What the worker is sent after some honest frames, and how it ends. */
const wrong: readonly (readonly [string, readonly Frame[], RegExp])[] = [
  ['an unknown kind', [frame('nonsense', {})], /The coordinator sent a message of the unknown kind "nonsense"/],
  ['no control part', [frame('model', undefined, [modelBytes])], /The coordinator sent a wrong "model" message/],
  ['a model without its graph', [frame('model', model)], /The coordinator sent a model without its graph/],
  ['a model that is no ONNX', [frame('model', model, [tensor('uint8', [3], [1, 2, 3])])], /not|ONNX|file/],
  [
    'a weight that the graph does not read',
    [frame('model', { ...model, parameters: [...parameters, { name: 'x', shape: [4] }] }, [modelBytes])],
    /does not read x as float32\[4\]/,
  ],
  [
    'a weight twice',
    [frame('model', { ...model, buffers: parameters.slice(0, 1) }, [modelBytes])],
    /The coordinator sent the weight a\.weight of a model twice/,
  ],
  [
    'a weight of a size that the graph does not have',
    [
      frame('model', { ...model, parameters: parameters.map((spec) => ({ ...spec, shape: [1e9, 1e9] })) }, [
        modelBytes,
      ]),
    ],
    /no room for a weight of 1000000000000000000 elements/,
  ],
  [
    'other layers',
    [frame('model', { ...model, layerNames: ['x'] }, [modelBytes])],
    /cuts the model into other layers than the coordinator: both must run the same version/,
  ],
  ['connect before the model', [connectFrame], /The coordinator sent "connect" before a model\./],
  [
    'profile before the model',
    [frame('profile', { batchSizes: [1] })],
    /The coordinator sent "profile" before a model\./,
  ],
  ['deploy before the model', [deployFrame], /The coordinator sent "deploy" before a model\./],
  ['state before the plan', [modelFrame, state[0] as Frame], /The coordinator sent state that nothing waits for\./],
  ['a round before the plan', [modelFrame, roundFrame], /The coordinator sent "round" before a plan\./],
  ['a snapshot before the plan', [modelFrame, snapshotFrame], /The coordinator sent "snapshot" before a plan\./],
  [
    'a list of peers without this one',
    [modelFrame, frame('connect', { peers: [{ name: 'z', url: 'x' }] })],
    /The list of peers lacks this worker, a\./,
  ],
  [
    'a batch that no device has room for',
    [modelFrame, frame('profile', { batchSizes: [2 ** 40] })],
    /The coordinator sent a wrong "profile" message: batchSizes.0/,
  ],
  [
    'a plan for another model',
    [modelFrame, frame('deploy', { ...deploy, plan: { ...plan, stages: [{ ...plan.stages[0], layers: [0, 9] }] } })],
    /sent a plan for 9 layers, but the model has 4/,
  ],
  [
    'a plan whose shares do not add up',
    [modelFrame, frame('deploy', { ...deploy, plan: { ...plan, stages: [{ ...plan.stages[0], samples: [1] }] } })],
    /sent a plan that cannot be run: .*adds up to 1/,
  ],
  [
    'a plan of an unknown schedule',
    [modelFrame, frame('deploy', { ...deploy, plan: { ...plan, schedule: 'best' } })],
    /sent a plan that cannot be run: There is no schedule "best"/,
  ],
  [
    'state without a value',
    [modelFrame, deployFrame, frame('state', { role: 'parameter', name: 'a.bias' })],
    /sent the parameter a.bias without its value, not as float32\[7\]/,
  ],
  [
    'state of another shape',
    [modelFrame, deployFrame, frame('state', { role: 'parameter', name: 'a.bias' }, [vector(3)])],
    /sent the parameter a.bias as float32\[3\], not as float32\[7\]/,
  ],
  [
    'state of no stage',
    [modelFrame, deployFrame, frame('state', { role: 'buffer', name: 'a.bias' }, [vector(7)])],
    /sent the buffer a.bias, which the model does not have/,
  ],
  [
    'optimizer state of no parameter',
    [modelFrame, deployFrame, frame('state', { role: 'optimizer', name: 'zzz/mean' }, [vector(7)])],
    /sent the optimizer zzz\/mean, which the model does not have/,
  ],
  [
    'the same weight for all',
    [modelFrame, deployFrame, ...new Array(8).fill(state[1])],
    /sent the parameter a.bias, which nothing waits for/,
  ],
  [
    'more state than announced',
    [modelFrame, deployFrame, ...state, state[0] as Frame],
    /sent the parameter a.weight, which nothing waits for/,
  ],
  [
    'a commit of nothing',
    [modelFrame, deployFrame, ...state, frame('commit', { round: 0, gradientScale: 1 })],
    /committed round 0, which was not prepared/,
  ],
  [
    'a number that JSON does not know',
    [
      modelFrame,
      deployFrame,
      ...state,
      frame('round', { round: 0, learningRate: Number.POSITIVE_INFINITY, replicate: false }),
    ],
    /sent a wrong "round" message: learningRate/,
  ],
  [
    'inputs of another shape',
    [
      modelFrame,
      deployFrame,
      ...state,
      roundFrame,
      frame('input', undefined, [vector(10)], { epoch: 1, round: 0, microBatch: 0 }),
    ],
    /The input 0 of \(feed\) should hold x as float32\[2,5\], not float32\[10\]\./,
  ],
  [
    'inputs of another type',
    [
      modelFrame,
      deployFrame,
      ...state,
      roundFrame,
      frame('input', undefined, [tensor('int64', [2, 5], new Array(10).fill(0))], {
        epoch: 1,
        round: 0,
        microBatch: 0,
      }),
    ],
    /should hold x as float32\[2,5\], not int64\[2,5\]/,
  ],
  [
    'too many inputs',
    [
      modelFrame,
      deployFrame,
      ...state,
      roundFrame,
      frame('input', undefined, [vector(10), vector(10)], { epoch: 1, round: 0, microBatch: 0 }),
    ],
    /should hold 1 tensors, not 2\./,
  ],
  [
    'the same input twice',
    [modelFrame, deployFrame, ...state, feed('input', 1), feed('input', 1)],
    /sent input 1 of round 0 twice/,
  ],
];

for (const [what, frames, expected] of wrong) {
  test(`${what} ends the worker with one sentence`, { timeout }, async () => {
    const worker = start();
    for (const one of frames) {
      worker.send(one);
      // Frames of data overtake control messages that wait to be handled.
      if (one === modelFrame) await worker.until('ready');
      if (one === deployFrame || (one.kind === 'deploy' && frames.indexOf(one) < frames.length - 1))
        for (let turn = 0; turn < 50; turn++) await new Promise(setImmediate);
    }
    const { clean, reason } = await worker.end;
    assert.equal(clean, false);
    assert.match(reason, expected);
    await worker.coordinator.ended;
  });
}

const wrongFromPeer: readonly (readonly [string, Frame, RegExp])[] = [
  ['an unknown kind', frame('model', model), /^b sent a frame of the unknown kind "model"\./],
  [
    'a gradient of another shape',
    frame('gradient', undefined, [vector(14)], { epoch: 1, round: 0, microBatch: 0 }),
    /The gradient 0 of b should hold \S+ as float32\[2,7\], not float32\[14\]\./,
  ],
  [
    'a gradient without a tensor',
    frame('gradient', undefined, [], { epoch: 1, round: 0, microBatch: 0 }),
    /The gradient 0 of b should hold 1 tensors, not 0\./,
  ],
  [
    'more than may wait',
    frame('gradient', undefined, [vector(2 ** 19)], { epoch: 1, round: 5, microBatch: 0 }),
    /^b sent more than the \d+ bytes/,
  ],
];

for (const [what, bad, expected] of wrongFromPeer) {
  test(`${what} from a peer is reported to the coordinator, who decides`, { timeout }, async () => {
    const { worker, peer } = await startWithPeer();
    worker.send(roundFrame, ...data);
    await peer.send(bad);
    const { peer: blamed, reason, isFault } = (await worker.until('lost-peer')).control as Record<string, string>;
    assert.deepEqual([blamed, isFault], ['b', true]);
    assert.match(reason ?? '', expected);
    worker.send(frame('end', { reason: 'b was expelled' }));
    assert.deepEqual(await worker.end, { clean: true, reason: 'b was expelled' });
    await peer.ended;
  });
}

/** An honest coordinator's frames, up to a snapshot. */
const script: readonly Frame[] = [
  modelFrame,
  connectFrame,
  deployFrame,
  ...state,
  roundFrame,
  ...data,
  frame('commit', { round: 0, gradientScale: 1 }),
  snapshotFrame,
];

/** The script with one control message, or the model's bytes, damaged. */
function damagedScript(seed: number): { readonly frames: readonly Frame[]; readonly damaged: Frame } {
  const random = createRandom(seed, 0xf022);
  const controls = script.filter(({ control }) => control !== undefined);
  const damaged = controls[random.integer(controls.length)] as Frame;
  const frames = script.map((one) => {
    if (one !== damaged) return one;
    if (one === modelFrame && random.integer(3) > 0) {
      const bytes = mutate(modelBytes.data as Uint8Array, random);
      return { ...one, tensors: [{ type: 'uint8', shape: [bytes.length], data: bytes } as Tensor] };
    }
    return { ...one, control: mutateJson(one.control, random) };
  });
  return { frames, damaged };
}

/** The answer that a coordinator waits for after the frame at `index` of the script. */
function answerTo(index: number): string | undefined {
  const one = script[index];
  if (one === modelFrame) return 'ready';
  if (one === state.at(-1)) return 'deployed';
  return one === data.at(-1) ? 'prepared' : undefined;
}

test('700 messages with one thing wrong: the worker ends with a reason, and never throws', {
  timeout: 120_000,
}, async () => {
  let refusedCount = 0;
  for (let seed = 0; seed < 700; seed++) {
    const { frames, damaged } = damagedScript(seed);
    const worker = start();
    try {
      for (const [index, one] of frames.entries()) {
        worker.send(one);
        const answer = answerTo(index);
        if (answer !== undefined) await Promise.race([worker.until(answer), resting()]).catch(() => {});
      }
      await resting();
      worker.send(frame('end', { reason: 'enough' }));
      const { reason, clean } = await worker.end;
      if (!clean) refusedCount++;
      assert.ok(reason.length > 5 && !reason.includes('Please report'), reason);
    } catch (error) {
      assert.fail(`seed ${seed}, ${damaged.kind}: ${error instanceof Error ? error.stack : String(error)}`);
    }
    await worker.coordinator.ended;
  }
  assert.ok(refusedCount > 350, String(refusedCount));
});

/** Long enough for a small net's round. */
async function resting(): Promise<void> {
  for (let turn = 0; turn < 12; turn++) await new Promise(setImmediate);
}
