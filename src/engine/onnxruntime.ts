// The engine over ONNX Runtime, which is given as a module: `onnxruntime-node`, or `onnxruntime-web` in a browser.
// `run` of the Node package blocks the thread that calls it (no timer fires): see compute-thread.ts. Facts found by
// trying version 1.30 on x64 Linux:
// - Outputs are copied into fresh ArrayBuffers, all of them before the runtime frees its own, unless
//   outputs-in-place.ts keeps it from that: they can be moved to another thread without a further copy, and outlive the
//   session and the thread that made them. Inputs on shared memory are refused; inputs are read in place.
// - Graph outputs that are graph inputs or initializers, graphs without nodes, tensors without elements and scalars all
//   work; such outputs are copies. Every graph input must be fed, needed or not.
// - `BatchNormalization` with training_mode=1 runs; its running variance takes in the biased variance, as ONNX says
//   (PyTorch: the unbiased).
// - Opsets 11 to 26 load. float64 has no `Erf`. Unknown operators and wrong shapes are errors that name the node or the
//   input.

import { defined } from '../assert.ts';
import { InputError, RunError } from '../errors.ts';
import { Emitter } from '../graph/emitter.ts';
import type { Graph } from '../graph/graph.ts';
import { exportGraph } from '../graph/onnx/export.ts';
import type { ValueType } from '../graph/tensor.ts';
import { byteLength, viewBytes } from '../graph/tensor.ts';
import { blockedDomain } from '../lowering/layouts.ts';
import type { Engine, Translation, TranslationTarget } from './engine.ts';
import { fasterKernel } from './faster-kernel.ts';
import type { OnnxRuntime, RuntimeSession, RuntimeTensor } from './onnxruntime-module.ts';
import { fromRuntime, messageOf, toRuntime } from './onnxruntime-tensors.ts';
import { type InPlace, probeInPlace } from './outputs-in-place.ts';
import { createQueuedEngine, type Kernel } from './queued.ts';
import { translateGraph } from './translate.ts';

export interface OnnxRuntimeOptions {
  /** What to call the runtime, such as "onnxruntime-node 1.30.0". */
  readonly name: string;
  /** Where it computes: 'cpu' (the default, in Node), 'wasm' (in browsers). */
  readonly provider?: string;
  /**
   * The most threads inside one operator. Default 1. With more, each graph's first runs are timed with all of them and
   * with one, and the faster stays: waking threads costs small operators more than they save.
   */
  readonly threadCount?: number;
  /**
   * Lets each session keep the most memory that it ever needed. Default false: three sessions of a convolutional net of
   * 100 layers took 216 MiB of process memory and 85 ms a run without, 360 MiB and 93 ms with it. Without
   * `allocatorEnvironment` (host-node.ts), leaving it out may cost up to 107 ms, as the C library hands pages back
   * after each run and faults them in again.
   */
  readonly arena?: boolean;
  /** Milliseconds, monotonic, by which runs are timed. Default performance.now. */
  readonly now?: (() => number) | undefined;
}

/**
 * The largest value that the runtime may compute beforehand: it stays for as long as the session does (the zeros behind
 * the gradient of a vocabulary's embedding: 60 MiB).
 */
const foldedBytes = 2 ** 16;

/**
 * An engine over the given ONNX Runtime, in the calling thread. `compile` throws InputError for graphs that it refuses.
 */
export async function createOnnxRuntimeEngine(runtime: OnnxRuntime, options: OnnxRuntimeOptions): Promise<Engine> {
  const { provider = 'cpu', threadCount = 1, arena = false } = options;
  const sessionOptions = {
    executionProviders: [provider],
    intraOpNumThreads: threadCount,
    interOpNumThreads: 1,
    executionMode: 'sequential',
    enableCpuMemArena: arena,
    // Without an arena a planned block would be one huge allocation, new from the system in every run.
    enableMemPattern: arena,
    // Errors are thrown; they need not be printed too.
    logSeverityLevel: 4,
    extra: { optimization: { constant_folding_max_output_size_in_bytes: String(foldedBytes) } },
  };
  const name = `${options.name} ${provider} (${threadCount} ${threadCount === 1 ? 'thread' : 'threads'})`;
  const blockSize = provider === 'cpu' ? await probeBlockSize(runtime, sessionOptions) : undefined;
  const inPlace = provider === 'cpu' ? await probeInPlace(runtime, sessionOptions) : undefined;
  const describe = (error: unknown, what: string, graph: string): string =>
    `${name} ${what} graph "${graph}": ${messageOf(error)}`;
  const refuse = (error: unknown, graph: string): Error =>
    error instanceof InputError ? error : new InputError(describe(error, 'cannot run', graph), { cause: error });
  const target: TranslationTarget = { blockSize, writesInPlace: inPlace !== undefined, readsFiles: provider === 'cpu' };
  const translate = (graph: Graph): Translation => {
    try {
      return translateGraph(graph, target);
    } catch (error) {
      throw refuse(error, graph.name);
    }
  };
  const compile = async (translation: Translation): Promise<Kernel> => {
    if (translation.outputs.length === 0) return nothing; // The runtime refuses such a graph.
    const fail = (error: unknown): Error =>
      new RunError(describe(error, 'failed in', translation.name), { cause: error });
    const graphOptimizationLevel = translation.isOptimizable ? 'all' : 'disabled';
    const kernelOf = async (intraOpNumThreads: number): Promise<Kernel> => {
      const session = await createSession(runtime, translation.model, {
        ...sessionOptions,
        ...(translation.keepsMemory && provider === 'cpu' ? { enableCpuMemArena: true, enableMemPattern: true } : {}),
        intraOpNumThreads,
        graphOptimizationLevel,
        ...(translation.weightFolder === undefined ? {} : readingFrom(translation.weightFolder, sessionOptions)),
      });
      return sessionKernel(runtime, session, translation, { fail, inPlace });
    };
    try {
      return threadCount === 1 ? await kernelOf(1) : fasterKernel(await kernelOf(threadCount), await kernelOf(1));
    } catch (error) {
      throw refuse(error, translation.name);
    }
  };
  return createQueuedEngine({
    name,
    now: options.now,
    blockSize,
    writesInPlace: inPlace !== undefined,
    compile: async (graph) => compile(translate(graph)),
    translations: { target, translate, compile },
  });
}

/** Weights outside are mapped from their files while they are packed, and never lie in memory as they are. */
function readingFrom(folder: string, { extra }: { readonly extra: object }): { readonly extra: object } {
  return { extra: { ...extra, session: { model_external_initializers_file_folder_path: folder } } };
}

/**
 * The session, optimized where that works: rewriting can fail on a graph that is fine as it is (a `Pad` as wide as the
 * kernel of the pool behind it is moved into the pool, which then refuses it).
 */
async function createSession(
  runtime: OnnxRuntime,
  model: Uint8Array,
  options: Readonly<Record<string, unknown>>,
): Promise<RuntimeSession> {
  const { InferenceSession } = runtime;
  try {
    return await InferenceSession.create(model, options);
  } catch {
    return await InferenceSession.create(model, { ...options, graphOptimizationLevel: 'disabled' });
  }
}

/**
 * Finds the channels of a block by blocking 64 channels of two places: what follows the first block is the first
 * channel's second place.
 */
async function probeBlockSize(
  runtime: OnnxRuntime,
  options: Readonly<Record<string, unknown>>,
): Promise<number | undefined> {
  const e = new Emitter();
  const type: ValueType = { type: 'float32', shape: [1, 64, 1, 2] };
  const blocked = e.emitTyped('ReorderInput', [e.input('x', type.type, type.shape)], type, {}, blockedDomain);
  try {
    const session = await runtime.InferenceSession.create(exportGraph(e.build('probe', [blocked])), options);
    const numbers = Float32Array.from({ length: 128 }, (_, index) => index);
    const results = await session.run({ x: new runtime.Tensor('float32', numbers, type.shape) }, [blocked]);
    await session.release();
    const found = Array.from(defined(results[blocked], blocked).data as Float32Array).indexOf(1);
    return found > 1 ? found : undefined;
  } catch {
    return undefined; // No such kernels on this processor: plain ones serve.
  }
}

/** What runs a graph without outputs. */
const nothing: Kernel = { run: async () => [], release: async () => {} };

function sessionKernel(
  runtime: OnnxRuntime,
  session: RuntimeSession,
  { outputs, modelInputs, modelOutputs, writesInPlace }: Translation,
  { fail, inPlace }: { readonly fail: (error: unknown) => Error; readonly inPlace: InPlace | undefined },
): Kernel {
  const shapes = new Map(outputs.map(({ name, shape }) => [name, shape as readonly number[]]));
  const inside = new Map(outputs.map(({ name }, index) => [name, defined(modelOutputs[index], name)]));
  return {
    async run(values, wanted, buffers) {
      if (wanted.length === 0) return [];
      try {
        const feeds: Record<string, RuntimeTensor> = {};
        for (const [index, { type, data }] of values.entries()) {
          const { name, shape } = defined(modelInputs[index], 'an input');
          feeds[name] = toRuntime(runtime, type, defined(data, 'an array'), shape as readonly number[]);
        }
        const types = wanted.map((name) => defined(inside.get(name), name));
        if (writesInPlace && inPlace !== undefined) {
          const arrays = types.map((value, index) =>
            viewBytes(
              value.type,
              new Uint8Array(buffers.take(byteLength(value as ValueType), defined(wanted[index], value.name))),
            ),
          );
          const targets = types.map(({ name, type, shape }, index) => [
            name,
            toRuntime(runtime, type, defined(arrays[index], name), shape as readonly number[]),
          ]);
          await inPlace.run(session, feeds, Object.fromEntries(targets));
          return wanted.map((name, index) => ({
            type: defined(types[index], name).type,
            shape: defined(shapes.get(name), name),
            data: defined(arrays[index], name),
          }));
        }
        const results = await session.run(
          feeds,
          types.map(({ name }) => name),
        );
        return wanted.map((name, index) => {
          const inner = defined(types[index], name).name;
          const result = fromRuntime(defined(results[inner], inner));
          return inner === name ? result : { ...result, shape: defined(shapes.get(name), name) };
        });
      } catch (error) {
        throw fail(error);
      }
    },
    release: () => session.release(),
  };
}
