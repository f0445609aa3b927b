// The engine over ONNX Runtime's WebGPU provider, which is in `onnxruntime-node` for Linux x64, Windows and macOS on
// arm64, and in `onnxruntime-web`. Graphs are plain ones: without blocked layouts, and with what the provider lacks
// written out (gpu-graph.ts). What has no kernel for the GPU the runtime computes on the CPU by itself; and so is what
// has a wrong one (kernel-probe.ts). Values stay on the GPU from run to run (gpu-values.ts).

import { defined } from '../assert.ts';
import { InputError, RunError } from '../errors.ts';
import type { Graph } from '../graph/graph.ts';
import { exportGraph } from '../graph/onnx/export.ts';
import type { Tensor, ValueType } from '../graph/tensor.ts';
import type { Engine } from './engine.ts';
import { writtenOutForGpu } from './gpu-graph.ts';
import { type GpuDevice, GpuLoss } from './gpu-loss.ts';
import { GpuSession, GpuValue, GpuValues, staysOnGpu } from './gpu-values.ts';
import { type KernelFault, type KnownKinds, probeKernels } from './kernel-probe.ts';
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
  /** What a user may do where there is no GPU; empty: nothing. Default: install the driver. */
  readonly remedy?: string | undefined;
  /** The device that the runtime computes on, once it has a session. Default: it is not known, and not watched. */
  readonly device?: (() => Promise<GpuDevice | undefined>) | undefined;
  /** A kernel of the GPU is wrong or refused, and the CPU computes in its place. Called once for each kernel. */
  readonly onDetour?: ((kernel: string, fault: KernelFault) => void) | undefined;
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

/**
 * An engine on the GPU, in the calling thread. Throws InputError where the runtime finds no GPU. If the device is lost,
 * all that waits for it fails with RunError, and so does what is asked afterwards.
 */
export async function createGpuEngine(unguarded: OnnxRuntime, options: GpuEngineOptions): Promise<Engine> {
  const loss = new GpuLoss();
  const runtime = loss.guard(unguarded);
  const sessionOptions = {
    executionProviders: [provider, 'cpu'],
    intraOpNumThreads: 1,
    interOpNumThreads: 1,
    executionMode: 'sequential',
    // Fused kernels would not be those that were probed.
    graphOptimizationLevel: 'basic',
    logSeverityLevel: 4,
  };
  const name = `${options.name} webgpu`;
  const values = new GpuValues(runtime, sessionOptions);
  try {
    await values.open();
    loss.watch(await options.device?.());
  } catch (error) {
    throw new InputError(noGpu(error, options.remedy), { cause: error });
  }
  const known: KnownKinds = new Map();
  const said = new Set<string>();
  const detoursOf = async (graph: Graph): Promise<readonly string[]> => {
    const detours = await probeKernels(graph, known, (where, probed, inputs) =>
      runOnce(runtime, probed, inputs, where === 'gpu' ? sessionOptions : { ...sessionOptions, ...onCpu }),
    );
    for (const { kernel, fault } of detours) {
      if (!said.has(kernel)) options.onDetour?.(kernel, fault);
      said.add(kernel);
    }
    return detours.map(({ node }) => node);
  };
  return createQueuedEngine({
    name,
    now: options.now,
    synchronize: () => values.synchronize(),
    close: () => values.close(),
    async compile(graph) {
      if (graph.outputs.length === 0) return nothing; // The runtime refuses such a graph.
      try {
        const plain = tidy(writtenOutForGpu(graph));
        const session = new GpuSession(
          await createSession(runtime, plain, withDetours(sessionOptions, await detoursOf(plain))),
        );
        return gpuKernel(runtime, session, { graph, values, name });
      } catch (error) {
        if (error instanceof InputError || error instanceof RunError) throw error;
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
  const locations = graph.outputs.map((output) => [
    output.name,
    staysOnGpu(output as ValueType) ? 'gpu-buffer' : 'cpu',
  ]);
  return runtime.InferenceSession.create(exportGraph(graph), {
    ...options,
    preferredOutputLocation: Object.fromEntries(locations),
  });
}

const onCpu = { executionProviders: ['cpu'] } as const;

/** The options of a session that computes some nodes on the CPU. */
function withDetours(
  options: Readonly<Record<string, unknown>>,
  nodes: readonly string[],
): Readonly<Record<string, unknown>> {
  if (nodes.length === 0) return options;
  return { ...options, executionProviders: [{ ...provider, forceCpuNodeNames: nodes }, 'cpu'] };
}

/** Runs a graph in a session of its own. */
async function runOnce(
  runtime: OnnxRuntime,
  graph: Graph,
  inputs: ReadonlyMap<string, Tensor>,
  options: Readonly<Record<string, unknown>>,
): Promise<ReadonlyMap<string, Tensor>> {
  const session = await runtime.InferenceSession.create(exportGraph(graph), options);
  try {
    const feeds = [...inputs].map(([name, { type, data, shape }]) => [name, toRuntime(runtime, type, data, shape)]);
    const names = graph.outputs.map(({ name }) => name);
    const results = await session.run(Object.fromEntries(feeds), names);
    return new Map(names.map((name) => [name, fromRuntime(defined(results[name], name))]));
  } finally {
    await session.release();
  }
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
        if (error instanceof RunError) throw error;
        throw new RunError(`${name} failed in graph "${graph.name}": ${messageOf(error)}`, { cause: error });
      }
    },
    release: async () => maker.letGo(),
  };
}

const driver = 'install its Vulkan driver (Windows and macOS bring theirs), or choose --device cpu';

function noGpu(error: unknown, remedy = driver): string {
  const reason = messageOf(error).split('. ').at(-1)?.trim().replace(/\.$/, '') ?? '';
  return `No graphics chip can be used here (${reason.slice(0, 160)})${remedy && `: ${remedy}`}.`;
}
