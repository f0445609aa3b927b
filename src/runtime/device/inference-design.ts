// The graphs of a stage that infers: its layers forward, with the weights as constants, and on the last stage the loss
// of the samples that count. It has no state to update, and nothing is kept for a backward pass.

import { defined } from '../../assert.ts';
import type { CutTensor, LayerSequence } from '../../graph/layers.ts';
import { extractStage } from '../../graph/stage.ts';
import { type LossKind, lossGraph } from '../../training/losses.ts';
import type { PassNotes, StageDesign } from './stage-graphs.ts';

/** What a stage that infers is made of. */
export interface InferenceOptions {
  /** In inference mode (graph/onnx/modes.ts). */
  readonly sequence: LayerSequence;
  /** Half-open range of layers. */
  readonly layers: readonly [first: number, end: number];
  /** Samples that the layers run with. */
  readonly sampleCount: number;
  /** See Graph. */
  readonly keepsMemory?: boolean;
  /** What the outputs are compared with; absent: they are not. */
  readonly test?: InferenceTest;
}

/** The comparison of a model's outputs with labels. */
export interface InferenceTest {
  readonly loss: LossKind;
  readonly label: CutTensor;
  /** Some labels are left out: see LossOptions. */
  readonly ignoresNegative: boolean;
  /** Samples that count, the first ones: fewer than run where a batch of fixed size is filled up. */
  readonly sampleCount: number;
}

const noNotes: PassNotes = {
  saved: [],
  savedInputs: [],
  intermediates: [],
  bufferUpdates: [],
  isUpdating: false,
  isSumming: false,
  inputGradients: [],
  gradients: [],
  dropouts: [],
  pieces: [],
};

/** Designs `forward` and, on the last stage of a test, `loss`. */
export function designInference(options: InferenceOptions): StageDesign {
  const { sequence, layers, sampleCount, test, keepsMemory = false } = options;
  const { graph } = extractStage(sequence, layers[0], layers[1], sampleCount);
  const forward = { ...graph, parameters: [], buffers: [], keepsMemory };
  if (test === undefined || layers[1] !== sequence.layers.length) return { pass: noNotes, graphs: { forward } };
  const output = defined(graph.outputs[0], 'the output');
  const logits = { type: output.type, shape: [test.sampleCount, ...(output.shape.slice(1) as number[])] };
  const labels = { type: test.label.type, shape: [test.sampleCount, ...(test.label.shape.slice(1) as number[])] };
  return {
    pass: noNotes,
    graphs: { forward, loss: lossGraph(test.loss, logits, labels, { ignoresNegative: test.ignoresNegative }) },
  };
}
