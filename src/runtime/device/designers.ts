// What a stage can be asked to do, and who designs the graphs for it: one row a task. A new task is a file with its
// designer, its case of `Task` and its row; without the row this file does not compile.

import type { Engine } from '../../engine/engine.ts';
import { designInference, type InferenceOptions } from './inference-design.ts';
import { designStage } from './stage-design.ts';
import type { StageDesign, StageOptions } from './stage-graphs.ts';
import { designTangents } from './tangent-design.ts';

/** A task of a stage, with all that the design of its graphs depends on. */
export type Task =
  /** Forward and backward passes and updates. */
  | ({ readonly kind: 'train' } & StageOptions)
  /** Forward passes with tangents, and updates. */
  | ({ readonly kind: 'forward-gradient' } & StageOptions)
  /** Forward passes alone. */
  | ({ readonly kind: 'infer' } & InferenceOptions);

/** Designs a stage's graphs for one kind of task. Throws InputError for a model that cannot do it. */
export type Designer<Kind extends Task['kind']> = (
  engine: Pick<Engine, 'blockSize'>,
  task: Extract<Task, { readonly kind: Kind }>,
) => StageDesign;

/** A designer for every task. */
export type Designers = { readonly [Kind in Task['kind']]: Designer<Kind> };

export const designers: Designers = {
  train: designStage,
  'forward-gradient': designTangents,
  infer: (_engine, task) => designInference(task),
};

/** What a stage of a training run does. */
export function trainingTask(options: StageOptions): Task {
  return { kind: options.training.forwardGradient === undefined ? 'train' : 'forward-gradient', ...options };
}

/** The graphs that a stage runs for its task, in the forms that the engine likes. */
export function design<Kind extends Task['kind']>(
  engine: Pick<Engine, 'blockSize'>,
  task: Extract<Task, { readonly kind: Kind }>,
): StageDesign {
  const designer: Designer<Kind> = designers[task.kind as Kind];
  return designer(engine, task);
}
