import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Clock } from '../../clock.ts';
import type { Plan } from '../../cluster/cluster.ts';
import type { RunEvent } from '../protocol/events.ts';
import { TrainMetrics } from './train-metrics.ts';

const plan = {
  ...{ planner: 'best', schedule: '1f1b', batchSize: 40, microBatchSize: 10 },
  stages: [
    { layers: [0, 2], devices: ['a'], shares: [10], inFlight: 2 },
    { layers: [2, 4], devices: ['b'], shares: [10], inFlight: 1 },
  ],
  predicted: { roundMs: 250, samplesPerS: 160, peakMemoryMiB: { a: 2, b: 1 } },
} as unknown as Plan;

const joined = (device: string): RunEvent => ({
  ...{ kind: 'joined', device, cores: 4, memoryMiB: 100, engine: 'onnxruntime' },
});

const round = (index: number, loss: number): RunEvent => ({
  kind: 'round',
  metrics: { round: index, epoch: 0, loss, samplesPerS: 160, lr: 0.1, accuracy: 0.5 },
  endRound: 9,
  busyFraction: { a: 0.75, b: 0.5 },
  work: {},
});

const clockAt = (nowMs: number): Pick<Clock, 'now'> & { nowMs: number } => ({
  nowMs,
  now() {
    return this.nowMs;
  },
});

/** Values by name and labels. */
function valuesOf(text: string): Record<string, number> {
  const lines = text.trimEnd().split('\n');
  const form = /^(?:# (?:HELP|TYPE) asteroid_\w+ .+|asteroid_\w+(?:\{(?:\w+="(?:[^"\\\n]|\\["\\n])*",?)+\})? \S+)$/;
  for (const line of lines) assert.match(line, form);
  const values = lines
    .filter((line) => !line.startsWith('#'))
    .map((line) => line.split(/ (?=\S+$)/) as [string, string]);
  assert.equal(new Set(values.map(([name]) => name)).size, values.length, 'a value is told twice');
  return Object.fromEntries(values.map(([name, value]) => [name.replace('asteroid_', ''), Number(value)]));
}

test('a run is told as its events say: rounds, samples, times, devices, what the plan expects', () => {
  const clock = clockAt(0);
  const metrics = new TrainMetrics('net "x"\\1', clock);
  for (const event of [joined('a'), joined('b')]) metrics.observe(event);
  metrics.observe({ kind: 'deployment', plan });
  metrics.observe({ kind: 'phase', phase: 'training' });
  metrics.observe({ kind: 'load', device: 'a', usedCores: 0.9, residentMiB: 3 });
  metrics.observe(round(4, 2));
  clock.nowMs = 300;
  metrics.observe(round(5, 1.5));
  metrics.observe({ kind: 'evaluated', round: 6, accuracy: 0.875, loss: 0.25, sampleCount: 8 });
  metrics.observe({ kind: 'checkpoint', round: 6, path: 'x' });
  assert.deepEqual(valuesOf(metrics.text(5)), {
    'run_info{model="net \\"x\\"\\\\1",phase="training"}': 1,
    ...{ rounds_total: 2, samples_total: 80, layout_changes_total: 0, repeated_rounds_total: 0, warnings_total: 0 },
    ...Object.fromEntries([0.005, 0.01, 0.025, 0.05, 0.1, 0.25].map((le) => [`round_seconds_bucket{le="${le}"}`, 0])),
    ...Object.fromEntries([0.5, 1, 2.5, 5, 10, 30, 60, '+Inf'].map((le) => [`round_seconds_bucket{le="${le}"}`, 1])),
    ...{ round_seconds_sum: 0.3, round_seconds_count: 1 },
    ...{ round: 6, end_round: 9, epoch: 0, loss: 1.5, samples_per_second: 160, learning_rate: 0.1 },
    ...{ batch_accuracy: 0.5, test_accuracy: 0.875, test_loss: 0.25, checkpoint_round: 6 },
    ...{ plan_stages: 2, predicted_round_seconds: 0.25, devices: 2 },
    ...{ 'device_up{device="a"}': 1, 'device_up{device="b"}': 1 },
    ...{ 'device_departures_total{device="a"}': 0, 'device_departures_total{device="b"}': 0 },
    ...{ 'device_busy_ratio{device="a"}': 0.75, 'device_busy_ratio{device="b"}': 0.5 },
    ...{ 'device_cpu_cores{device="a"}': 0.9, 'device_resident_bytes{device="a"}': 3 * 2 ** 20 },
    ...{ 'device_predicted_bytes{device="a"}': 162 * 2 ** 20, 'device_predicted_bytes{device="b"}': 161 * 2 ** 20 },
    resident_bytes: 5,
  });
});

test('a device that left is told as gone, and the pause is no round', () => {
  const clock = clockAt(0);
  const metrics = new TrainMetrics('net', clock);
  for (const event of [joined('a'), joined('b')]) metrics.observe(event);
  metrics.observe({ kind: 'deployment', plan });
  metrics.observe({ kind: 'phase', phase: 'training' });
  metrics.observe(round(0, Number.NaN));
  metrics.observe({ kind: 'left', device: 'b', reason: 'the connection was lost' });
  const alone = { ...plan, stages: plan.stages.slice(0, 1) };
  metrics.observe({
    ...{ kind: 'recovering', cause: 'b left', lost: ['b'], plan: alone, round: 1, repeatedRounds: 3 },
    ...{ source: 'devices', movedMiB: 0 },
  });
  metrics.observe({ kind: 'phase', phase: 'deploying' });
  clock.nowMs = 9000;
  metrics.observe({ kind: 'recovered', cause: 'b left', round: 1, seconds: 0.4 });
  metrics.observe({ kind: 'phase', phase: 'training' });
  metrics.observe(round(1, 1));
  metrics.observe({ kind: 'failed', message: 'x' });
  const values = valuesOf(metrics.text(5));
  assert.equal(values['run_info{model="net",phase="failed"}'], 1);
  assert.equal(values['round_seconds_count'], 0);
  assert.equal(values['device_up{device="b"}'], 0);
  assert.equal(values['device_departures_total{device="b"}'], 1);
  assert.equal(values['device_busy_ratio{device="b"}'], undefined);
  assert.deepEqual([values['devices'], values['layout_changes_total'], values['repeated_rounds_total']], [1, 1, 3]);
  assert.deepEqual([values['recovery_seconds'], values['plan_stages'], values['loss']], [0.4, 1, 1]);
});
