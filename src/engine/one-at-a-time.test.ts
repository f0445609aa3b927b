import assert from 'node:assert/strict';
import { test } from 'node:test';
import { oneAtATime } from './one-at-a-time.ts';
import type { OnnxRuntime } from './onnxruntime-module.ts';

test('calls begin when those before them have ended, failed or not', async () => {
  const log: string[] = [];
  const call = async (name: string, failure?: Error): Promise<never> => {
    log.push(`${name} begins`);
    for (let turn = 0; turn < 3; turn++) await new Promise((resolve) => setImmediate(resolve));
    log.push(`${name} ends`);
    if (failure !== undefined) throw failure;
    return {} as never;
  };
  const session = { run: () => call('run', new Error('no')), release: () => call('release') };
  const create = (): Promise<typeof session> => call('create').then(() => session);
  const runtime = oneAtATime({ Tensor: class {}, InferenceSession: { create } } as unknown as OnnxRuntime);
  const made = await runtime.InferenceSession.create(new Uint8Array(), {});
  const another = runtime.InferenceSession.create(new Uint8Array(), {});
  await assert.rejects(made.run({}, []), /^Error: no$/);
  await Promise.all([another, made.release()]);
  const order = ['create', 'create', 'run', 'release'];
  assert.deepEqual(
    log,
    order.flatMap((name) => [`${name} begins`, `${name} ends`]),
  );
});
