// The engine over the package `onnxruntime-web`, ONNX Runtime as WebAssembly, for devices that its native build does
// not serve (32-bit ARM, Intel Macs, musl). The same kernels without the blocked layout; slower, and everything else
// alike.

import { InputError } from '../errors.ts';
import type { Engine } from './engine.ts';
import { createOnnxRuntimeNodeEngine, type OnnxRuntimeNodeOptions } from './node/onnxruntime-node.ts';
import { paced } from './node/pacing.ts';
import { createOnnxRuntimeEngine } from './onnxruntime.ts';
import type { OnnxRuntime } from './onnxruntime-module.ts';

/** The part of the package that says what it is, and how it starts. */
interface Environment {
  readonly env: {
    logLevel?: string;
    readonly wasm: { numThreads?: number; proxy?: boolean };
    readonly versions: { readonly web?: string };
  };
}

/**
 * Loads ONNX Runtime's WebAssembly build and makes an engine over it in the calling thread. Throws InputError where the
 * package is missing.
 */
export async function createOnnxRuntimeWebEngine(options: OnnxRuntimeNodeOptions = {}): Promise<Engine> {
  const { threadCount = 1, pacing, load = () => import('onnxruntime-web') } = options;
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
  return createOnnxRuntimeEngine(pacing === undefined ? runtime : paced(runtime, pacing), {
    name: `onnxruntime-web ${env.versions.web ?? ''}`.trim(),
    provider: 'wasm',
    threadCount,
    now: options.now,
  });
}

/**
 * The native engine, or the one over WebAssembly where that does not load. Throws the native one's InputError where
 * neither does.
 */
export async function createOnnxRuntimeHereEngine(
  options: Omit<OnnxRuntimeNodeOptions, 'load'> & {
    /** Load the packages; tests pass their own. */
    readonly loadNative?: () => Promise<unknown>;
    readonly loadWeb?: () => Promise<unknown>;
  } = {},
): Promise<Engine> {
  const { loadNative, loadWeb, ...rest } = options;
  try {
    return await createOnnxRuntimeNodeEngine({ ...rest, ...(loadNative && { load: loadNative }) });
  } catch (error) {
    if (!(error instanceof InputError)) throw error;
    return createOnnxRuntimeWebEngine({ ...rest, ...(loadWeb && { load: loadWeb }) }).catch(() => {
      throw error; // that of the faster one says what to install
    });
  }
}
