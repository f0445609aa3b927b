import type { Engine } from '../../engine/engine.ts';
import { runMemory } from '../../engine/onnxruntime-memory.ts';
import type { Graph } from '../../graph/graph.ts';
import { byteLength } from '../../graph/tensor.ts';
import { meanGraph } from '../../training/aggregation.ts';
import { squaredNormGraph } from '../../training/clipping.ts';
import { accumulateGraph, withSums, zerosGraph } from '../../training/optimizers.ts';
import type { TensorSpec } from '../protocol/model-message.ts';
import { keepFilters } from './kept-filters.ts';
import { packMemberLimit } from './packs.ts';
import { designPass, type PassDesign, updatingStep } from './pass-design.ts';
import type { ByGraph, StageDesign, StageOptions } from './stage-graphs.ts';
import { layOut } from './stage-layout.ts';

/** Differentiates layers [first, end) for a share of a micro-batch, in the forms that the engine likes. */
export function designStage(engine: Pick<Engine, 'blockSize'>, options: StageOptions): StageDesign {
  // Lowering looks at what stands around a layer, which cuts change: a strict run does without.
  const blockSize = options.training.grain === undefined ? engine.blockSize : undefined;
  const { unpacked, packs, trained, optimizer } = layOut(options);
  const { passes, sums, grains, isRest = false } = options.form;
  const isSingle = sums === 'none';
  const designed = (budgetBytes: number | undefined): PassDesign => {
    const found = designPass(blockSize, { ...options, trained: unpacked, packs, apartBudgetBytes: budgetBytes });
    return isSingle ? found : summing(found, trained);
  };
  const found = options.sampleCount > 0 ? withinBudgets(designed, blockSize, options) : undefined;
  const pass =
    found === undefined || isSingle || isRest || blockSize === undefined
      ? found
      : keepingFilters(found, options, blockSize);
  const step =
    passes === 'step-with-update' && pass !== undefined ? updatingStep(pass, trained, options.training) : undefined;
  if (step !== undefined && pass !== undefined) return { pass: { ...pass.notes, isUpdating: true }, graphs: { step } };
  const updates: ByGraph<Graph> =
    trained.length === 0
      ? {}
      : {
          update: optimizer.graph,
          squaredNorm: squaredNormGraph(trained),
          ...(pass?.notes.isSumming === true ? { zeros: zerosGraph(trained) } : {}),
          ...(grains > 1 ? { accumulate: accumulateGraph(trained) } : {}),
          ...meanGraphs(trained, options),
        };
  return { pass: pass?.notes, graphs: { ...pass?.graphs, ...updates } };
}

/** Means of as many versions as there may be. */
function meanGraphs(trained: readonly TensorSpec[], { aggregation }: StageOptions): ByGraph<Graph> {
  const { versionCount = 0 } = aggregation ?? {};
  const counts = Array.from({ length: Math.max(0, versionCount - 1) }, (_, index) => 2 + index);
  return Object.fromEntries(counts.map((count) => [`mean${count}`, meanGraph(trained, count)]));
}

/** The pass with a graph that makes the filters of a round. */
function keepingFilters(
  { notes, graphs }: PassDesign,
  { sequence, layers }: StageOptions,
  blockSize: number,
): PassDesign {
  const parameters = new Set(sequence.layers.slice(...layers).flatMap((layer) => layer.parameters));
  const { filters, graphs: passes } = keepFilters(graphs, parameters, blockSize);
  return { notes, graphs: { ...passes, ...(filters === undefined ? {} : { filters }) } };
}

/** The pass with gradients added to their sums in the graphs that make them. */
function summing({ notes, graphs }: PassDesign, trained: readonly TensorSpec[]): PassDesign {
  if (notes.gradients.length === 0) return { notes, graphs };
  const summed = Object.entries(graphs).map(([name, graph]) => [name, withSums(graph, trained, packMemberLimit)]);
  return { notes: { ...notes, isSumming: true }, graphs: Object.fromEntries(summed) };
}

/** If passes leave no room for what they need besides what micro-batches keep, passes that keep less. */
function withinBudgets(
  designed: (budgetBytes: number | undefined) => PassDesign,
  blockSize: number | undefined,
  { savedBudgetBytes, budgetCount }: StageOptions,
): PassDesign {
  const first = designed(savedBudgetBytes);
  if (savedBudgetBytes === undefined || budgetCount === undefined) return first;
  const needBytes = runBytes(first, blockSize) / budgetCount;
  if (keptBytes(first) + needBytes <= savedBudgetBytes) return first;
  const second = designed(Math.max(0, savedBudgetBytes - needBytes));
  // What is computed again needs room, too.
  const moreBytes = runBytes(second, blockSize) / budgetCount;
  return moreBytes <= needBytes ? second : designed(Math.max(0, savedBudgetBytes - moreBytes));
}

/** What a micro-batch keeps from its forward pass; nothing where there is none. */
function keptBytes({ notes, graphs: { forward } }: PassDesign): number {
  const kept = new Set([...notes.saved, ...notes.savedInputs]);
  const values = new Map([...(forward?.inputs ?? []), ...(forward?.outputs ?? [])].map((value) => [value.name, value]));
  return [...values].reduce(
    (sum, [name, { type, shape }]) => sum + (kept.has(name) ? byteLength({ type, shape: shape as number[] }) : 0),
    0,
  );
}

/** The most that a pass that takes what is kept needs while it runs. */
function runBytes(
  { graphs: { forward: _, step: __, loss: ___, ...backward } }: PassDesign,
  blockSize: number | undefined,
): number {
  return Math.max(0, ...Object.values(backward).map((graph) => runMemory(graph, blockSize).runBytes));
}
