// The thread of a tab in which the engine computes, and nothing else happens: threads of links hear of the world
// meanwhile (compute.ts). It computes on the processor, the graphics chip, or what of them is faster.

import { EngineService } from '../../engine/engine-service.ts';
import { type BrowserGpu, createBrowserEngine } from '../../engine/onnxruntime-browser.ts';
import type { Request } from '../../engine/thread-messages.ts';
import type { EngineSettings } from './messages.ts';

/** The part of a build of the package onnxruntime-web that says where its WebAssembly is. */
interface Build {
  readonly env: { readonly wasm: { wasmPaths?: unknown } };
}

/** A build of the package, with its WebAssembly from this page's server. */
async function load(loading: Promise<unknown>, wasm: string): Promise<Build> {
  const build = (await loading) as Build;
  build.env.wasm.wasmPaths = { wasm: new URL(wasm, self.location.href) };
  return build;
}

const service = new EngineService({
  post: (replies, moved) => self.postMessage(replies, { transfer: [...moved] }),
});

self.onmessage = ({ data }: MessageEvent<EngineSettings | readonly Request[]>) => {
  if (!('device' in data)) return service.take(data);
  const engine = createBrowserEngine({
    ...data,
    gpu: (navigator as { readonly gpu?: BrowserGpu }).gpu,
    isSecure: self.isSecureContext,
    loadCpu: () => load(import('onnxruntime-web/wasm'), '/ort.wasm'),
    loadGpu: () => load(import('onnxruntime-web/webgpu'), '/ort-gpu.wasm'),
    onDetour: (kernel, fault) => service.detour(`${kernel} (${fault})`),
  });
  void service.start(engine);
};
