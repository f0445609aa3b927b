// A model as a run needs it: ready to train, and on its way out as ONNX again.

import type { Graph } from '../../graph/graph.ts';
import type { Adapter } from '../../graph/lora.ts';
import type { WeightChoice } from '../../graph/onnx/parameters.ts';
import type { Tensor } from '../../graph/tensor.ts';

/** A loaded model. */
export interface LoadedModel {
  readonly name: string;
  /** In training mode. */
  readonly graph: Graph;
  /** What the user should know of how the file was read, one sentence each. */
  readonly notes: readonly string[];
  /** Why the file's float tensors are parameters or not; absent for built-in models, which say so themselves. */
  readonly choices?: readonly WeightChoice[];
  /** Its adapters, which `write` merges into the weights. Absent: it has none. */
  readonly adapters?: readonly Adapter[];
  /** The only parameters that are trained. Absent: as the settings say. */
  readonly onlyTrained?: ReadonlySet<string>;
  /** The graph, without its weights, for samples of so many tokens. Absent: the inputs' sizes are all that changes. */
  atLength?(length: number): Graph;
  /** Parameters of a pretrained net that it had not: their weights are fresh. Absent: none. */
  readonly newNames?: readonly string[];
  /** PEFT's name of a weight or a module of the graph. Absent: the same. */
  moduleName?(name: string): string;
  /**
   * The ONNX model with these parameters and buffers and entries of metadata, for inference: the user's own file but
   * for these.
   */
  write(trained: ReadonlyMap<string, Tensor>, metadata?: ReadonlyMap<string, string>): Uint8Array;
}
