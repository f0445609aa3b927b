import assert from 'node:assert/strict';
import { test } from 'node:test';
import { InputError } from '../errors.ts';
import { engineSuite } from '../testing/engine-suite.ts';
import { createOnnxRuntimeNodeEngine } from './onnxruntime-node.ts';

engineSuite('onnxruntime-node in this thread', () => createOnnxRuntimeNodeEngine(), { isThreaded: false });
engineSuite('onnxruntime-node with two threads', () => createOnnxRuntimeNodeEngine({ threadCount: 2 }), { isThreaded: false });

test('the name says what computes and with how many threads', async () => {
  const engine = await createOnnxRuntimeNodeEngine({ threadCount: 2 });
  assert.match(engine.name, /^onnxruntime-node \d+\.\d+\.\d+ cpu \(2 threads\)$/);
  await engine.close();
});

test('a missing package is an input error that says what to do', async () => {
  const load = (): Promise<never> => Promise.reject(Object.assign(new Error('Cannot find package'), { code: 'ERR_MODULE_NOT_FOUND' }));
  await assert.rejects(
    createOnnxRuntimeNodeEngine({ load }),
    (error) => error instanceof InputError && /npm install onnxruntime-node.*"reference"/.test(error.message),
  );
});

test('a package that does not load is an input error with its reason', async () => {
  const load = (): Promise<never> => Promise.reject(new Error('GLIBC_2.38 not found'));
  await assert.rejects(createOnnxRuntimeNodeEngine({ load }), (error) => error instanceof InputError && /GLIBC_2\.38/.test(error.message));
});
