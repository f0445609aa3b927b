// ONNX Runtime on this machine: its native build, or WebAssembly where that does not load; on the processor, the
// graphics chip, or what of them is faster.

import { setFlagsFromString } from 'node:v8';
import { InputError } from '../../errors.ts';
import type { DeviceChoice, Engine } from '../engine.ts';
import { createFasterEngine } from '../faster-engine.ts';
import type { OnnxRuntime } from '../onnxruntime-module.ts';
import { createOnnxRuntimeWebEngine } from '../onnxruntime-web.ts';
import { absence, createOnnxRuntimeNodeEngine, installation, type OnnxRuntimeNodeOptions } from './onnxruntime-node.ts';
import { paced } from './pacing.ts';

/**
 * The native engine, or the one over WebAssembly where that does not load, with a warning that says so. Throws the
 * native one's InputError where neither does.
 */
export async function createOnnxRuntimeHereEngine(
  options: Omit<OnnxRuntimeNodeOptions, 'load' | 'device'> & {
    /** Default 'cpu'. */
    readonly device?: DeviceChoice;
    /** Load the packages; tests pass their own. */
    readonly loadNative?: () => Promise<unknown>;
    readonly loadWeb?: () => Promise<unknown>;
  } = {},
): Promise<Engine> {
  const { loadNative, loadWeb, device = 'cpu', ...rest } = options;
  const { pacing, ...shared } = rest;
  const native = loadNative && { load: loadNative };
  if (device === 'gpu') return createOnnxRuntimeNodeEngine({ ...rest, ...native, device });
  if (device === 'auto')
    return createFasterEngine({
      cpu: () => createOnnxRuntimeHereEngine({ ...options, device: 'cpu' }),
      gpu: () => createOnnxRuntimeHereEngine({ ...options, device: 'gpu' }),
      now: options.now,
    });
  try {
    return await createOnnxRuntimeNodeEngine({ ...rest, ...native });
  } catch (error) {
    if (!(error instanceof InputError)) throw error;
    // One function after the other is compiled once more: the largest takes 270 MiB meanwhile, and two twice that.
    setFlagsFromString('--wasm-num-compilation-tasks=1');
    const adapt = pacing && { adapt: (runtime: OnnxRuntime) => paced(runtime, pacing) };
    const engine = await createOnnxRuntimeWebEngine({
      ...{ ...shared, ...adapt },
      ...(loadWeb && { load: loadWeb }),
    }).catch(() => {
      throw error; // that of the faster one says what to install
    });
    return Object.assign(engine, { warning: slowBecause(error.cause) });
  }
}

/** What the user should know where the native package is not to be had. */
function slowBecause(error: unknown): string {
  return (
    `SLOW: this device computes over WebAssembly, several times slower than it could, because ${absence(error)}; ` +
    `${installation}.`
  );
}
