// What a compute thread of Node's is started with.

import type { DeviceChoice } from '../engine.ts';

/**
 * The engine of a compute thread: a name, or the URL of a module that exports `createEngine(options): Promise<Engine>`.
 */
export type EngineChoice = 'onnxruntime' | 'reference' | { readonly module: string };

/** What the thread is started with. */
export interface ThreadOptions {
  readonly engine: EngineChoice;
  readonly device: DeviceChoice;
  readonly threadCount: number;
  readonly maxCpu: number;
  readonly isCourteous: boolean;
}
