// What a call through the compute thread costs: runs of a graph that does almost nothing, and 1 MiB tensors in and out.
// Usage, after `npm run build`: node bench/compute-thread.mjs [folder of the compiled sources]

import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const folder = resolve(process.argv[2] ?? 'dist');
const load = (path) => import(pathToFileURL(`${folder}/${path}`).href);
const { Emitter } = await load('graph/emitter.js');
const { createComputeThread } = await load('engine/compute-thread.js');
const { discard } = await load('engine/buffers.js');
const { createOnnxRuntimeNodeEngine } = await load('engine/onnxruntime-node.js');

/** y = −x on a vector of float32. */
function negate(size) {
  const emitter = new Emitter();
  const inputs = [emitter.input('x', 'float32', [size])];
  emitter.append({ operator: 'Neg', domain: '', name: 'negate', inputs, outputs: ['y'], attributes: {} });
  return emitter.build('negate', ['y']);
}

const vector = (size) => ({ type: 'float32', shape: [size], data: new Float32Array(size).fill(1) });

/** Median microseconds of `action`, after a warm-up. */
async function median(count, action) {
  const times = [];
  for (let index = 0; index < count + 50; index++) {
    const start = performance.now();
    await action();
    times.push((performance.now() - start) * 1000);
  }
  return times.slice(50).sort((a, b) => a - b)[count >> 1];
}

async function measure(engine) {
  const small = await engine.compile(negate(2));
  const large = await engine.compile(negate(2 ** 18));
  const x = engine.upload(vector(2));
  const rows = [];
  rows.push(['run, and take its result', await median(2000, () => engine.take(small.run({ x }).y))]);
  const chain = 100;
  const queued = await median(200, async () => {
    let value = engine.upload(vector(2));
    for (let index = 0; index < chain; index++) {
      const next = small.run({ x: value }).y;
      engine.release(value);
      value = next;
    }
    await engine.take(value);
  });
  rows.push([`run and release, ${chain} queued without waiting, each`, queued / chain]);
  let callUs = 0;
  await median(200, async () => {
    const start = performance.now();
    const values = Array.from({ length: 10 }, () => small.run({ x }).y);
    callUs = Math.min(callUs || Number.POSITIVE_INFINITY, (performance.now() - start) * 100);
    for (const value of values) engine.release(value);
    await engine.settled();
  });
  rows.push(['the call of run itself, on the calling thread', callUs]);
  const inputs = Array.from({ length: 1050 }, () => vector(2 ** 18));
  const move = async () => {
    const value = engine.upload(inputs.pop());
    discard((await engine.take(value)).data);
  };
  rows.push(['upload 1 MiB and take it', await median(300, move)]);
  rows.push([
    'upload 1 MiB, run, take 1 MiB',
    await median(300, async () => {
      const value = engine.upload(inputs.pop());
      const { y } = large.run({ x: value });
      engine.release(value);
      discard((await engine.take(y)).data);
    }),
  ]);
  await engine.close();
  return rows;
}

const here = await measure(await createOnnxRuntimeNodeEngine());
const thread = await measure(await createComputeThread());
console.log('| median, µs | engine in this thread | compute thread | difference |\n| --- | --- | --- | --- |');
for (const [index, [what, us]] of thread.entries()) {
  const base = here[index][1];
  console.log(`| ${what} | ${base.toFixed(1)} | ${us.toFixed(1)} | ${(us - base).toFixed(1)} |`);
}
