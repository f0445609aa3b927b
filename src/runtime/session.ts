// One training run from settings to result: what the commands `train`, `quickstart` and `verify` share. It prepares model and data, opens the run folder,
// trains here or over workers, writes metrics, events, checkpoints and the trained model, and tests it.

import { defined } from '../assert.ts';
import type { Clock } from '../clock.ts';
import type { Cluster, Plan, Profile } from '../cluster/cluster.ts';
import type { Engine } from '../engine/engine.ts';
import { InputError } from '../errors.ts';
import { type CutTensor, type LayerSequence, layers } from '../graph/layers.ts';
import { trainingMode } from '../graph/onnx/modes.ts';
import { type Dataset, checkLabels, gather } from '../training/data/dataset.ts';
import { bindDataset } from '../training/data/bind.ts';
import { type BatchOrder, batchIndices, epochOf, roundsPerEpoch } from '../training/data/order.ts';
import { type Schedule, learningRate } from '../training/schedules.ts';
import { clipScale } from '../training/clipping.ts';
import type { Batch, CoordinatorEnd, RunHooks, RunSubject } from './coordinator/coordinator.ts';
import type { MachineConfig } from './coordinator/machine.ts';
import type { Observer, RunEvent } from './events.ts';
import type { LoadedModel } from './models.ts';
import type { RunState } from './run-state.ts';
import type { TrainingSpec } from './training-spec.ts';

export {};
