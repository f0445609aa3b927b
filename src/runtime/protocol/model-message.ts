// What a worker is told of a run's model; its graph follows as bytes (model-transfer.ts).

import type { TrainingSpec } from './training-spec.ts';

export interface TensorSpec {
  readonly name: string;
  readonly shape: readonly number[];
}

/** The model of a run. */
export interface ModelMessage {
  readonly parameters: readonly TensorSpec[];
  readonly buffers: readonly TensorSpec[];
  readonly training: TrainingSpec;
  /** Names of the layers as the coordinator sees them; the worker must find the same. */
  readonly layerNames: readonly string[];
  /** Shape of one sample's label. */
  readonly labelShape: readonly number[];
  readonly labelType: 'int64' | 'int32' | 'uint8' | 'float32';
  /** The secret by which this run's workers know each other. */
  readonly peerToken: string;
  /** Numbers of tokens of shorter samples, whose graphs follow the model's. Absent: there are none. */
  readonly lengths?: readonly number[];
}
