// The engine over ONNX Runtime's WebGPU provider, which is in `onnxruntime-node` for Linux x64, Windows and macOS on
// arm64, and in `onnxruntime-web`. Graphs are plain ones: without blocked layouts, and with what the provider lacks
// written out (gpu-graph.ts). What has no kernel for the GPU the runtime computes on the CPU by itself. Values stay on
// the GPU from run to run (gpu-values.ts).

import { defined } from '../assert.ts';
import { InputError, RunError } from '../errors.ts';
import type { Graph } from '../graph/graph.ts';
import { exportGraph } from '../graph/onnx/export.ts';
import type { ValueType } from '../graph/tensor.ts';
import type { Engine } from './engine.ts';
import { writtenOutForGpu } from './gpu-graph.ts';
import { GpuSession, GpuValue, GpuValues, staysOnGpu } from './gpu-values.ts';
import type { OnnxRuntime, RuntimeSession, RuntimeTensor } from './onnxruntime-module.ts';
import { fromRuntime, messageOf, toRuntime } from './onnxruntime-tensors.ts';
import { createQueuedEngine, type Kernel } from './queued.ts';
import { isTensor } from './resident.ts';
import { tidy } from './tidy.ts';

export interface GpuEngineOptions {
  /** What to call the runtime, such as "onnxruntime-node 1.30.0". */
  readonly name: string;
  /** Milliseconds, monotonic, by which runs are timed. Default performance.now. */
  readonly now?: (() => number) | undefined;
}

/** Whether an engine of this name computes on a GPU. */
export function isOnGpu(engineName: string): boolean {
  return engineName.endsWith(' webgpu');
}

/**
 * With the provider's default layout, convolutions of 6 to 12 channels without padding are wrong by as much as their
 * values (onnxruntime-node 1.30).
 */
const provider = { name: 'webgpu', preferredLayout: 'NCHW' } as const;

/** An engine on the GPU, in the calling thread. Throws InputError where the runtime finds no GPU. */
export async function createGpuEngine(runtime: OnnxRuntime, options: GpuEngineOptions): Promise<Engine> {
  const sessionOptions = {
    executionProviders: [provider, 'cpu'],
    intraOpNumThreads: 1,
    interOpNumThreads: 1,
    executionMode: 'sequential',
    logSeverityLevel: 4,
  };
  const name = `${options.name} webgpu`;
  const values = new GpuValues(runtime, sessionOptions);
  try {
    await values.open();
  } catch (error) {
    throw new InputError(noGpu(error), { cause: error });
  }
  return createQueuedEngine({
    name,
    now: options.now,
    synchronize: () => values.synchronize(),
    close: () => values.close(),
    async compile(graph) {
      if (graph.outputs.length === 0) return nothing; // The runtime refuses such a graph.
      try {
        const session = new GpuSession(await createSession(runtime, graph, sessionOptions));
        return gpuKernel(runtime, session, { graph, values, name });
      } catch (error) {
        if (error instanceof InputError) throw error;
        throw new InputError(`${name} cannot run graph "${graph.name}": ${messageOf(error)}`, { cause: error });
      }
    },
  });
}

function createSession(
  runtime: OnnxRuntime,
  graph: Graph,
  options: Readonly<Record<string, unknown>>,
): Promise<RuntimeSession> {
  const model = exportGraph(tidy(writtenOutForGpu(graph)));
  const locations = graph.outputs.map((output) => [
    output.name,
    staysOnGpu(output as ValueType) ? 'gpu-buffer' : 'cpu',
  ]);
  return runtime.InferenceSession.create(model, {
    ...options,
    preferredOutputLocation: Object.fromEntries(locations),
  });
}

/** What runs a graph without outputs. */
const nothing: Kernel = { run: async () => [], release: async () => {} };

function gpuKernel(
  runtime: OnnxRuntime,
  maker: GpuSession,
  { graph, values, name }: { readonly graph: Graph; readonly values: GpuValues; readonly name: string },
): Kernel {
  return {
    async run(inputs, wanted) {
      if (wanted.length === 0) return [];
      const feeds: Record<string, RuntimeTensor> = {};
      for (const [index, content] of inputs.entries()) {
        const input = defined(graph.inputs[index], 'an input');
        if (isTensor(content)) values.moved.upBytes += content.data.byteLength;
        feeds[input.name] = isTensor(content)
          ? toRuntime(runtime, content.type, content.data, content.shape)
          : (content as GpuValue).tensor;
      }
      try {
        const results = await maker.session.run(feeds, wanted);
        return wanted.map((output) => {
          const result = defined(results[output], output);
          return result.location === 'gpu-buffer' ? new GpuValue(result, values, maker) : fromRuntime(result);
        });
      } catch (error) {
        throw new RunError(`${name} failed in graph "${graph.name}": ${messageOf(error)}`, { cause: error });
      }
    },
    release: async () => maker.letGo(),
  };
}

function noGpu(error: unknown): string {
  const [line = ''] = messageOf(error).split('\n').reverse();
  return (
    `No graphics chip can be used here (${line.replace(/\.$/, '').slice(-160)}): install its Vulkan driver ` +
    '(Windows and macOS bring theirs), or choose --device cpu.'
  );
}
