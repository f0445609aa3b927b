// What a model is measured for, and what is found.

import type { Clock } from '../../../clock.ts';
import type { DeviceTimes, LayerProfile } from '../../../cluster/cluster.ts';
import type { ProcessClock } from '../../../engine/process-clock.ts';
import type { CutTensor } from '../../../graph/layers.ts';
import type { Thoroughness } from '../../protocol/profile-points.ts';
import type { TrainingSpec } from '../../protocol/training-spec.ts';
import type { LayerTrial } from './trials.ts';

/** A measured profile of one device. */
export interface MeasuredProfile {
  readonly layers: readonly LayerProfile[];
  readonly times: DeviceTimes;
  /** True when it was not measured now but read from the cache. */
  readonly cached: boolean;
}

export interface ProfileOptions {
  /** Ascending. */
  readonly batchSizes: readonly number[];
  /** Default: full. */
  readonly thoroughness?: Thoroughness | undefined;
  /** Loss, optimizer and frozen parameters count. */
  readonly training: TrainingSpec;
  /** What a sample's label is. */
  readonly label: CutTensor;
  /** What this device may use; stages that do not fit are not tried. Default: not known. */
  readonly memoryBytes?: number | undefined;
  readonly clock: Clock;
  /** What this process has done (`createProcessClock`). Default: not known. */
  readonly processWork?: ProcessClock | undefined;
  onProgress(done: number, total: number): void;
}

/** What a measurement finds, and the layers alone at the largest batch size at which they were measured. */
export interface FoundTimes {
  readonly times: DeviceTimes;
  readonly largest: readonly LayerTrial[];
  readonly batchSize: number;
}
