// The engine over the package `onnxruntime-web`, ONNX Runtime as WebAssembly, for devices that its native build does
// not serve (browsers; 32-bit ARM, Intel Macs, musl). The same kernels without the blocked layout; slower, and
// everything else alike. In browsers also on the GPU.

import { InputError } from '../errors.ts';
import type { Engine } from './engine.ts';
import type { GpuDevice } from './gpu-loss.ts';
import { oneAtATime } from './one-at-a-time.ts';
import { createOnnxRuntimeEngine } from './onnxruntime.ts';
import { createGpuEngine, type GpuEngineOptions } from './onnxruntime-gpu.ts';
import type { OnnxRuntime } from './onnxruntime-module.ts';

export interface OnnxRuntimeWebOptions extends Pick<GpuEngineOptions, 'onDetour' | 'remedy'> {
  /** Default 'cpu'. The GPU is a browser's, and takes the package's build `onnxruntime-web/webgpu`. */
  readonly device?: 'cpu' | 'gpu';
  /** Threads inside one operator. Default 1. Of the CPU only. */
  readonly threadCount?: number;
  /** The runtime as it is to be used, such as with pauses between its runs. Default: as it is. */
  readonly adapt?: (runtime: OnnxRuntime) => OnnxRuntime;
  /** Milliseconds, monotonic, by which runs are timed. Default performance.now. */
  readonly now?: (() => number) | undefined;
  /** Loads the package; tests pass their own. Default: `import('onnxruntime-web')`. */
  readonly load?: () => Promise<unknown>;
}

/** The part of the package that says what it is, and how it starts. */
interface Environment {
  readonly env: {
    logLevel?: string;
    readonly wasm: { numThreads?: number; proxy?: boolean };
    /** Has the device once there is a session. Of the build for the GPU only. */
    readonly webgpu?: { readonly device?: Promise<GpuDevice> | GpuDevice };
    readonly versions: { readonly web?: string };
  };
}

/**
 * Loads ONNX Runtime's WebAssembly build and makes an engine over it in the calling thread. Throws InputError where the
 * package is missing.
 */
export async function createOnnxRuntimeWebEngine(options: OnnxRuntimeWebOptions = {}): Promise<Engine> {
  const {
    threadCount = 1,
    adapt = (same: OnnxRuntime): OnnxRuntime => same,
    load = () => import('onnxruntime-web'),
  } = options;
  let runtime: OnnxRuntime & Environment;
  try {
    runtime = (await load()) as OnnxRuntime & Environment;
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    throw new InputError(
      `The package onnxruntime-web does not load here (${reason}): run "npm install onnxruntime-web".`,
      {
        cause: error,
      },
    );
  }
  const { env } = runtime;
  env.logLevel = 'error';
  env.wasm.numThreads = threadCount;
  env.wasm.proxy = false; // The engine has a thread of its own already.
  const name = `onnxruntime-web ${env.versions.web ?? ''}`.trim();
  if (options.device === 'gpu') {
    const device = async (): Promise<GpuDevice | undefined> => env.webgpu?.device;
    return createGpuEngine(oneAtATime(adapt(runtime)), { ...options, name, device });
  }
  return createOnnxRuntimeEngine(adapt(runtime), {
    name,
    provider: 'wasm',
    threadCount,
    now: options.now,
  });
}
