// What a run trains: the model, its task and the state that it begins with.

import type { CutTensor, LayerSequence } from '../../graph/layers.ts';
import type { RunState } from './run-state.ts';
import type { TrainingSpec } from './training-spec.ts';

/** What is trained, from which state. */
export interface RunSubject {
  readonly modelName: string;
  readonly sequence: LayerSequence;
  readonly training: TrainingSpec;
  readonly label: CutTensor;
  readonly state: RunState;
}
