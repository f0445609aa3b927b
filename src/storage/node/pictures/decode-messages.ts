// What a process that reads pictures, the one that decodes them and the threads of that say to each other.

import type { Recipe } from './decode.ts';

/** What the process is started with. */
export interface DecodeSettings {
  readonly recipe: Recipe;
  readonly threads: number;
  /** Bytes of decoded pictures that all threads together may keep. */
  readonly cacheBytes: number;
}

/** What a thread is started with. */
export type DecodeOptions = Omit<DecodeSettings, 'threads'>;

/** Asks for one sample: of an epoch, or as it is tested. */
export interface DecodeRequest {
  readonly id: number;
  readonly path: string;
  readonly sample: number;
  readonly epoch: number | undefined;
}

/** A sample's values, or why there are none. */
export type DecodeReply =
  | { readonly id: number; readonly values: Float32Array<ArrayBuffer> }
  | { readonly id: number; readonly problem: string };
