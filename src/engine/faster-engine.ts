// The faster of two engines on this machine, by what they need for a small piece of a training step.

import { defined } from '../assert.ts';
import { InputError, RunError } from '../errors.ts';
import { Emitter } from '../graph/emitter.ts';
import { type Graph, ints } from '../graph/graph.ts';
import { elementCount, wrap } from '../graph/tensor.ts';
import type { Engine, Executable, Value } from './engine.ts';

/** After one run that is not counted. */
const runCount = 5;
/** A graphics chip that takes so many times as long in one run is not run again: a software driver may take seconds. */
const hopeless = 4;

export interface FasterEngineOptions {
  cpu(): Promise<Engine>;
  /** Rejects with InputError where no GPU can be used. */
  gpu(): Promise<Engine>;
  /** Milliseconds, monotonic. Default performance.now. */
  readonly now?: (() => number) | undefined;
}

/** The engine on the GPU, if there is one and it is faster than the one on the processor; `choice` says why. */
export async function createFasterEngine({ cpu, gpu, now }: FasterEngineOptions): Promise<Engine> {
  const onCpu = await cpu();
  const because = (reason: string): Engine =>
    Object.assign(onCpu, {
      choice: `It computes on the processor: ${reason.charAt(0).toLowerCase()}${reason.slice(1)}`,
    });
  const onGpu = await tried(gpu());
  if (typeof onGpu === 'string') return because(onGpu);
  const cpuMs = await timeOf(onCpu, now);
  const gpuMs = await tried(timeOf(onGpu, now, hopeless * cpuMs));
  if (typeof gpuMs === 'string') {
    await onGpu.close().catch(() => {}); // it has said what is wrong
    return because(gpuMs);
  }
  const took =
    `a piece of a training step took ${rounded(cpuMs)} ms on the processor and ` +
    `${rounded(gpuMs)} ms on the graphics chip.`;
  const isGpu = gpuMs < cpuMs;
  await (isGpu ? onCpu : onGpu).close();
  return isGpu ? Object.assign(onGpu, { choice: `It computes on the graphics chip: ${took}` }) : because(took);
}

/** What comes of it, or why nothing does: what the GPU cannot is no failure. */
async function tried<T>(trial: Promise<T>): Promise<T | string> {
  try {
    return await trial;
  } catch (error) {
    if (error instanceof InputError || error instanceof RunError) return error.message;
    throw error;
  }
}

const rounded = (ms: number): string => ms.toFixed(ms < 10 ? 1 : 0);

/** How long an engine needs for the piece, in milliseconds: the median, or the first run that takes `enoughMs`. */
async function timeOf(
  engine: Engine,
  now: () => number = () => performance.now(),
  enoughMs = Number.POSITIVE_INFINITY,
): Promise<number> {
  const graph = pieceOfTraining();
  const executable = await engine.compile(graph);
  const inputs = Object.fromEntries(
    graph.inputs.map(({ name, shape }) => {
      const data = new Float32Array(elementCount(shape as readonly number[])).fill(0.01);
      return [name, engine.upload(wrap('float32', shape as readonly number[], data))];
    }),
  );
  const times: number[] = [];
  await runOnce(engine, executable, inputs);
  while (times.length < runCount && !(Number(times.at(-1)) >= enoughMs)) {
    const startMs = now();
    await runOnce(engine, executable, inputs);
    times.push(now() - startMs);
  }
  for (const value of Object.values(inputs)) engine.release(value);
  executable.release();
  await engine.settled();
  return defined(times.sort((a, b) => a - b)[Math.floor(times.length / 2)], 'a time');
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
