import assert from 'node:assert/strict';
import { test } from 'node:test';
import { InputError, RunError } from '../errors.ts';
import type { Engine } from './engine.ts';
import { createFasterEngine } from './faster-engine.ts';

/** Engines on a clock of their own, each of which takes some time for anything, and those that were closed. */
function workshop() {
  let nowMs = 0;
  const closed: string[] = [];
  const runCounts = new Map<string, number>();
  const engine = (name: string, takesMs: number, failure?: Error): Promise<Engine> => {
    const fake: Partial<Engine> = {
      name,
      compile: async () => ({
        ...{ inputs: [], outputs: [], release: () => {} },
        run() {
          runCounts.set(name, (runCounts.get(name) ?? 0) + 1);
          return {};
        },
      }),
      upload: (tensor) => ({ ...tensor, handle: 0 }),
      release: () => {},
      async settled() {
        nowMs += takesMs;
        if (failure !== undefined) throw failure;
      },
      close: async () => void closed.push(name),
    };
    return Promise.resolve(fake as Engine);
  };
  return { engine, closed, runCounts, now: () => nowMs };
}

for (const [gpuMs, chosen, other, place] of [
  [3, 'gpu', 'cpu', 'graphics chip'],
  [1500, 'cpu', 'gpu', 'processor'],
] as const)
  test(`of 12 and ${gpuMs} ms, the ${chosen} is taken, and the other is closed`, async () => {
    const { engine, closed, runCounts, now } = workshop();
    const made = await createFasterEngine({ cpu: () => engine('cpu', 12), gpu: () => engine('gpu', gpuMs), now });
    assert.equal(made.name, chosen);
    assert.equal(
      made.choice,
      `It computes on the ${place}: a piece of a training step took 12 ms on the processor and ` +
        `${gpuMs === 3 ? '3.0' : gpuMs} ms on the graphics chip.`,
    );
    assert.deepEqual(closed, [other]);
    assert.equal(runCounts.get('gpu'), gpuMs === 3 ? 6 : 2, 'seconds are not spent on one that is hopeless');
  });

test('without a GPU, or with one that fails, the processor computes, and says why', async () => {
  const { engine, closed, now } = workshop();
  const choose = (gpu: () => Promise<Engine>): Promise<Engine> =>
    createFasterEngine({ cpu: () => engine('cpu', 12), gpu, now });
  const none = await choose(() => Promise.reject(new InputError('No graphics chip can be used here (no driver).')));
  assert.deepEqual(
    [none.name, none.choice],
    ['cpu', 'It computes on the processor: no graphics chip can be used here (no driver).'],
  );
  const failing = await choose(() => engine('gpu', 1, new RunError('The device was lost.')));
  assert.deepEqual([failing.name, failing.choice], ['cpu', 'It computes on the processor: the device was lost.']);
  assert.deepEqual(closed, ['gpu']);
  await assert.rejects(
    choose(() => Promise.reject(new TypeError('a mistake'))),
    TypeError,
  );
});
