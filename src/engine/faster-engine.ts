// Which of two engines trains faster on this machine, by what they need for a small piece of a training step.

import { defined } from '../assert.ts';
import { Emitter } from '../graph/emitter.ts';
import { type Graph, ints } from '../graph/graph.ts';
import { elementCount, wrap } from '../graph/tensor.ts';
import type { Engine, Executable, Value } from './engine.ts';

/** After one run that is not counted. */
const runCount = 5;

/** The index of the faster engine, and what each took for the piece, in milliseconds (the median). */
export async function fasterEngine(
  engines: readonly Engine[],
  now: () => number = () => performance.now(),
): Promise<{ readonly index: number; readonly times: readonly number[] }> {
  const times: number[] = [];
  for (const engine of engines) times.push(await timeOf(engine, now));
  return { index: times.indexOf(Math.min(...times)), times };
}

async function timeOf(engine: Engine, now: () => number): Promise<number> {
  const graph = pieceOfTraining();
  const executable = await engine.compile(graph);
  const inputs = Object.fromEntries(
    graph.inputs.map(({ name, shape }) => {
      const data = new Float32Array(elementCount(shape as readonly number[])).fill(0.01);
      return [name, engine.upload(wrap('float32', shape as readonly number[], data))];
    }),
  );
  const times: number[] = [];
  for (let run = 0; run <= runCount; run++) {
    const startMs = now();
    await runOnce(engine, executable, inputs);
    times.push(now() - startMs);
  }
  for (const value of Object.values(inputs)) engine.release(value);
  executable.release();
  await engine.settled();
  return defined(times.slice(1).sort((a, b) => a - b)[Math.floor(runCount / 2)], 'a time');
}

async function runOnce(engine: Engine, executable: Executable, inputs: Readonly<Record<string, Value>>): Promise<void> {
  for (const value of Object.values(executable.run(inputs))) engine.release(value);
  await engine.settled();
}

/** Convolutions and a product of 0.4 GFLOP with what stands between them, as in a step of a small net. */
function pieceOfTraining(): Graph {
  const e = new Emitter();
  const weights = e.input('weights', 'float32', [32, 32, 3, 3]);
  let x = e.input('x', 'float32', [16, 32, 16, 16]);
  for (let depth = 0; depth < 4; depth++)
    x = e.emit('Relu', [e.emit('Conv', [x, weights], { kernel_shape: ints([3, 3]), pads: ints([1, 1, 1, 1]) })]);
  const rows = e.emit('Reshape', [x, e.int64s([16, -1])]);
  const product = e.emit('MatMul', [rows, e.input('matrix', 'float32', [32 * 256, 64])]);
  return e.build('a piece of training', [product]);
}
