import assert from 'node:assert/strict';
import { test } from 'node:test';
import { InputError } from '../errors.ts';
import { engineSuite } from '../testing/engine-suite.ts';
import { createOnnxRuntimeHereEngine } from './node/onnxruntime-here.ts';
import { createOnnxRuntimeWebEngine } from './onnxruntime-web.ts';

engineSuite('onnxruntime-web in this thread', () => createOnnxRuntimeWebEngine(), { isThreaded: false });

const missing = (): Promise<never> =>
  Promise.reject(Object.assign(new Error('Cannot find package'), { code: 'ERR_MODULE_NOT_FOUND' }));

test('the native engine where there is one, else WebAssembly, else what to install', async () => {
  const native = await createOnnxRuntimeHereEngine();
  assert.equal(native.warning, undefined);
  assert.match(native.name, /^onnxruntime-node \d+\.\d+\.\d+ cpu \(1 thread\)$/);
  await native.close();
  const web = await createOnnxRuntimeHereEngine({ loadNative: missing });
  assert.match(web.name, /^onnxruntime-web \d+\.\d+\.\d+ wasm \(1 thread\)$/);
  assert.equal(web.blockSize, undefined);
  assert.equal(
    web.warning,
    'SLOW: this device computes over WebAssembly, several times slower than it could, because the package ' +
      'onnxruntime-node is not installed; run "npm install --ignore-scripts onnxruntime-node" where asteroid is ' +
      'installed.',
  );
  await web.close();
  await assert.rejects(
    createOnnxRuntimeHereEngine({ loadNative: missing, loadWeb: missing }),
    (error) => error instanceof InputError && /npm install --ignore-scripts onnxruntime-node/.test(error.message),
  );
  await assert.rejects(
    createOnnxRuntimeWebEngine({ load: missing }),
    (error) => error instanceof InputError && /npm install onnxruntime-web/.test(error.message),
  );
});
