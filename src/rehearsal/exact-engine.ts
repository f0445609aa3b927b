// The engine under the exact stage: it keeps values and counts them, and takes its time. The production's StageState
// stands on it as on any other.

import { defined } from '../assert.ts';
import type { Engine, Value } from '../engine/engine.ts';
import { byteLength, type Tensor } from '../graph/tensor.ts';
import type { VirtualProcess } from './virtual-process.ts';

/** An engine that holds values only. */
export interface ExactEngine extends Engine {
  /** Resolves when work of `takesMs` is done, after all that was queued before. */
  work(takesMs: number): Promise<void>;
  /** A value's tensor, at once. */
  peek(value: Value): Tensor;
  /** Values that have not been released. */
  valueCount(): number;
}

/** The engine of one process. */
export function createExactEngine(process: VirtualProcess): ExactEngine {
  let [freeAtMs, busyMs] = [0, 0];
  let last = Promise.resolve();
  const values = new Map<number, Tensor>();
  let handle = 0;
  let bytes = 0;
  const peek = (value: Value): Tensor => defined(values.get(value.handle), `value ${value.handle}`);
  const release = (value: Value): void => {
    bytes -= byteLength(peek(value));
    values.delete(value.handle);
  };
  return {
    name: 'exact',
    blockSize: undefined,
    compile: () => Promise.reject(new Error('the exact engine has no graphs')),
    draw: () => {
      throw new Error('the exact engine knows no fractions, and so no noise');
    },
    upload(tensor) {
      values.set(++handle, tensor);
      bytes += byteLength(tensor);
      return { type: tensor.type, shape: tensor.shape, handle };
    },
    download: (value) => Promise.resolve({ ...peek(value), data: peek(value).data.slice() }),
    take(value) {
      const tensor = peek(value);
      release(value);
      return Promise.resolve(tensor);
    },
    release,
    trim: () => {},
    settled: () => Promise.resolve(),
    computed: () => last.then(() => 0),
    valueBytes: () => bytes,
    busyMs: () => busyMs,
    close: () => last,
    work(takesMs) {
      const nowMs = process.clock.now();
      busyMs += takesMs;
      freeAtMs = Math.max(freeAtMs, nowMs) + takesMs;
      if (freeAtMs > nowMs) last = new Promise((resolve) => process.takes(freeAtMs - nowMs, resolve));
      return last;
    },
    peek,
    valueCount: () => values.size,
  };
}
