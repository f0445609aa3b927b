// The faster of two engines on this machine, by what they need for a small piece of a training step.

import { defined } from '../assert.ts';
import { InputError, RunError } from '../errors.ts';
import { Emitter } from '../graph/emitter.ts';
import { type Graph, ints } from '../graph/graph.ts';
import { elementCount, wrap } from '../graph/tensor.ts';
import type { Engine, Executable, Value } from './engine.ts';

/** After one run that is not counted. */
const runCount = 5;

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
  const trial = await tryGpu(gpu, now);
  if (typeof trial === 'string') return Object.assign(onCpu, { choice: `It computes on the processor: ${trial}` });
  const { engine: onGpu, ms: gpuMs } = trial;
  const cpuMs = await timeOf(onCpu, now);
  const isGpu = gpuMs < cpuMs;
  await (isGpu ? onCpu : onGpu).close();
  const choice =
    `It computes on the ${isGpu ? 'graphics chip' : 'processor'}: a piece of a training step took ` +
    `${rounded(cpuMs)} ms on the processor and ${rounded(gpuMs)} ms on the graphics chip.`;
  return Object.assign(isGpu ? onGpu : onCpu, { choice });
}

/** What the engine on the GPU needs for the piece, or why there is none, in a sentence that begins small. */
async function tryGpu(
  create: () => Promise<Engine>,
  now: FasterEngineOptions['now'],
): Promise<{ readonly engine: Engine; readonly ms: number } | string> {
  let engine: Engine | undefined;
  try {
    engine = await create();
    return { engine, ms: await timeOf(engine, now) };
  } catch (error) {
    if (!(error instanceof InputError || error instanceof RunError)) throw error;
    await engine?.close().catch(() => {}); // it has said what is wrong
    return error.message.charAt(0).toLowerCase() + error.message.slice(1);
  }
}

const rounded = (ms: number): string => ms.toFixed(ms < 10 ? 1 : 0);

/** How long an engine needs for the piece, in milliseconds: the median. */
async function timeOf(engine: Engine, now: () => number = () => performance.now()): Promise<number> {
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
