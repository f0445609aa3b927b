// The narrow interface between training and whatever executes graphs. Values stay where the engine computes (a thread, a GPU)
// until they are asked for. Implementations: reference.ts (slow, obvious), onnxruntime.ts (over an injected ORT),
// compute-thread.ts (any engine behind a worker thread). All run testing/engine-suite.ts.

import type { Graph } from '../graph/graph.ts';
import type { Tensor, ValueType } from '../graph/tensor.ts';

/** A value that lives in the engine. Opaque; released by its owner. */
export interface Value extends ValueType {
  readonly handle: number;
}

/** A compiled graph with static shapes. */
export interface Executable {
  /** Input names, as in the graph. */
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  /**
   * Runs the graph. The inputs stay alive and unchanged. Runs of one engine happen in the order of the calls, so a value may be
   * released right after the call that uses it. Outputs belong to the caller.
   */
  run(inputs: Readonly<Record<string, Value>>): Promise<Record<string, Value>>;
  release(): void;
}

/** What executes graphs. */
export interface Engine {
  /** For people and caches, such as "onnxruntime-node 1.30.0 cpu (1 thread)". */
  readonly name: string;
  /** Compiles a graph whose shapes are all static. Parameters that change are graph inputs; initializers are constants. */
  compile(graph: Graph): Promise<Executable>;
  /** Hands a tensor to the engine, which owns its buffer from here on: the caller's array may be detached (moved, not copied). */
  upload(tensor: Tensor): Value;
  /** Copies a value out; the value stays. */
  download(value: Value): Promise<Tensor>;
  /** Moves a value out (no copy where the engine can); the value is released. */
  take(value: Value): Promise<Tensor>;
  /** Frees a value. Releasing twice is an error. */
  release(value: Value): void;
  /** Bytes of the values alive in the engine. */
  valueBytes(): number;
  /** Frees everything; no call is allowed afterwards. */
  close(): Promise<void>;
}
