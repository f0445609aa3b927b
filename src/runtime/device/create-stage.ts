// From what a stage is made of to a stage that computes: whole shares at once, or, in a strict run, grain by grain.

import { assert } from '../../assert.ts';
import type { Engine } from '../../engine/engine.ts';
import { type CompiledStage, compileStage, type StageStore } from './compiled-stages.ts';
import { EngineStage } from './engine-stage.ts';
import type { GrainLayout } from './grained-passes.ts';
import type { StagePort } from './stage.ts';
import type { StageOptions } from './stage-graphs.ts';

/** Compiles a stage, with what `store` kept of it; its state is loaded afterwards. */
export async function createStage(engine: Engine, options: StageOptions, store?: StageStore): Promise<StagePort> {
  const inner = compiledOptions(options);
  const compile = (rest: StageOptions): Promise<CompiledStage> => compileStage(engine, rest, store);
  return new EngineStage(engine, inner, await compile(inner), { grains: grainsOf(options), compile });
}

/** Undefined outside of strict runs. */
function grainsOf({ training: { grain }, sampleCount, microBatchSize }: StageOptions): GrainLayout | undefined {
  return grain === undefined ? undefined : { grain, ownCount: sampleCount / grain, count: microBatchSize / grain };
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
