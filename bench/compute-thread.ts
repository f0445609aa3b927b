// What a call through the compute thread costs: runs of a graph that does almost nothing, and 1 MiB tensors in and out.
// Usage: npm run bench -- compute-thread [folder of the compiled sources]

import type { Engine, Value } from '../dist/engine/engine.js';
import type { Tensor } from '../dist/graph/tensor.js';
import { median } from '../dist/statistics.js';
import { loadFrom } from './common/build.ts';
import { at } from './common/numbers.ts';
import { tableHead, tableRow } from './common/table.ts';

const load = loadFrom(process.argv[2] ?? 'dist');
const { Emitter } = await load('graph/emitter.js');
const { createComputeThread } = await load('engine/node/compute-thread.js');
const { discard } = await load('engine/buffers.js');
const { createOnnxRuntimeNodeEngine } = await load('engine/node/onnxruntime-node.js');

/** y = −x on a vector of float32. */
function negate(size: number) {
  const emitter = new Emitter();
  const inputs = [emitter.input('x', 'float32', [size])];
  emitter.append({ operator: 'Neg', domain: '', name: 'negate', inputs, outputs: ['y'], attributes: {} });
  return emitter.build('negate', ['y']);
}

const vector = (size: number): Tensor => ({ type: 'float32', shape: [size], data: new Float32Array(size).fill(1) });

/** The value of the graph's one output. */
function output({ y }: Readonly<Record<string, Value>>): Value {
  if (y === undefined) throw new Error('the graph has no output y');
  return y;
}

/** Median microseconds of `action`, after a warm-up. */
async function medianUs(count: number, action: () => unknown): Promise<number> {
  const times: number[] = [];
  for (let index = 0; index < count + 50; index++) {
    const start = performance.now();
    await action();
    times.push((performance.now() - start) * 1000);
  }
  return median(times.slice(50));
}

async function measure(engine: Engine): Promise<(readonly [string, number])[]> {
  const small = await engine.compile(negate(2));
  const large = await engine.compile(negate(2 ** 18));
  const x = engine.upload(vector(2));
  const rows: (readonly [string, number])[] = [];
  rows.push(['run, and take its result', await medianUs(2000, () => engine.take(output(small.run({ x }))))]);
  const chain = 100;
  const queued = await medianUs(200, async () => {
    let value = engine.upload(vector(2));
    for (let index = 0; index < chain; index++) {
      const next = output(small.run({ x: value }));
      engine.release(value);
      value = next;
    }
    await engine.take(value);
  });
  rows.push([`run and release, ${chain} queued without waiting, each`, queued / chain]);
  let callUs = 0;
  await medianUs(200, async () => {
    const start = performance.now();
    const values = Array.from({ length: 10 }, () => output(small.run({ x })));
    callUs = Math.min(callUs || Number.POSITIVE_INFINITY, (performance.now() - start) * 100);
    for (const value of values) engine.release(value);
    await engine.settled();
  });
  rows.push(['the call of run itself, on the calling thread', callUs]);
  const inputs = Array.from({ length: 1050 }, () => vector(2 ** 18));
  const nextInput = () => inputs.pop() ?? vector(2 ** 18);
  const move = async () => {
    const value = engine.upload(nextInput());
    discard((await engine.take(value)).data);
  };
  rows.push(['upload 1 MiB and take it', await medianUs(300, move)]);
  rows.push([
    'upload 1 MiB, run, take 1 MiB',
    await medianUs(300, async () => {
      const value = engine.upload(nextInput());
      const y = output(large.run({ x: value }));
      engine.release(value);
      discard((await engine.take(y)).data);
    }),
  ]);
  await engine.close();
  return rows;
}

const here = await measure(await createOnnxRuntimeNodeEngine());
const thread = await measure(await createComputeThread());
console.log(tableHead(['median, µs', 'engine in this thread', 'compute thread', 'difference']));
for (const [index, [what, us]] of thread.entries()) {
  const base = at(here, index)[1];
  console.log(tableRow([what, base.toFixed(1), us.toFixed(1), (us - base).toFixed(1)]));
}
