// A worker alone with a coordinator that the test plays, and the frames that an honest one sends: two micro-batches of
// two samples, on a small net.

import { type Clock, systemClock } from '../clock.ts';
import type { Plan } from '../cluster/cluster.ts';
import type { Engine } from '../engine/engine.ts';
import { createReferenceEngine } from '../engine/reference.ts';
import { RunError } from '../errors.ts';
import { type Tensor, tensor } from '../graph/tensor.ts';
import type { PeerAddress, ToWorker } from '../runtime/protocol/messages.ts';
import { encodeModel } from '../runtime/protocol/model-transfer.ts';
import type { RunSubject } from '../runtime/protocol/run-subject.ts';
import type { WorkerEnd } from '../runtime/worker/options.ts';
import type { PeerNetwork } from '../runtime/worker/peers.ts';
import { runWorker } from '../runtime/worker/worker.ts';
import type { Frame, Link } from '../transport/link.ts';
import { createMemoryLinks } from '../transport/memory.ts';
import { handPlan } from './hand-plans.ts';
import { peerToken } from './memory-cluster.ts';
import { batches, regressionNet, subjectOf, type TestNet } from './training-subjects.ts';

export const timeout = 20_000;
/**
 * Seconds of waiting for a peer take a moment; those for the coordinator's word, which is going to come, take longer.
 */
export const hasty: Clock = {
  now: systemClock.now,
  after: (delayMs, callback) => clearLater(setTimeout(callback, delayMs > 20_000 ? delayMs : Math.min(delayMs, 3))),
};
const net: TestNet = regressionNet();
const subject: RunSubject = subjectOf(net, 4);
const { sequence, training, label } = subject;
const { bytes, parameters, buffers } = encodeModel(sequence.graph);
const layerNames = sequence.layers.map((layer) => layer.name);
export const model: ToWorker['model'] = {
  parameters,
  buffers,
  training,
  layerNames,
  labelShape: label.shape.slice(1) as number[],
  labelType: 'float32',
  peerToken,
};
export const predicted: Plan['predicted'] = { roundMs: 1, samplesPerS: 1, peakMemoryMiB: {} };
/** One device, two micro-batches of two samples. */
export const plan: Plan = {
  ...handPlan({ schedule: '1f1b', cuts: [], shares: [[2]], microBatchCount: 2 }, 4),
  predicted,
};
export const pair: Plan = {
  ...handPlan({ schedule: '1f1b', cuts: [2], shares: [[2], [2]], microBatchCount: 2 }, 4),
  predicted,
};
const batch = batches(net, subject)(0);

export function frame(
  kind: string,
  control?: unknown,
  tensors: readonly Tensor[] = [],
  place: Partial<Frame> = {},
): Frame {
  return {
    kind,
    epoch: 0,
    round: -1,
    microBatch: -1,
    ...(control === undefined ? {} : { control }),
    tensors,
    ...place,
  };
}

export const vector: (length: number) => Tensor = (length) => tensor('float32', [length], new Array(length).fill(0));
/** The model's bytes, as `modelFrame` carries them. */
export const modelBytes: Tensor = bytes;
export const modelFrame: Frame = frame('model', model, [bytes]);
export const connectFrame: Frame = frame('connect', { peers: [{ name: 'a', url: 'memory://a' }] });
export const state: readonly Frame[] = [...subject.state.parameter].map(([name, value]) =>
  frame('state', { role: 'parameter', name }, [value], { epoch: 1 }),
);
export const peers: readonly PeerAddress[] = [
  { name: 'a', url: 'memory://a' },
  { name: 'b', url: 'memory://b' },
];
const fromCheckpoint = (end: number): ToWorker['deploy']['moves'] => [{ layers: [0, end], from: null, to: 'a' }];
export const deploy: ToWorker['deploy'] = { plan, round: 0, moves: fromCheckpoint(4), stateCount: state.length, peers };
export const deployFrame: Frame = frame('deploy', deploy, [], { epoch: 1 });
export const deployPair: Frame = frame(
  'deploy',
  { ...deploy, plan: pair, moves: fromCheckpoint(2), stateCount: 4 },
  [],
  { epoch: 1 },
);
export const roundFrame: Frame = frame('round', { round: 0, learningRate: 0.1, replicate: false }, [], { epoch: 1 });

function part(value: Tensor, microBatch: number): Tensor {
  const size = value.data.length / 2;
  return {
    ...value,
    shape: [2, ...value.shape.slice(1)],
    data: value.data.slice(microBatch * size, (microBatch + 1) * size),
  } as Tensor;
}

export function feed(kind: 'input' | 'label', microBatch: number, place: Partial<Frame> = {}): Frame {
  const value = kind === 'input' ? (batch.inputs[0] as Tensor) : batch.labels;
  return frame(kind, undefined, [part(value, microBatch)], { epoch: 1, round: 0, microBatch, ...place });
}

export const data: readonly Frame[] = [feed('input', 0), feed('label', 0), feed('input', 1), feed('label', 1)];
export const snapshotFrame: Frame = frame('snapshot', { round: 1, withState: true }, [], { epoch: 1 });

function clearLater(timer: NodeJS.Timeout): () => void {
  return () => clearTimeout(timer);
}

/** A worker at work. */
export interface Session {
  readonly coordinator: Link;
  readonly end: Promise<WorkerEnd>;
  readonly received: Frame[];
  /** Resolves when the worker has sent a frame of this kind (or a further one); rejects when the link has ended. */
  until(kind: string): Promise<Frame>;
  send(...frames: readonly Frame[]): void;
}

/** Starts a worker called a. `network` replaces what it listens with. */
export function start(
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
/** A worker that trains with a peer b, which the test plays. */
export async function startWithPeer(engine?: Engine): Promise<{ worker: Session; peer: Link }> {
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
