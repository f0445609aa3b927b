import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { OnnxRuntime } from '../engine/onnxruntime-module.ts';
import { yielding } from './yielding.ts';

test('runs that follow each other for 10 ms let others go first', async () => {
  const log: string[] = [];
  let nowMs = 0;
  const session = {
    release: async () => {},
    run: async () => {
      log.push('run');
      nowMs += 6;
      return {};
    },
  };
  const runtime = { Tensor: class {}, InferenceSession: { create: async () => session } } as unknown as OnnxRuntime;
  const adapted = yielding(runtime, { now: () => nowMs, turn: async () => void log.push('turn') });
  const { run } = await adapted.InferenceSession.create(new Uint8Array(), {});
  for (let count = 0; count < 5; count++) await run({}, []);
  assert.deepEqual(log, ['run', 'run', 'turn', 'run', 'run', 'turn', 'run']);
});
