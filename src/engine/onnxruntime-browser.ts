// ONNX Runtime in a browser: on the processor by WebAssembly, on the graphics chip by WebGPU, or on what of them is
// faster. The builds of the package `onnxruntime-web` are given; the one for the GPU, which is larger, is loaded only
// where a browser offers a GPU.

import { InputError } from '../errors.ts';
import type { DeviceChoice, Engine } from './engine.ts';
import { createFasterEngine } from './faster-engine.ts';
import type { GpuEngineOptions } from './onnxruntime-gpu.ts';
import { createOnnxRuntimeWebEngine } from './onnxruntime-web.ts';

/** `navigator.gpu`, as far as it is used here. */
export interface BrowserGpu {
  requestAdapter(): Promise<BrowserAdapter | null>;
}

interface BrowserAdapter {
  readonly info?: { readonly isFallbackAdapter?: boolean };
}

export interface BrowserEngineOptions extends Pick<GpuEngineOptions, 'onDetour'> {
  readonly device: DeviceChoice;
  /** Threads inside one operator. Of the processor only. */
  readonly threadCount: number;
  /** Undefined where the browser has none. */
  readonly gpu: BrowserGpu | undefined;
  /** Whether the page came over an encrypted connection, or from this machine: others get no GPU. */
  readonly isSecure: boolean;
  /** Loads the build with WebAssembly alone. */
  loadCpu(): Promise<unknown>;
  /** Loads the build with WebGPU. */
  loadGpu(): Promise<unknown>;
}

/** Throws InputError where the GPU is asked for and there is none. */
export function createBrowserEngine(options: BrowserEngineOptions): Promise<Engine> {
  const { device, threadCount, loadCpu } = options;
  const cpu = (): Promise<Engine> => createOnnxRuntimeWebEngine({ load: loadCpu, threadCount });
  const gpu = (): Promise<Engine> => onGpu(options);
  return device === 'cpu' ? cpu() : device === 'gpu' ? gpu() : createFasterEngine({ cpu, gpu });
}

async function onGpu({ device, loadGpu, onDetour, ...rest }: BrowserEngineOptions): Promise<Engine> {
  const remedy = device === 'auto' ? '' : 'compute on the processor';
  const absence = await gpuAbsence(rest, device);
  if (absence !== undefined)
    throw new InputError(`No graphics chip can be used here (${absence})${remedy && `: ${remedy}`}.`);
  return createOnnxRuntimeWebEngine({ device: 'gpu', load: loadGpu, remedy, onDetour });
}

/** Why there is no GPU to compute on; a software driver is none unless it is asked for. */
async function gpuAbsence(
  { gpu, isSecure }: Pick<BrowserEngineOptions, 'gpu' | 'isSecure'>,
  device: DeviceChoice,
): Promise<string | undefined> {
  if (gpu === undefined)
    return isSecure ? 'this browser has no WebGPU' : 'browsers give it to encrypted pages only, and this one is plain';
  const adapter = await gpu.requestAdapter();
  if (adapter === null) return 'this browser finds none';
  return device === 'auto' && adapter.info?.isFallbackAdapter === true ? 'there is only a software driver' : undefined;
}
