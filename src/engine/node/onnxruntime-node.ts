// The engine over the package `onnxruntime-node`, an optional dependency: npm leaves it out where it has no build for
// the platform.

import { InputError } from '../../errors.ts';
import type { Engine } from '../engine.ts';
import { createOnnxRuntimeEngine } from '../onnxruntime.ts';
import { createGpuEngine, type GpuEngineOptions } from '../onnxruntime-gpu.ts';
import type { OnnxRuntime } from '../onnxruntime-module.ts';
import { withHeapRoom } from './heap-room.ts';
import { type PacingOptions, paced } from './pacing.ts';

export interface OnnxRuntimeNodeOptions {
  /** Default 'cpu'. */
  readonly device?: 'cpu' | 'gpu';
  /** Threads inside one operator. Default 1. Of the CPU only. */
  readonly threadCount?: number;
  /** Default: no limits. */
  readonly pacing?: PacingOptions;
  /** Milliseconds, monotonic, by which runs are timed. Default performance.now. */
  readonly now?: () => number;
  /** See GpuEngineOptions. */
  readonly onDetour?: GpuEngineOptions['onDetour'];
  /** Loads the package; tests pass their own. Default: `import('onnxruntime-node')`. */
  readonly load?: () => Promise<unknown>;
}

/** The part of the package that says what it is. */
interface Environment {
  readonly env: { logLevel?: string; readonly versions: { readonly node?: string } };
}

/**
 * Loads ONNX Runtime and makes an engine over it in the calling thread. Throws InputError where the package is missing.
 */
export async function createOnnxRuntimeNodeEngine(options: OnnxRuntimeNodeOptions = {}): Promise<Engine> {
  const { threadCount = 1, load = () => import('onnxruntime-node') } = options;
  let runtime: OnnxRuntime & Environment;
  try {
    runtime = (await load()) as OnnxRuntime & Environment;
  } catch (error) {
    throw new InputError(missing(error), { cause: error });
  }
  runtime.env.logLevel = 'error'; // Its warnings are about devices that this engine does not use.
  const roomy = process.platform === 'linux' ? withHeapRoom(runtime) : runtime;
  const adapted = options.pacing === undefined ? roomy : paced(roomy, options.pacing);
  const name = `onnxruntime-node ${runtime.env.versions.node ?? ''}`.trim();
  return options.device === 'gpu'
    ? createGpuEngine(adapted, { name, now: options.now, onDetour: options.onDetour })
    : createOnnxRuntimeEngine(adapted, { name, threadCount, now: options.now });
}

/** How to get the package. Its binaries are in it; its install script looks for more on the network, for GPUs. */
export const installation = 'run "npm install --ignore-scripts onnxruntime-node" where asteroid is installed';

/** Why the package is not there, from the error of loading it. One clause. */
export function absence(error: unknown): string {
  if (isMissing(error)) return 'the package onnxruntime-node is not installed';
  const reason = error instanceof Error ? error.message : String(error);
  return `the package onnxruntime-node does not load (${firstLine(reason)})`;
}

function firstLine(text: string): string {
  const [line = ''] = text.split('\n', 1);
  return line.length > 200 ? `${line.slice(0, 199)}…` : line;
}

/** The package is not there: not a file that it looks for itself, as where it has no build for the platform. */
function isMissing(error: unknown): boolean {
  const code = error instanceof Error && 'code' in error ? error.code : undefined;
  return (
    (code === 'ERR_MODULE_NOT_FOUND' || code === 'MODULE_NOT_FOUND') &&
    !/\.node'/.test((error as Error).message.split('\n', 1)[0] ?? '')
  );
}

function missing(error: unknown): string {
  if (!isMissing(error)) {
    const reason = error instanceof Error ? error.message : String(error);
    return (
      `The package onnxruntime-node does not load here (${reason}): ` +
      'choose the engine "reference", which is slow and needs nothing.'
    );
  }
  return (
    `The engine "onnxruntime" needs the package onnxruntime-node, which is not installed: ${installation}, or, ` +
    'where it has no build for the machine, "npm install onnxruntime-web", which is several times slower.'
  );
}
