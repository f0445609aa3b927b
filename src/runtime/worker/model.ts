// The model of a run on a worker, read from what the coordinator sent.

import { ProtocolError, RunError } from '../../errors.ts';
import { type CutTensor, haveSameLayers, type LayerSequence, layers } from '../../graph/layers.ts';
import { wrap } from '../../graph/tensor.ts';
import type { Frame } from '../../transport/link.ts';
import type { ToWorker } from '../protocol/messages.ts';
import type { ModelMessage } from '../protocol/model-message.ts';
import { decodeModel } from '../protocol/model-transfer.ts';
import type { TrainingSpec } from '../protocol/training-spec.ts';
import { Catalog } from './catalog.ts';
import { Layouts } from './held-layouts.ts';
import { Replicas } from './replicas.ts';

/** The model, and what this device holds of it. */
export interface Model {
  readonly message: ModelMessage;
  readonly training: TrainingSpec;
  /** ONNX without weights, as it came. Absent if it came in another form. */
  readonly graph?: Uint8Array;
  readonly sequence: LayerSequence;
  /** A sample's label. */
  readonly label: CutTensor;
  readonly catalog: Catalog;
  readonly replicas: Replicas;
  readonly layouts: Layouts;
}

/**
 * Reads the model that the coordinator sent. Throws ProtocolError or InputError if it is none, RunError if the
 * coordinator cuts it into other layers.
 */
export function receiveModel(
  control: ModelMessage,
  frame: Frame,
  read: (control: ModelMessage, frame: Frame) => LayerSequence = readModel,
): Model {
  const sequence = read(control, frame);
  const names = sequence.layers.map((layer) => layer.name);
  if (names.length !== control.layerNames.length || names.some((name, index) => name !== control.layerNames[index])) {
    throw new RunError(
      'This worker cuts the model into other layers than the coordinator: ' +
        'both must run the same version of Asteroid.',
    );
  }
  const { labelType: type, labelShape, training } = control;
  const label: CutTensor = { name: 'label', type, shape: ['N', ...labelShape], batchAxis: 0, differentiable: false };
  const catalog = new Catalog(sequence, training.frozen);
  const replicas = new Replicas(catalog);
  const graph = frame.tensors?.[0]?.data;
  return {
    ...{ message: control, training, sequence, label, catalog, replicas, layouts: new Layouts(catalog, replicas) },
    ...(graph instanceof Uint8Array ? { graph } : {}),
  };
}

/** Reads the model in another thread or process of this device, from `Model.message` and `Model.graph`. */
export function modelOf(control: ModelMessage, graph: Uint8Array): Model {
  const tensors = [wrap('uint8', [graph.length], graph)];
  const { lengths: _, ...usual } = control;
  return receiveModel(usual, { kind: 'model', epoch: 0, round: -1, microBatch: -1, tensors });
}

function readModel(control: ModelMessage, frame: Frame): LayerSequence {
  const { training, lengths = [] } = control;
  const { frozen, isInference = false, forwardGradient } = training;
  const isTrainedTogether = forwardGradient?.perturbs === 'activations';
  const options = { frozen, isTrainedTogether, outputs: isInference ? 'all' : 'first' } as const;
  const sequenceAt = (index: number): LayerSequence => layers(decodeModel(control, frame, index), options);
  const usual = sequenceAt(0);
  if (lengths.length === 0) return usual;
  const shorter = lengths.map((length, index) => [length, sequenceAt(index + 1)] as const);
  for (const [length, sequence] of shorter)
    if (!haveSameLayers(usual, sequence))
      throw new ProtocolError(`The coordinator sent a model for ${length} tokens that has other layers.`);
  return { ...usual, shorter: new Map(shorter) };
}

/** A value that an earlier message must have brought. Throws ProtocolError if it has not. */
export function earlier<T>(value: T | undefined, kind: keyof ToWorker, what: string): T {
  if (value === undefined) throw new ProtocolError(`The coordinator sent "${kind}" before ${what}.`);
  return value;
}
