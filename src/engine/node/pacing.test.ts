import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { OnnxRuntime } from '../onnxruntime-module.ts';
import { type PacingOptions, paced, type Usage } from './pacing.ts';

/** A runtime whose runs take 100 ms of a clock that stands otherwise, and the pauses that follow them. */
async function session(
  limits: Pick<PacingOptions, 'maxCpu' | 'isCourteous'>,
  usage: () => Usage = () => ({ allMs: 0, ownMs: 0, availableMs: 0 }),
) {
  let nowMs = 0;
  const pauses: number[] = [];
  const plain = {
    run: async () => {
      nowMs += 100;
      return {};
    },
    release: async () => {},
  };
  const runtime = { Tensor: class {}, InferenceSession: { create: async () => plain } } as unknown as OnnxRuntime;
  const limited = paced(runtime, {
    ...limits,
    now: () => nowMs,
    usage,
    pause: async (milliseconds) => {
      pauses.push(Math.round(milliseconds));
      nowMs += milliseconds;
    },
  });
  const { run } = await limited.InferenceSession.create(new Uint8Array(), {});
  return { runtime, limited, pauses, run: () => run({}, []) };
}

test('without limits nothing is between', async () => {
  const { runtime, limited } = await session({ maxCpu: 1, isCourteous: false });
  assert.equal(limited, runtime);
});

test('a quarter of the time: after 100 ms of work a pause of 300 ms', async () => {
  const { run, pauses } = await session({ maxCpu: 0.25, isCourteous: false });
  for (let count = 0; count < 3; count++) await run();
  assert.deepEqual(pauses, [300, 300, 300]);
});

test('a courteous engine steps back once others use more than a quarter, and comes back when they do not', async () => {
  let seconds = 0;
  let others = 0.5;
  let othersMs = 0;
  // Two cores; each look is a second later.
  const usage = (): Usage => {
    seconds++;
    othersMs += others * 2000;
    return { allMs: othersMs + seconds * 100, ownMs: seconds * 100, availableMs: seconds * 2000 };
  };
  const { run, pauses } = await session({ maxCpu: 1, isCourteous: true }, usage);
  for (let count = 0; count < 10; count++) await run();
  assert.deepEqual(pauses, [900]);
  others = 0.1;
  await run();
  assert.deepEqual(pauses, [900]);
});
