import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Plan } from './cluster.ts';
import { drawPlan } from './draw.ts';

const layerNames = ['conv1', 'relu1', 'conv2', 'relu2', 'pool', 'fc'];

const plan: Plan = {
  planner: 'asteroid',
  schedule: '1f1b',
  batchSize: 64,
  microBatchSize: 16,
  microBatchCount: 4,
  stages: [
    { layers: [0, 4], devices: ['nano-1', 'nx'], samples: [5, 11], inFlight: 3 },
    { layers: [4, 6], devices: ['tx2'], samples: [16], inFlight: 1 },
  ],
  predicted: { roundMs: 1234.5, samplesPerS: 51.84, peakMemoryMiB: { 'nano-1': 94.25, nx: 201.7, tx2: 12000 } },
};

test('two stages side by side, with speed and memory', () => {
  assert.equal(
    drawPlan(plan, layerNames),
    `
┌ stage 0 ───────────────────┐    ┌ stage 1 ────────────────┐
│ conv1 … relu2              │ ─▶ │ pool … fc               │
│ layers 0–3                 │    │ layers 4–5              │
│ nano-1   5 of 16  94.3 MiB │    │ tx2  16 of 16  11.7 GiB │
│ nx      11 of 16   202 MiB │    └─────────────────────────┘
└────────────────────────────┘
1f1b: 64 samples a round in 4 micro-batches of 16
predicted: 1.23 s a round, 51.8 samples/s`.slice(1),
  );
});

test('without a prediction, and with one layer', () => {
  const { predicted: _, ...layout } = {
    ...plan,
    microBatchCount: 1,
    batchSize: 16,
    stages: [{ layers: [0, 1] as const, devices: ['a'], samples: [16], inFlight: 1 }],
  };
  assert.equal(
    drawPlan(layout, ['only']),
    `
┌ stage 0 ────┐
│ only        │
│ layer 0     │
│ a  16 of 16 │
└─────────────┘
1f1b: 16 samples a round in 1 micro-batch of 16`.slice(1),
  );
});

test('what does not fit continues in the next row, and long names are cut', () => {
  const stages = [0, 1, 2].map((stage) => ({
    layers: [2 * stage, 2 * stage + 2] as const,
    devices: [`device-${stage}`],
    samples: [16],
    inFlight: 1,
  }));
  const names = layerNames.map((name, index) => (index === 0 ? 'features.denseblock1.denselayer1' : name));
  assert.equal(
    drawPlan({ ...plan, stages }, names, 60),
    `
   ┌ stage 0 ─────────────────────┐
   │ features.denseblock… … relu1 │
   │ layers 0–1                   │
   │ device-0  16 of 16           │
   └──────────────────────────────┘
   ┌ stage 1 ───────────┐    ┌ stage 2 ───────────┐
─▶ │ conv2 … relu2      │ ─▶ │ pool … fc          │
   │ layers 2–3         │    │ layers 4–5         │
   │ device-1  16 of 16 │    │ device-2  16 of 16 │
   └────────────────────┘    └────────────────────┘
1f1b: 64 samples a round in 4 micro-batches of 16
predicted: 1.23 s a round, 51.8 samples/s`.slice(1),
  );
});

test('never wider than asked', () => {
  const stages = Array.from({ length: 7 }, (_, stage) => ({
    layers: [stage, stage + 1] as const,
    devices: Array.from({ length: 3 * stage + 1 }, (_, index) => `board-${stage}-${index}`),
    samples: Array.from({ length: 3 * stage + 1 }, () => 1),
    inFlight: 1,
  }));
  for (const width of [52, 60, 100]) {
    const lines = drawPlan({ ...plan, stages }, [], width).split('\n');
    assert.ok(
      lines.every((line) => line.length <= width),
      `${width}: ${lines.find((line) => line.length > width)}`,
    );
    assert.match(lines.join('\n'), /and 12 more devices/);
  }
});
