// From what a stage is made of to a stage that computes: whole shares at once, or, in a strict run, grain by grain.

import { assert } from '../../assert.ts';
import type { PlanLayout } from '../../cluster/cluster.ts';
import type { Engine } from '../../engine/engine.ts';
import type { DeviceProgram } from '../../schedule/program.ts';
import type { RunSubject } from '../protocol/run-subject.ts';
import { type CompiledStage, compileStage, type StageStore } from './compiled-stages.ts';
import { EngineStage } from './engine-stage.ts';
import type { GrainLayout } from './grained-passes.ts';
import { InferenceStage } from './inference-stage.ts';
import { restOf, restOptionsOf } from './rest-stage.ts';
import type { StagePort } from './stage.ts';
import type { StageOptions } from './stage-graphs.ts';
import { stageOptionsOf } from './stage-options.ts';
import type { WeightKeeping } from './weight-files.ts';

/**
 * Compiles a stage, with what `store` kept of it; its state is loaded afterwards. One that only infers is compiled when
 * its weights are there.
 */
export async function createStage(
  engine: Engine,
  options: StageOptions,
  store?: StageStore,
  keeping?: WeightKeeping,
): Promise<StagePort> {
  if (options.form.passes === 'forward') return new InferenceStage(engine, options, keeping);
  const inner = compiledOptions(options);
  const compile = (rest: StageOptions): Promise<CompiledStage> => compileStage(engine, rest, store);
  return new EngineStage(engine, inner, await compile(inner), { grains: grainsOf(options), compile });
}

/** Undefined outside of strict runs. */
function grainsOf({ training: { grain }, sampleCount, microBatchSize }: StageOptions): GrainLayout | undefined {
  return grain === undefined ? undefined : { grain, ownCount: sampleCount / grain, count: microBatchSize / grain };
}

/** A stage that may be needed: as a device of a plan runs it, or its odd share in a round of `sampleCount` samples. */
export interface StageWish {
  readonly device: DeviceProgram;
  readonly plan: PlanLayout;
  readonly sampleCount?: number;
}

/**
 * What would be compiled for a stage. Of a round of fewer samples as far as that is known before its usual passes are
 * compiled: that their step updates where it may. Undefined if nothing would be.
 */
export function wishedOptions(
  subject: Pick<RunSubject, 'sequence' | 'label' | 'training'>,
  { device, plan, sampleCount }: StageWish,
  memoryBytes: number | undefined,
): StageOptions | undefined {
  const options = compiledOptions(stageOptionsOf(subject, device, plan, memoryBytes));
  // Its graph has the weights in it, which come later.
  if (options.form.passes === 'forward') return undefined;
  if (sampleCount === undefined) return options;
  return restOptionsOf(options, restOf(device, plan, sampleCount).share, true).odd;
}

/** What is compiled for a stage: all of its share at once, or, in a strict run, a grain. */
export function compiledOptions(options: StageOptions): StageOptions {
  const { grain } = options.training;
  if (grain === undefined) return options;
  const [ownCount, grains] = [options.sampleCount / grain, options.microBatchSize / grain];
  assert(Number.isInteger(ownCount) && Number.isInteger(grains), `shares in grains of ${grain} samples`);
  // What is computed again may come out with other last bits: a strict stage keeps all.
  return {
    ...options,
    sampleCount: ownCount > 0 ? grain : 0,
    microBatchSize: grain,
    form: { ...options.form, grains },
    savedBudgetBytes: undefined,
  };
}
