import assert from 'node:assert/strict';
import { test } from 'node:test';
import { InputError } from '../errors.ts';
import type { Engine } from './engine.ts';
import { type BrowserEngineOptions, type BrowserGpu, createBrowserEngine } from './onnxruntime-browser.ts';

/** As much of the package as is needed before anything is compiled. */
const build = { env: { wasm: {}, versions: { web: '1.0.0' } } };
const adapter = (isFallbackAdapter: boolean): BrowserGpu => ({
  requestAdapter: async () => ({ info: { isFallbackAdapter } }),
});
const noAdapter: BrowserGpu = { requestAdapter: async () => null };

function create(options: Partial<BrowserEngineOptions>): Promise<Engine> {
  return createBrowserEngine({
    ...{ device: 'auto', threadCount: 2, gpu: undefined, isSecure: true },
    loadCpu: async () => build,
    loadGpu: () => assert.fail('the large build is not loaded for nothing'),
    ...options,
  });
}

test('without a graphics chip the processor computes, which says why', async () => {
  const cases: readonly [Partial<BrowserEngineOptions>, string][] = [
    [{}, 'this browser has no WebGPU'],
    [{ isSecure: false }, 'browsers give it to encrypted pages only, and this one is plain'],
    [{ gpu: noAdapter }, 'this browser finds none'],
    [{ gpu: adapter(true) }, 'there is only a software driver'],
  ];
  for (const [options, reason] of cases) {
    const { name, choice } = await create(options);
    assert.equal(name, 'onnxruntime-web 1.0.0 wasm (2 threads)');
    assert.equal(choice, `It computes on the processor: no graphics chip can be used here (${reason}).`);
  }
  assert.equal((await create({ device: 'cpu', gpu: adapter(false) })).choice, undefined);
});

test('whoever asks for the graphics chip is told where there is none', async () => {
  const why = 'No graphics chip can be used here (this browser finds none): compute on the processor.';
  await assert.rejects(
    create({ device: 'gpu', gpu: noAdapter }),
    (error) => error instanceof InputError && error.message === why,
  );
});

test('a graphics chip that does not start leaves the processor', async () => {
  const gone = { InferenceSession: { create: () => Promise.reject(new Error('Failed. No device.')) } };
  const loadGpu = async (): Promise<unknown> => ({ ...build, ...gone });
  const { name, choice } = await create({ gpu: adapter(false), loadGpu });
  assert.match(name, /wasm/);
  assert.equal(choice, 'It computes on the processor: no graphics chip can be used here (No device).');
});
