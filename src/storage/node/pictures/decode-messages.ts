// What the main thread and the threads that decode say to each other.

import type { Recipe } from './decode.ts';

/** What a thread is started with. */
export interface DecodeOptions {
  readonly files: readonly string[];
  readonly recipe: Recipe;
  /** Bytes of decoded pictures that this thread may keep. */
  readonly cacheBytes: number;
}

/** Asks for one sample: of an epoch, or as it is tested. */
export interface DecodeRequest {
  readonly id: number;
  readonly sample: number;
  readonly epoch: number | undefined;
}

/** A sample's values, or why there are none. */
export type DecodeReply =
  | { readonly id: number; readonly values: Float32Array<ArrayBuffer> }
  | { readonly id: number; readonly problem: string };
