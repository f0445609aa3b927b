// What a run's events look like: on a terminal, in plain lines, as JSON.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Plan } from '../cluster/cluster.ts';
import { processMiB } from '../cluster/memory.ts';
import type { RunEvent } from '../runtime/protocol/events.ts';
import { FakeStream } from '../testing/fake-stream.ts';
import { humanReporter, jsonReporter } from './report.ts';
import { createTerminal } from './terminal.ts';

const plan: Plan = {
  planner: 'asteroid',
  schedule: '1f1b',
  batchSize: 50,
  microBatchSize: 25,
  microBatchCount: 2,
  stages: [
    { layers: [0, 4], devices: ['board', 'laptop'], samples: [11, 14], inFlight: 2 },
    { layers: [4, 6], devices: ['mini-pc'], samples: [25], inFlight: 1 },
  ],
  predicted: { roundMs: 9.018, samplesPerS: 5544, peakMemoryMiB: { board: 4.18, laptop: 5.27, 'mini-pc': 3.71 } },
};
const layerNames = ['conv1', 'pool1', 'conv2', 'pool2', 'hidden', 'classifier'];
const cluster = {
  devices: ['board', 'laptop', 'mini-pc', 'phone'].map((name) => ({ name, memoryMiB: 4096 })),
  links: {
    default: { bandwidthMbps: 94 },
    pairs: [
      { between: ['board', 'laptop'] as const, bandwidthMbps: 94.1, latencyMs: 0.31 },
      { between: ['board', 'mini-pc'] as const, bandwidthMbps: 940, latencyMs: 12.5 },
      { between: ['laptop', 'phone'] as const, bandwidthMbps: 1440, latencyMs: 0.21 },
    ],
  },
};

function round(index: number, loss: number, samplesPerS: number): RunEvent {
  const metrics = { round: index, epoch: 0, loss, samplesPerS, lr: 0.01, accuracy: 0.5 };
  return {
    kind: 'round',
    metrics,
    endRound: 4,
    busyFraction: { 'mini-pc': 0.25, board: 0.5, laptop: 1 },
    work: { board: { processMs: 40, linksMs: 4 } },
  };
}

const joined = (device: string, cores: number, memoryMiB: number): RunEvent => ({
  kind: 'joined',
  device,
  cores,
  memoryMiB,
  engine: 'onnxruntime 1.30',
});

const statistics = (device: string, peakMemoryMiB: number): RunEvent => ({
  kind: 'statistics',
  device,
  eventLoopDelayP99Ms: 1,
  eventLoopDelayMaxMs: 2,
  peakMemoryMiB,
});

const beginning: readonly RunEvent[] = [
  { kind: 'listening', url: 'ws://192.168.1.20:7700', joinCode: '7K2M-Q0ZD', remoteCount: 4 },
  joined('laptop', 8, 16_000),
  joined('board', 4, 4096),
  joined('mini-pc', 1, 512),
  joined('phone', 8, 6000),
  { kind: 'phase', phase: 'measuring' },
  { kind: 'phase', phase: 'profiling' },
  { kind: 'profile-progress', device: 'laptop', done: 1, total: 24 },
  { kind: 'profile-progress', device: 'board', done: 12, total: 24 },
];
const middle: readonly RunEvent[] = [
  { kind: 'profiled', device: 'board', cached: false, sampleMs: 1.25 },
  { kind: 'profiled', device: 'laptop', cached: true, sampleMs: 0.1 },
  { kind: 'phase', phase: 'planning' },
  { kind: 'cluster', cluster },
  {
    kind: 'profile',
    profile: {
      ...{ model: 'm', inputBytes: 1, labelBytes: 1, layers: [], batchSizes: [1] },
      devices: Object.fromEntries(
        [3, 3, 4, 4].map((ms, index) => [
          ['board', 'laptop', 'mini-pc', 'phone'][index],
          { forwardMs: [[ms]], backwardMs: [[ms]] },
        ]),
      ),
    },
  },
  { kind: 'plan', plan, planningMs: 12.4, layerNames },
  { kind: 'left', device: 'phone', reason: 'the plan is faster without this device' },
  { kind: 'phase', phase: 'deploying' },
  { kind: 'training', firstRound: 0, endRound: 4, roundsPerEpoch: 2 },
  { kind: 'phase', phase: 'training' },
];
const opening = [
  'Waiting    for 4 workers to join; there, with the join code 7K2M-Q0ZD:',
  '             npx asteroid worker --join ws://192.168.1.20:7700 --insecure',
  'Devices    laptop    8 cores, 15.6 GiB  onnxruntime 1.30',
  '           board     4 cores, 4096 MiB  onnxruntime 1.30',
  '           mini-pc   1 core, 512 MiB  onnxruntime 1.30',
  '           phone     8 cores, 6000 MiB  onnxruntime 1.30',
];
const planned = [
  'Profile    board         800 samples/s alone',
  '           laptop     10,000 samples/s alone  measured before',
  'Links      board ↔ laptop     94 Mbps    0.31 ms',
  '           board ↔ mini-pc   940 Mbps   12.50 ms',
  '           laptop ↔ phone    1.4 Gbps    0.21 ms',
  'Profile    board, laptop: taken as equal, each as the middle of what they measured',
  'Plan       by planner "asteroid" in 12 ms',
  '           ┌ stage 0 ───────────────────┐    ┌ stage 1 ────────────────────┐',
  '           │ conv1 … pool2              │ ─▶ │ hidden … classifier         │',
  '           │ layers 0–3                 │    │ layers 4–5                  │',
  '           │ board   11 of 25  4.18 MiB │    │ mini-pc  25 of 25  3.71 MiB │',
  '           │ laptop  14 of 25  5.27 MiB │    └─────────────────────────────┘',
  '           └────────────────────────────┘',
  '           1f1b: 50 samples a round in 2 micro-batches of 25',
  '           predicted: 9.02 ms a round, 5544 samples/s',
  'Unused     phone     the plan is faster without this device',
];

interface Setup {
  readonly stream: FakeStream;
  show(events: readonly RunEvent[], atMs: number): void;
}

function setup(isTTY: boolean): Setup {
  const stream = new FakeStream({ isTTY });
  let nowMs = 0;
  const terminal = createTerminal(stream, { NO_COLOR: '1' }, () => nowMs);
  const observe = humanReporter(terminal, () => nowMs);
  return {
    stream,
    show(events, atMs) {
      nowMs = atMs;
      for (const event of events) observe(event);
    },
  };
}

test('on a terminal: who joined, the profile as it is measured, the plan, a bar that moves, the result', () => {
  const { stream, show } = setup(true);
  show(beginning, 0);
  show([{ kind: 'profile-progress', device: 'laptop', done: 24, total: 24 }], 80);
  assert.deepEqual(stream.screen(), [
    ...opening,
    'Profiling  laptop    ██████████████████████████████ 24/24 measurements',
    '           board     ███████████████░░░░░░░░░░░░░░░ 12/24 measurements',
  ]);
  show(middle, 100);
  assert.deepEqual(stream.screen(), [...opening, ...planned]);
  show([round(0, 2, 100)], 1100);
  assert.deepEqual(stream.screen(), [
    ...opening,
    ...planned,
    'Training   ███████▌░░░░░░░░░░░░░░░░░░░░░░  1 of 4 rounds  3.0 s left',
    '           epoch 1 of 2  loss 2.0000  100 samples/s',
    '           board     █████████░░░░░░░░░  50 % computing  stage 0, 11 of 25 samples',
    '           laptop    ██████████████████ 100 % computing  stage 0, 14 of 25 samples',
    '           mini-pc   ████▌░░░░░░░░░░░░░  25 % computing  stage 1',
  ]);
  show([round(1, 1, 50), round(2, 1, 50)], 2100);
  show(
    [
      statistics('board', 150),
      round(3, 1, 25),
      { kind: 'evaluated', round: 4, accuracy: 0.98267, loss: 0.0963, sampleCount: 1500 },
    ],
    3100,
  );
  show([statistics('board', 201.4), statistics('phone', 120), statistics('board', 201.4)], 3200);
  assert.deepEqual(stream.screen().slice(opening.length + planned.length), [
    'Training   ██████████████████████████████  4 of 4 rounds  3.0 s',
    // 0.1 a round towards the newest loss; 4 / (1/100 + 1/50 + 1/50 + 1/25).
    '           epoch 2 of 2  loss 1.7290  44 samples/s',
    '           board     █████████░░░░░░░░░  50 % computing  stage 0, 11 of 25 samples',
    '           laptop    ██████████████████ 100 % computing  stage 0, 14 of 25 samples',
    '           mini-pc   ████▌░░░░░░░░░░░░░  25 % computing  stage 1',
    'Test       accuracy 98.27 %, loss 0.0963 on 1,500 test samples',
    `Memory     board     at most 201 MiB; predicted ${processMiB + 4} MiB: ` +
      `4.18 MiB to train, ${processMiB} MiB for the process`,
    '           phone     at most 120 MiB',
  ]);
});

test('off a terminal: plain lines, with the first round, the last, and one every five seconds', () => {
  const { stream, show } = setup(false);
  show([...beginning, ...middle], 0);
  show([round(0, 2, 100)], 1000);
  show([round(1, 1, 100)], 5900);
  show([round(2, 1, 100)], 6000);
  show([round(3, 1, 100)], 6100);
  show([{ kind: 'evaluated', round: 4, accuracy: null, loss: 0.5, sampleCount: 1 }], 6200);
  assert.deepEqual(stream.text.trimEnd().split('\n'), [
    ...opening,
    ...planned,
    'Training   round 1/4  epoch 1 of 2  loss 2.0000  100 samples/s  3.0 s left',
    '           round 3/4  epoch 2 of 2  loss 1.8100  100 samples/s  2.0 s left',
    '           round 4/4  epoch 2 of 2  loss 1.7290  100 samples/s  0 ms left',
    'Test       loss 0.5000 on 1 test sample',
  ]);
});

test('a lost device, a warning and a note have their own lines; the bar stays as it was', () => {
  const { stream, show } = setup(true);
  show([...middle.slice(-2), round(0, 2, 100)], 0);
  show(
    [
      { kind: 'warning', message: 'The disk is full.' },
      { kind: 'note', message: 'The model was exported for batches of 16.' },
      { kind: 'left', device: 'board', reason: 'its connection was reset' },
      { kind: 'cool-down', device: 'board', departureCount: 1, seconds: 4.26 },
      { kind: 'cool-down', device: 'board', departureCount: 6, seconds: 158.7 },
      { kind: 'memory-lowered', device: 'board', fromMiB: 240, toMiB: 120, killCount: 1 },
      { kind: 'memory-lowered', device: 'phone', fromMiB: 240, toMiB: 0, killCount: 1 },
      { kind: 'checked', roundMs: 1242.4, plannedMs: 1131.6 },
      { kind: 'checked', roundMs: 9.018, plannedMs: 0 },
      { kind: 'failed', message: 'written to stderr' },
    ],
    10,
  );
  assert.deepEqual(stream.screen().slice(0, 10), [
    'Warning    The disk is full.',
    'Note       The model was exported for batches of 16.',
    'Lost       board left: its connection was reset',
    'Devices    board has left once: it gets no work for at least 4.3 s',
    '           board has left 6 times: it gets no work for at least 2 min 39 s',
    'Memory     board was killed by its system for lack of memory: ' +
      'plans count on 120 MiB of it from now on, instead of 240 MiB',
    '           phone was killed by its system for lack of memory: it gets no work in this run',
    'Checked    a round takes 1.24 s by what its stages took so far, 1.13 s as planned',
    '           a round takes 9.02 ms by what its stages took so far',
    'Training   ███████▌░░░░░░░░░░░░░░░░░░░░░░  1 of 4 rounds  0 ms left',
  ]);
});

test('a plan from a file predicts nothing and took no time', () => {
  const { stream, show } = setup(false);
  const single = {
    ...plan,
    microBatchSize: 50,
    microBatchCount: 1,
    stages: [{ layers: [0, 6] as const, devices: ['board'], samples: [50], inFlight: 1 }],
  };
  show(
    [
      {
        kind: 'plan',
        plan: { ...single, predicted: { roundMs: 0, samplesPerS: 0, peakMemoryMiB: {} } },
        planningMs: 0,
        layerNames,
      },
    ],
    0,
  );
  assert.deepEqual(stream.text.trimEnd().split('\n'), [
    'Plan       as given',
    '           ┌ stage 0 ───────────┐',
    '           │ conv1 … classifier │',
    '           │ layers 0–5         │',
    '           │ board  50 of 50    │',
    '           └────────────────────┘',
    '           1f1b: 50 samples a round in 1 micro-batch of 50',
  ]);
});

test('as JSON: a line for each event, none for progress; a round as in metrics.jsonl, and busy devices', () => {
  const lines: string[] = [];
  const observe = jsonReporter((line) => lines.push(line));
  observe({ kind: 'profile-progress', device: 'board', done: 1, total: 2 });
  observe({ kind: 'trace', device: 'board', round: 0, times: [] });
  observe({ kind: 'left', device: 'board', reason: 'it was stopped\nby its owner' });
  observe(round(3, 0.25, 100));
  assert.deepEqual(lines, [
    '{"event":"left","device":"board","reason":"it was stopped\\nby its owner"}',
    '{"event":"round","round":3,"epoch":0,"loss":0.25,"samplesPerS":100,"lr":0.01,"accuracy":0.5,' +
      '"busyFraction":{"mini-pc":0.25,"board":0.5,"laptop":1},"work":{"board":{"processMs":40,"linksMs":4}}}',
  ]);
});
