// From what a stage is made of to a stage that computes: whole shares at once, or, in a strict run, grain by grain.

import { assert } from '../../assert.ts';
import type { Engine } from '../../engine/engine.ts';
import { compileStage, type StageStore } from './compiled-stages.ts';
import { GrainedStage, type GrainLayout } from './grained-stage.ts';
import { Stage, type StagePort } from './stage.ts';
import type { StageOptions } from './stage-graphs.ts';

/** Compiles a stage, with what `store` kept of it; its state is loaded afterwards. */
export async function createStage(engine: Engine, options: StageOptions, store?: StageStore): Promise<StagePort> {
  const { grain } = options.training;
  if (grain === undefined) return new Stage(engine, options, await compileStage(engine, options, store));
  const layout: GrainLayout = { grain, ownCount: options.sampleCount / grain, count: options.microBatchSize / grain };
  assert(Number.isInteger(layout.ownCount) && Number.isInteger(layout.count), `shares in grains of ${grain} samples`);
  const sampleCount = layout.ownCount > 0 ? grain : 0;
  // What is computed again may come out with other last bits: a strict stage keeps all.
  const inner: StageOptions = { ...options, sampleCount, microBatchSize: grain, grainCount: layout.count, savedBudgetBytes: undefined };
  return new GrainedStage(new Stage(engine, inner, await compileStage(engine, inner, store)), layout);
}
