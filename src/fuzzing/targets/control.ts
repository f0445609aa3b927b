// JSON from peers: the handshake before anybody is trusted, and the control messages after it.

import assert from 'node:assert/strict';
import { isDeepStrictEqual } from 'node:util';
import type { Random } from '../../random.ts';
import { wishSchema } from '../../runtime/host/relay.ts';
import { factsSchema } from '../../runtime/protocol/device-facts.ts';
import {
  type Messages,
  parseMessage,
  type ToCoordinator,
  type ToPeer,
  type ToWorker,
} from '../../runtime/protocol/messages.ts';
import { checkedProgram, topologyOf } from '../../runtime/worker/layout.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import { regressionNet, subjectOf } from '../../testing/training-subjects.ts';
import {
  encodeHandshake,
  type Hello,
  parseAnswer,
  parseHello,
  type Refused,
  type Welcome,
} from '../../transport/handshake.ts';
import type { Frame } from '../../transport/link.ts';
import { damagedText, damagedValue, oneOf } from '../inputs.ts';
import type { Target } from '../target.ts';

const hellos: readonly Hello[] = [
  { protocol: 1, purpose: 'worker', name: 'kitchen', credential: '7K2M-Q0ZD-XW4R-9TBC' },
  {
    protocol: 1,
    purpose: 'worker',
    name: 'attic',
    credential: '',
    facts: {
      memoryMiB: 4096,
      cores: 4,
      engine: 'onnxruntime-node 1.30',
      machine: 'b2',
      cpuQuotaCores: 0.5,
      isDischarging: true,
      temperatureC: 40,
    },
  },
  {
    protocol: 1,
    purpose: 'enrol',
    name: 'cellar',
    credential: '7K2M',
    facts: { request: '-----BEGIN CERTIFICATE REQUEST-----' },
  },
  { protocol: 1, purpose: 'peer', name: 'worker-2', credential: 'x'.repeat(48) },
  { protocol: 1, purpose: 'relay', name: 'worker-2', credential: 'x'.repeat(48), facts: { to: 'worker-1' } },
];
const answers: readonly (Welcome | Refused)[] = [
  { kind: 'welcome', name: 'kitchen-2', server: 'coordinator', facts: { certificate: 'PEM', authority: 'PEM' } },
  { kind: 'refused', reason: 'the join code is wrong', retry: false },
];

const encoder = new TextEncoder();

function damagedJson(value: unknown, random: Random): string {
  return random.integer(3) === 0
    ? damagedText(JSON.stringify(value), random)
    : JSON.stringify(damagedValue(value, random));
}

/** The first message of a caller, and of a server. */
export function helloTarget(): Target<{ readonly isAnswer: boolean; readonly text: string }> {
  return {
    input(random) {
      const isAnswer = random.integer(3) === 0;
      return { isAnswer, text: damagedJson(oneOf<unknown>(isAnswer ? answers : hellos, random), random) };
    },
    take({ isAnswer, text }) {
      const parse = isAnswer ? parseAnswer : parseHello;
      const message = parse(encoder.encode(text));
      const again = parse(encoder.encode(encodeHandshake(message)));
      // As JSON: a number in the facts, which are not checked yet, may be too large for it.
      assert.equal(JSON.stringify(again), JSON.stringify(message), 'a handshake that was encoded again is another');
      if ('purpose' in message) for (const schema of [factsSchema, wishSchema]) schema.safeParse(message.facts);
    },
  };
}

const subject = subjectOf(regressionNet(), 4);
const { sequence, training } = subject;
const layout = handPlan(
  { schedule: '1f1b-overlap', cuts: [2], shares: [[3, 1], [4]], microBatchCount: 2 },
  sequence.layers.length,
);
const plan = {
  ...layout,
  forwardOnlyLayers: 0,
  compression: { activation: 'float16', allReduce: 'int8' } as const,
  predicted: { roundMs: 1, samplesPerS: 1, peakMemoryMiB: { a: 1 } },
};
const peers = [
  { name: 'a', url: 'wss://10.0.0.1:7070' },
  { name: 'b', url: 'wss://10.0.0.2:7070' },
];
const row = [1, 2, 3, 4];
const layer = { name: 'x', outputBytes: 1, weightBytes: 1, savedBytes: 1, flops: 1, batchDependent: false };

const toWorker: ToWorker = {
  model: {
    parameters: [{ name: 'a.weight', shape: [7, 5] }],
    buffers: [],
    training,
    layerNames: sequence.layers.map(({ name }) => name),
    labelShape: [2],
    labelType: 'float32',
    peerToken: 'x'.repeat(32),
  },
  connect: { peers },
  measure: { peers: ['a', 'b'] },
  profile: { batchSizes: [1, 2, 4] },
  deploy: {
    plan,
    round: 3,
    moves: [{ layers: [0, 2], from: null, to: 'a' }],
    frozen: [{ layers: [2, 4], to: 'b' }],
    stateCount: 4,
    peers,
  },
  state: { role: 'parameter', name: 'a.weight' },
  round: { round: 3, learningRate: 0.1, replicate: true },
  flush: { round: 4 },
  commit: { round: 3, gradientScale: 0.5 },
  snapshot: { round: 4, withState: true },
  release: { before: 3 },
  probe: {},
  'measure-link': { peer: 'b' },
  gone: { peer: 'b' },
  call: { peer: { name: 'b', url: 'wss://10.0.0.2:7070' }, ticket: 'x'.repeat(32) },
  reserve: { plan, id: 7 },
  end: { reason: 'the run is done' },
};
const toCoordinator: ToCoordinator = {
  ready: { listenUrl: 'ws://127.0.0.1:7000' },
  connected: {},
  measured: {
    links: [
      {
        peer: 'b',
        bandwidthMbps: 100,
        latencyMs: 1,
        sendingMsPerMiB: 2,
        receivingMsPerMiB: 3,
      },
    ],
  },
  'profile-progress': { done: 1, total: 2 },
  profiled: {
    layers: [layer, layer],
    times: { forwardMs: [row], backwardMs: [row], stepMs: [row], updateMs: row },
    cached: false,
  },
  deployed: { valueBytes: 1000 },
  prepared: {
    round: 3,
    lossSum: 1.5,
    correctCount: 2,
    squaredNorm: 1,
    finite: true,
    roundMs: 10,
    busyMs: 9,
    linkMbps: { b: 95 },
    activationBits: { b: 6 },
  },
  output: {},
  state: { role: 'optimizer', name: 'a.weight/momentum' },
  'snapshot-end': { round: 4 },
  replicated: { round: 4, layers: [0, 2] },
  heartbeat: {},
  'link-measured': { peer: 'b', bandwidthMbps: 5, latencyMs: 1 },
  alive: {},
  reserved: { id: 7 },
  'lost-peer': { peer: 'b', reason: 'the connection was lost', isFault: false },
  leaving: {},
  failed: { message: 'no room' },
  statistics: { eventLoopDelayP99Ms: 1, eventLoopDelayMaxMs: 2, peakMemoryMiB: 100 },
  trace: { round: 3, times: [{ instruction: 0, startMs: 0, endMs: 1 }] },
};
const toPeer: ToPeer = {
  state: { role: 'buffer', name: 'a.mean' },
  'state-end': { layers: [0, 2], part: 'weights', count: 4 },
  replica: { role: 'parameter', name: 'a.weight' },
  'replica-end': { layers: [0, 2], count: 4, base: -1 },
};
const samples: Readonly<Record<keyof Messages, readonly (readonly [kind: string, control: unknown])[]>> = {
  worker: Object.entries(toWorker),
  coordinator: Object.entries(toCoordinator),
  peer: Object.entries(toPeer),
};

/** A control message, with the checks that its receiver makes before it does anything. */
export function messageTarget(): Target<{ readonly to: keyof Messages; readonly frame: Frame }> {
  return {
    input(random) {
      const to = oneOf(['worker', 'worker', 'coordinator', 'coordinator', 'peer'] as const, random);
      const [kind, control] = oneOf(samples[to], random);
      // As it comes from the network: without what JSON cannot hold.
      const damaged = JSON.parse(JSON.stringify([damagedValue(control, random)]))[0] as unknown;
      return {
        to,
        frame: {
          kind: random.integer(50) === 0 ? '__proto__' : kind,
          epoch: 1,
          round: -1,
          microBatch: -1,
          control: damaged,
        },
      };
    },
    take({ to, frame }) {
      const message = parseMessage(to, frame, 'b');
      const again = parseMessage(to, { ...frame, control: JSON.parse(JSON.stringify(message.control)) }, 'b');
      assert.ok(
        isDeepStrictEqual(again.control, message.control),
        `a "${message.kind}" message that was encoded again is another`,
      );
      if (message.kind !== 'deploy') return;
      for (const { name } of peers) {
        const device = checkedProgram(message.control.plan, sequence, name);
        if (device !== undefined) topologyOf(message.control.plan, device);
      }
    },
  };
}
