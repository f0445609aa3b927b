// A worker alone with a coordinator that the test plays: what it answers, what it refuses, and how it ends.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type Clock, systemClock } from '../../clock.ts';
import type { Plan } from '../../cluster/cluster.ts';
import type { Engine } from '../../engine/engine.ts';
import { createReferenceEngine } from '../../engine/reference.ts';
import { RunError } from '../../errors.ts';
import { type Tensor, tensor } from '../../graph/tensor.ts';
import { createRandom } from '../../random.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import { cut, peerToken } from '../../testing/memory-cluster.ts';
import { mutate } from '../../testing/mutations.ts';
import { batches, regressionNet, subjectOf } from '../../testing/training-subjects.ts';
import { mutateJson } from '../../testing/wrong-messages.ts';
import type { Frame, Link } from '../../transport/link.ts';
import { createMemoryLinks } from '../../transport/memory.ts';
import type { ToWorker } from '../messages.ts';
import { encodeModel } from '../model-transfer.ts';
import type { PeerNetwork } from './peers.ts';
import { runWorker, type WorkerEnd } from './worker.ts';

const timeout = 20_000;
/** Seconds of waiting for a peer take a moment; those for the coordinator's word, which is going to come, take longer. */
const hasty: Clock = {
  now: systemClock.now,
  after: (delayMs, callback) => clearLater(setTimeout(callback, delayMs > 20_000 ? delayMs : Math.min(delayMs, 3))),
};
const net = regressionNet();
const subject = subjectOf(net, 4);
const { sequence, training, label } = subject;
const { bytes, parameters, buffers } = encodeModel(sequence.graph);
const layerNames = sequence.layers.map((layer) => layer.name);
const model: ToWorker['model'] = {
  parameters,
  buffers,
  training,
  layerNames,
  labelShape: label.shape.slice(1) as number[],
  labelType: 'float32',
  peerToken,
};
const predicted = { roundMs: 1, samplesPerS: 1, peakMemoryMiB: {} };
/** One device, two micro-batches of two samples. */
const plan: Plan = { ...handPlan({ schedule: '1f1b', cuts: [], shares: [[2]], microBatchCount: 2 }, 4), predicted };
const pair: Plan = { ...handPlan({ schedule: '1f1b', cuts: [2], shares: [[2], [2]], microBatchCount: 2 }, 4), predicted };
const batch = batches(net, subject)(0);

function frame(kind: string, control?: unknown, tensors: readonly Tensor[] = [], place: Partial<Frame> = {}): Frame {
  return { kind, epoch: 0, round: -1, microBatch: -1, ...(control === undefined ? {} : { control }), tensors, ...place };
}

const vector = (length: number): Tensor => tensor('float32', [length], new Array(length).fill(0));
const modelFrame = frame('model', model, [bytes]);
const connectFrame = frame('connect', { peers: [{ name: 'a', url: 'memory://a' }] });
const state = [...subject.state.parameter].map(([name, value]) => frame('state', { role: 'parameter', name }, [value], { epoch: 1 }));
const peers = [
  { name: 'a', url: 'memory://a' },
  { name: 'b', url: 'memory://b' },
];
const fromCheckpoint = (end: number): ToWorker['deploy']['moves'] => [{ layers: [0, end], from: null, to: 'a' }];
const deploy: ToWorker['deploy'] = { plan, round: 0, moves: fromCheckpoint(4), stateCount: state.length, peers };
const deployFrame = frame('deploy', deploy, [], { epoch: 1 });
const deployPair = frame('deploy', { ...deploy, plan: pair, moves: fromCheckpoint(2), stateCount: 4 }, [], { epoch: 1 });
const roundFrame = frame('round', { round: 0, learningRate: 0.1, replicate: false }, [], { epoch: 1 });

function part(value: Tensor, microBatch: number): Tensor {
  const size = value.data.length / 2;
  return { ...value, shape: [2, ...value.shape.slice(1)], data: value.data.slice(microBatch * size, (microBatch + 1) * size) } as Tensor;
}

function feed(kind: 'input' | 'label', microBatch: number, place: Partial<Frame> = {}): Frame {
  const value = kind === 'input' ? (batch.inputs[0] as Tensor) : batch.labels;
  return frame(kind, undefined, [part(value, microBatch)], { epoch: 1, round: 0, microBatch, ...place });
}

const data = [feed('input', 0), feed('label', 0), feed('input', 1), feed('label', 1)];
const snapshotFrame = frame('snapshot', { round: 1, withState: true }, [], { epoch: 1 });

function clearLater(timer: NodeJS.Timeout): () => void {
  return () => clearTimeout(timer);
}

interface Session {
  readonly coordinator: Link;
  readonly end: Promise<WorkerEnd>;
  readonly received: Frame[];
  /** Resolves when the worker has sent a frame of this kind (or a further one); rejects when the link has ended. */
  until(kind: string): Promise<Frame>;
  send(...frames: readonly Frame[]): void;
}

/** Starts a worker called a. `network` replaces what it listens with. */
function start(
  network: Partial<PeerNetwork> = {},
  onListen: (accept: (link: Link) => void) => void = () => {},
  engine: Engine = createReferenceEngine(),
): Session {
  const [coordinator, link] = createMemoryLinks('coordinator', 'a');
  const received: Frame[] = [];
  let check = (): void => {};
  coordinator.receive((sent) => {
    received.push(sent);
    check();
  });
  const serve = async (): Promise<WorkerEnd> => {
    try {
      return await runWorker({
        name: 'a',
        coordinator: link,
        clock: hasty,
        engine,
        createNetwork: async (_name, _token, onLink) => {
          onListen(onLink);
          return {
            url: 'memory://a',
            connect: () => Promise.reject(new RunError('nobody listens there')),
            close: async () => {},
            ...network,
          };
        },
      });
    } finally {
      await engine.close();
    }
  };
  const end = serve();
  end.catch(() => {}); // seen by the test
  let seen = 0;
  return {
    coordinator,
    end,
    received,
    until: (kind) =>
      new Promise((resolve, reject) => {
        check = () => {
          const found = received.findIndex((sent, index) => index >= seen && sent.kind === kind);
          if (found < 0) return;
          seen = found + 1;
          resolve(received[found] as Frame);
        };
        check();
        void coordinator.ended.then(({ reason }) => reject(new Error(`the link ended before "${kind}": ${reason}`)));
      }),
    send: (...frames) => {
      for (const one of frames) void coordinator.send(one, 'control');
    },
  };
}

test('an honest coordinator gets what it asks for, up to the end', { timeout }, async () => {
  const worker = start();
  worker.send(modelFrame);
  assert.deepEqual((await worker.until('ready')).control, { listenUrl: 'memory://a' });
  worker.send(connectFrame, deployFrame, ...state);
  await worker.until('deployed');
  worker.send(roundFrame, ...data);
  const { lossSum, squaredNorm, finite, round } = (await worker.until('prepared')).control as Record<string, number>;
  assert.ok((lossSum ?? 0) > 0 && (squaredNorm ?? 0) > 0);
  assert.deepEqual([finite, round], [true, 0]);
  worker.send(frame('commit', { round: 0, gradientScale: 1 }), snapshotFrame);
  await worker.until('snapshot-end');
  const sent = worker.received.filter(({ kind }) => kind === 'state');
  assert.deepEqual(
    sent.map(({ control }) => (control as { role: string }).role),
    [...new Array(8).fill('parameter'), ...new Array(8).fill('optimizer')],
  );
  worker.send(frame('end', { reason: 'the run is done' }));
  assert.deepEqual(await worker.end, { clean: true, reason: 'the run is done' });
  await worker.coordinator.ended;
});

test('a link to the coordinator that is lost ends the worker, whatever it is at', { timeout }, async () => {
  for (const frames of [
    [],
    [modelFrame],
    [modelFrame, connectFrame, deployFrame],
    [modelFrame, deployFrame, ...state, roundFrame],
    [modelFrame, deployFrame, ...state, roundFrame, ...data],
  ]) {
    const [coordinator, link] = createMemoryLinks('coordinator', 'a');
    const engine = createReferenceEngine();
    const end = runWorker({
      name: 'a',
      coordinator: link,
      clock: hasty,
      engine,
      createNetwork: async () => ({ url: '', connect: () => Promise.reject(new RunError('no')), close: async () => {} }),
    });
    coordinator.receive(() => {});
    for (const one of frames) {
      void coordinator.send(one, 'control');
      if (one === modelFrame || one === deployFrame) for (let turn = 0; turn < 30; turn++) await new Promise(setImmediate);
    }
    for (let turn = 0; turn < 30; turn++) await new Promise(setImmediate);
    cut(coordinator, link);
    const { clean, reason } = await end;
    assert.equal(clean, false);
    assert.match(reason, /the connection was lost$/);
    await engine.close();
  }
});

/** What the worker is sent after some honest frames, and how it ends. */
const wrong: readonly (readonly [string, readonly Frame[], RegExp])[] = [
  ['an unknown kind', [frame('nonsense', {})], /The coordinator sent a message of the unknown kind "nonsense"/],
  ['no control part', [frame('model', undefined, [bytes])], /The coordinator sent a wrong "model" message/],
  ['a model without its graph', [frame('model', model)], /The coordinator sent a model without its graph/],
  ['a model that is no ONNX', [frame('model', model, [tensor('uint8', [3], [1, 2, 3])])], /not|ONNX|file/],
  [
    'a weight that the graph does not read',
    [frame('model', { ...model, parameters: [...parameters, { name: 'x', shape: [4] }] }, [bytes])],
    /does not read x as float32\[4\]/,
  ],
  [
    'a weight twice',
    [frame('model', { ...model, buffers: parameters.slice(0, 1) }, [bytes])],
    /The coordinator sent the weight a\.weight of a model twice/,
  ],
  [
    'a weight of a size that the graph does not have',
    [frame('model', { ...model, parameters: parameters.map((spec) => ({ ...spec, shape: [1e9, 1e9] })) }, [bytes])],
    /does not read a.weight as float32\[1000000000,1000000000\]/,
  ],
  [
    'other layers',
    [frame('model', { ...model, layerNames: ['x'] }, [bytes])],
    /cuts the model into other layers than the coordinator: both must run the same version/,
  ],
  ['connect before the model', [connectFrame], /The coordinator sent "connect" before a model\./],
  ['profile before the model', [frame('profile', { batchSizes: [1] })], /The coordinator sent "profile" before a model\./],
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
    [modelFrame, deployFrame, ...state, frame('round', { round: 0, learningRate: Number.POSITIVE_INFINITY, replicate: false })],
    /sent a wrong "round" message: learningRate/,
  ],
  [
    'inputs of another shape',
    [modelFrame, deployFrame, ...state, roundFrame, frame('input', undefined, [vector(10)], { epoch: 1, round: 0, microBatch: 0 })],
    /The input 0 of \(feed\) should hold x as float32\[2,5\], not float32\[10\]\./,
  ],
  [
    'inputs of another type',
    [
      modelFrame,
      deployFrame,
      ...state,
      roundFrame,
      frame('input', undefined, [tensor('int64', [2, 5], new Array(10).fill(0))], { epoch: 1, round: 0, microBatch: 0 }),
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
  ['the same input twice', [modelFrame, deployFrame, ...state, feed('input', 1), feed('input', 1)], /sent input 1 of round 0 twice/],
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

test('more data than may wait ends the link', { timeout }, async () => {
  const worker = start();
  worker.send(modelFrame);
  await worker.until('ready');
  worker.send(deployFrame, ...state);
  await worker.until('deployed');
  const quarterMiB = vector(2 ** 16);
  for (let index = 0; index < 8; index++) worker.send(frame('input', undefined, [quarterMiB], { epoch: 1, round: 9, microBatch: index }));
  assert.match((await worker.end).reason, /sent more than the \d+ bytes, or 100000 frames, that may wait here/);
});

test('data of another epoch is dropped: it neither fills the mailbox nor stands for the right data', { timeout }, async () => {
  const worker = start();
  worker.send(modelFrame);
  await worker.until('ready');
  worker.send(deployFrame, ...state);
  await worker.until('deployed');
  const mebibyte = vector(2 ** 18);
  for (const epoch of [0, 2, 4_000_000_000]) {
    for (let index = 0; index < 20; index++) worker.send(frame('input', undefined, [mebibyte], { epoch, round: 0, microBatch: index % 2 }));
  }
  worker.send(roundFrame, ...data);
  const late = (await worker.until('prepared')).control as { lossSum: number };
  const other = start();
  other.send(modelFrame);
  await other.until('ready');
  other.send(deployFrame, ...state);
  await other.until('deployed');
  other.send(roundFrame, ...data);
  const honest = (await other.until('prepared')).control as { lossSum: number };
  assert.equal(late.lossSum, honest.lossSum);
  for (const { send, end } of [worker, other]) {
    send(frame('end', { reason: 'done' }));
    assert.equal((await end).clean, true);
  }
});

/** A worker that trains with a peer b, which the test plays. */
async function startWithPeer(engine?: Engine): Promise<{ worker: Session; peer: Link }> {
  let peer: Link | undefined;
  const listen = (accept: (link: Link) => void): void => {
    const [own, other] = createMemoryLinks('a', 'b');
    peer = other;
    other.receive(() => {});
    accept(own);
  };
  const worker = start({}, listen, engine);
  worker.send(
    modelFrame,
    frame('connect', {
      peers: [
        { name: 'a', url: 'x' },
        { name: 'b', url: 'y' },
      ],
    }),
  );
  await worker.until('connected');
  worker.send(deployPair, ...state.slice(0, 4));
  await worker.until('deployed');
  return { worker, peer: peer as Link };
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
    worker.send(frame('end', { reason: 'b was put out' }));
    assert.deepEqual(await worker.end, { clean: true, reason: 'b was put out' });
    await peer.ended;
  });
}

test('peers that cannot be reached, or do not call, are told when a plan needs them; links that there are not are not measured', {
  timeout,
}, async () => {
  for (const list of [peers, [...peers].reverse()]) {
    const worker = start();
    worker.send(modelFrame, frame('connect', { peers: list }), frame('measure', { peers: ['b'] }));
    await worker.until('connected');
    assert.deepEqual((await worker.until('measured')).control, { links: [] });
    worker.send({ ...deployPair, control: { ...(deployPair.control as object), peers: list } }, ...state.slice(0, 4));
    const { peer, isFault } = (await worker.until('lost-peer')).control as Record<string, unknown>;
    assert.deepEqual([peer, isFault], ['b', false]);
    worker.send(frame('end', { reason: 'done' }));
    await worker.end;
  }
});

test('a device without a part in the plan says so, and gives what it holds to those who need it', { timeout }, async () => {
  const { worker, peer } = await startWithPeer();
  const sent: Frame[] = [];
  const ended = new Promise<void>((resolve) => {
    peer.receive((one) => {
      sent.push(one);
      if (one.kind === 'state-end') resolve();
    });
  });
  const other: Plan = { ...plan, stages: [{ layers: [0, 4], devices: ['b'], samples: [2], inFlight: 1 }] };
  worker.send(
    frame('deploy', { ...deploy, plan: other, moves: [{ layers: [0, 2], from: 'a', to: 'b' }], stateCount: 0 }, [], { epoch: 2 }),
  );
  await worker.until('deployed');
  await ended;
  assert.deepEqual(
    sent.map(({ kind, epoch, control }) => [kind, epoch, (control as { name?: string }).name]),
    [...['a.weight', 'a.bias', 'b.weight', 'b.bias'].map((name) => ['state', 2, name]), ['state-end', 2, undefined]],
  );
  assert.deepEqual(sent.at(-1)?.control, { layers: [0, 2], count: 4 });
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
  const narrow: Plan = { ...handPlan({ schedule: '1f1b', cuts: [1], shares: [[2], [2]], microBatchCount: 2 }, 4), predicted };
  worker.send(
    frame('deploy', { ...deploy, plan: narrow, moves: [{ layers: [1, 2], from: 'a', to: 'b' }], stateCount: 0 }, [], { epoch: 2 }),
  );
  await arrived;
  assert.ok(compileCount > 0 && !worker.received.some(({ kind, epoch }) => kind === 'deployed' && epoch === 2));
  finish();
  await worker.until('deployed');
  worker.send(frame('end', { reason: 'done' }));
  await worker.end;
});

test('a gradient of another epoch from a peer is dropped', { timeout }, async () => {
  const { worker, peer } = await startWithPeer();
  worker.send(roundFrame, ...data);
  const gradient = tensor('float32', [2, 7], new Array(14).fill(1));
  await peer.send(frame('gradient', undefined, [vector(3)], { epoch: 7, round: 0, microBatch: 0 }));
  for (const microBatch of [0, 1]) await peer.send(frame('gradient', undefined, [gradient], { epoch: 1, round: 0, microBatch }));
  const { squaredNorm } = (await worker.until('prepared')).control as { squaredNorm: number };
  assert.ok(squaredNorm > 0);
  worker.send(frame('end', { reason: 'done' }));
  assert.deepEqual(await worker.end, { clean: true, reason: 'done' });
  assert.deepEqual(await peer.ended, { clean: true, reason: 'done' });
});

test('a mistake of our own is told to the coordinator, closes everything, and is not hidden', { timeout }, async () => {
  let isClosed = false;
  const worker = start({
    connect: () => {
      throw new TypeError('undefined is not a function');
    },
    close: async () => {
      isClosed = true;
    },
  });
  worker.send(
    modelFrame,
    frame('connect', {
      peers: [
        { name: 'z', url: 'x' },
        { name: 'a', url: 'y' },
      ],
    }),
  );
  assert.deepEqual((await worker.until('failed')).control, { message: 'undefined is not a function' });
  await assert.rejects(worker.end, TypeError);
  assert.equal(isClosed, true);
  await worker.coordinator.ended;
});

test('links that are opened after the worker has ended are closed', { timeout }, async () => {
  let accept = (_link: Link): void => {};
  let answer = (_link: Link): void => {};
  const worker = start(
    {
      connect: () =>
        new Promise((resolve) => {
          answer = resolve;
        }),
    },
    (given) => {
      accept = given;
    },
  );
  worker.send(modelFrame);
  await worker.until('ready');
  worker.send(
    frame('connect', {
      peers: [
        { name: 'z', url: 'x' },
        { name: 'a', url: 'y' },
      ],
    }),
  );
  for (let turn = 0; turn < 10; turn++) await new Promise(setImmediate);
  worker.send(frame('end', { reason: 'over' }));
  await worker.end;
  for (const open of [answer, accept]) {
    const [own, other] = createMemoryLinks('a', 'z');
    open(own);
    assert.deepEqual(await other.ended, { clean: true, reason: 'over' });
  }
});

test('700 messages with one thing wrong: the worker ends with a reason, and never throws', { timeout: 120_000 }, async () => {
  const script: readonly Frame[] = [
    modelFrame,
    connectFrame,
    deployFrame,
    ...state.slice(0, 2),
    ...state.slice(2),
    roundFrame,
    ...data,
    frame('commit', { round: 0, gradientScale: 1 }),
    snapshotFrame,
  ];
  const controls = script.flatMap((one, index) => (one.control === undefined ? [] : [index]));
  let refusedCount = 0;
  for (let seed = 0; seed < 700; seed++) {
    const random = createRandom(seed, 0xf022);
    const index = controls[random.integer(controls.length)] as number;
    const frames = script.map((one, place) => {
      if (place !== index) return one;
      if (one === modelFrame && random.integer(3) > 0) {
        const data = mutate(bytes.data as Uint8Array, random);
        return { ...one, tensors: [{ type: 'uint8', shape: [data.length], data } as Tensor] };
      }
      return { ...one, control: mutateJson(one.control, random) };
    });
    const worker = start();
    try {
      for (const one of frames) {
        worker.send(one);
        const answer =
          one.kind === 'model'
            ? 'ready'
            : one === script[10]
              ? 'deployed'
              : one.kind === 'label' && one.microBatch === 1
                ? 'prepared'
                : undefined;
        if (answer !== undefined) await Promise.race([worker.until(answer), resting()]).catch(() => {});
      }
      await resting();
      worker.send(frame('end', { reason: 'enough' }));
      const { reason, clean } = await worker.end;
      if (!clean) refusedCount++;
      assert.ok(reason.length > 5 && !reason.includes('Please report'), reason);
    } catch (error) {
      assert.fail(`seed ${seed}, ${script[index]?.kind}: ${error instanceof Error ? error.stack : String(error)}`);
    }
    await worker.coordinator.ended;
  }
  assert.ok(refusedCount > 350, String(refusedCount));
});

/** Long enough for a small net's round. */
async function resting(): Promise<void> {
  for (let turn = 0; turn < 12; turn++) await new Promise(setImmediate);
}
