// The narrow interface between training and what executes graphs. Values stay where the engine computes (a thread,
// a GPU) until they are asked for. Implementations: reference.ts (slow, obvious), onnxruntime.ts (over an injected
// ORT), threaded-engine.ts (any engine in a thread of its own). All run testing/engine-suite.ts.
//
// DISPATCH IS ASYNCHRONOUS: `run`, `upload` and `release` return at once and happen in the order of the calls. Results
// are handles that may be passed on (to `run`, `take`, …) before they are computed, so a whole micro-batch can be
// queued without one wait between its graphs. A failure of a run surfaces wherever one of its values is awaited
// (`download`, `take`), at `settled()`, and in `close()`.

import type { Graph, ValueInfo } from '../graph/graph.ts';
import type { Tensor, ValueType } from '../graph/tensor.ts';
import type { Noise } from '../noise.ts';

/** What a device computes on: its processor, its graphics chip, or what is faster. */
export const deviceChoices = ['cpu', 'gpu', 'auto'] as const;
export type DeviceChoice = (typeof deviceChoices)[number];

/** A value that lives in the engine (perhaps not computed yet). Opaque; released by its owner. */
export interface Value extends ValueType {
  readonly handle: number;
}

/** A compiled graph with static shapes. */
export interface Executable {
  /** Input names, as in the graph. */
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  /**
   * Queues a run of the graph. The inputs stay alive and unchanged, and may be released right after this call. Outputs
   * belong to the caller. `outputs`: the names wanted; the others are neither kept nor counted. Default: all.
   * `replaced`: by wanted output, an input of its type and shape that is released with the run, and whose memory the
   * output may take: for an input that only the node of this output reads, element by element (a sum that grows).
   */
  run(
    inputs: Readonly<Record<string, Value>>,
    outputs?: readonly string[],
    replaced?: Readonly<Record<string, string>>,
  ): Record<string, Value>;
  release(): void;
}

/**
 * A graph in the form in which an engine runs it, as plain data: kept in a file, it saves an engine of the same name,
 * in any process, the work of finding the form.
 */
export interface Translation {
  /** The graph's name and border. */
  readonly name: string;
  readonly inputs: readonly ValueInfo[];
  readonly outputs: readonly ValueInfo[];
  /**
   * The border of `model`, value for value: shapes and outputs' names may be others there. It may have one output more
   * before these.
   */
  readonly modelInputs: readonly ValueInfo[];
  readonly modelOutputs: readonly ValueInfo[];
  /** An ONNX file. */
  readonly model: Uint8Array;
  /** The folder of the files with weights to which `model` refers, if it does. */
  readonly weightFolder?: string | undefined;
  /** Whether the engine's own optimizations find something in it. */
  readonly isOptimizable: boolean;
  /** See Graph. */
  readonly keepsMemory: boolean;
  /** Whether a run can write the outputs into buffers that it is given. */
  readonly writesInPlace: boolean;
}

/** What translations depend on apart from the graph. */
export interface TranslationTarget {
  /** See Engine. */
  readonly blockSize: number | undefined;
  /** Whether the engine can be made to write outputs into buffers that it is given. */
  readonly writesInPlace: boolean;
  /** Whether the engine reads weights from files by itself. */
  readonly readsFiles: boolean;
}

/** What executes graphs. */
export interface Engine {
  /** For people and caches, such as "onnxruntime-node 1.30.0 cpu (1 thread)". */
  readonly name: string;
  /** One sentence for the user, where this is a far slower engine than the device could have: why, and the fix. */
  readonly warning?: string | undefined;
  /** One sentence for the user, where it was chosen for him what to compute on: what, and why. */
  readonly choice?: string | undefined;
  /**
   * Channels of a block, where the engine has kernels for the blocked layout (lowering/blocked.ts): graphs may use them
   * then.
   */
  readonly blockSize: number | undefined;
  /**
   * Compiles a graph whose shapes are all static, or its translation. Parameters that change are graph inputs;
   * initializers are constants.
   */
  compile(source: Graph | Translation): Promise<Executable>;
  /** Translates a graph, to compile it then and later. Undefined where the engine runs graphs as they are. */
  readonly translate?: ((graph: Graph) => Promise<Translation>) | undefined;
  /** What these translations are for (translate.ts). */
  readonly translationTarget?: TranslationTarget | undefined;
  /**
   * Hands a tensor to the engine, which owns its buffer from here on: the caller's array may be detached (moved, not
   * copied).
   */
  upload(tensor: Tensor): Value;
  /** Makes noise in a float32 tensor of this shape where the engine computes, in the order of the calls. */
  draw(shape: readonly number[], noise: Noise): Value;
  /** Copies a value out; the value stays. */
  download(value: Value): Promise<Tensor>;
  /** Moves a value out (no copy where the engine can); the value is released at once. */
  take(value: Value): Promise<Tensor>;
  /** Frees a value, after the runs queued before. Releasing twice is an error. */
  release(value: Value): void;
  /**
   * Lets go of memory that is kept for later runs, unless that is less than `leastBytes` (default 0): to be called when
   * others will run than before.
   */
  trim(leastBytes?: number): void;
  /** Resolves when everything queued so far is done; rejects with the first failure since the last call. */
  settled(): Promise<void>;
  /** Resolves when everything queued so far is done, failed or not, with how many milliseconds ago that was. */
  computed(): Promise<number>;
  /** Bytes of the values alive in the engine. */
  valueBytes(): number;
  /**
   * Milliseconds of work since the engine was made (runs, and freeing what they left), as of the last settled result.
   */
  busyMs(): number;
  /**
   * Processor time of the thread that computes, in milliseconds, as of the last settled result; undefined where others
   * compute with it, or where nobody counts. Default: never known.
   */
  threadMs?(): number | undefined;
  /** Frees everything; no call is allowed afterwards. */
  close(): Promise<void>;
}
