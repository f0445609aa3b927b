// A micro-batch of the delayed oracle (delayed-training.ts) as one graph: forward pass, loss and backward pass of the
// whole model, and the dropout masks that it takes.

import { defined } from '../../assert.ts';
import type { Activity } from '../../autodiff/activity-perturbation.ts';
import { differentiate, outputGradientName, type StageGraphs } from '../../autodiff/differentiate.ts';
import { dropoutMask } from '../../autodiff/dropout.ts';
import type { Engine, Executable } from '../../engine/engine.ts';
import { loweringOf } from '../../engine/lowering.ts';
import { gradientName } from '../../graph/gradient-name.ts';
import { joinGraphs } from '../../graph/join.ts';
import { extractStage } from '../../graph/stage.ts';
import { type Tensor, wrap } from '../../graph/tensor.ts';
import { lossGraph } from '../../training/losses.ts';
import { dropoutsOf } from '../device/pass-design.ts';
import { type PassNotes, stepNames } from '../device/stage-graphs.ts';
import type { RunSubject } from '../protocol/run-subject.ts';

/** The graph of a micro-batch's step: forward pass, loss and backward pass with the whole model. */
export interface Step {
  readonly executable: Executable;
  readonly graphs: Pick<StageGraphs, 'bufferUpdates' | 'parameterGradients'>;
  readonly dropouts: PassNotes['dropouts'];
  /** What moves in place of weights, in forward gradients of activities. Absent: nothing. */
  readonly activities?: readonly Activity[];
}

/** The whole model's step for a micro-batch of `sampleCount` samples. */
export async function stepOf(engine: Engine, subject: RunSubject, sampleCount: number): Promise<Step> {
  const { sequence, training, label } = subject;
  const layers = [0, sequence.layers.length] as const;
  const stage = extractStage(sequence, ...layers, sampleCount);
  const frozen = new Set(training.frozen);
  const { name: logits, type, shape } = defined(stage.graph.outputs[0], 'the output');
  const graphs = differentiate(stage, {
    inputs: [],
    parameters: stage.graph.parameters.filter((name) => !frozen.has(name)),
    outputs: [logits],
    ...loweringOf(engine),
  });
  const labels = { type: label.type, shape: [sampleCount, ...(label.shape.slice(1) as number[])] };
  const { loss: kind, ignoresNegative = false } = training;
  const loss = lossGraph(kind, { type, shape: shape as number[] }, labels, { ignoresNegative });
  const rename = new Map([
    ...Object.entries(stepNames),
    ['logits', logits],
    ['gradient', outputGradientName(logits)],
  ] as const);
  const outputs = [
    ...loss.outputs
      .map(({ name }) => name)
      .filter((name) => name !== 'gradient')
      .map((name) => rename.get(name) ?? name),
    ...graphs.bufferUpdates.map(({ output }) => output),
    ...graphs.parameterGradients.map(gradientName),
  ];
  const parts = [{ graph: graphs.forward }, { graph: loss, rename }, { graph: graphs.backward }];
  const executable = await engine.compile(joinGraphs('step', parts, outputs));
  return { executable, graphs, dropouts: dropoutsOf(graphs, { sequence, layers, sampleCount }) };
}

/** Which samples masks are for. */
interface MaskedSamples {
  readonly seed: number;
  readonly round: number;
  /** The place of the first one in the batch. */
  readonly first: number;
  readonly sampleCount: number;
}

/** The dropout masks of a micro-batch whose first sample is the batch's sample `first`. */
export function masksOf(
  dropouts: PassNotes['dropouts'],
  { seed, round, first, sampleCount }: MaskedSamples,
): readonly (readonly [string, Tensor])[] {
  const samples = Array.from({ length: sampleCount }, (_, index) => first + index);
  return dropouts.map(({ name, shape, ratio, index, distribution, sampleAxis }) => {
    const owners =
      sampleAxis === undefined ? { batchAxis: 0, sampleIds: [first] } : { batchAxis: sampleAxis, sampleIds: samples };
    const drawn = { ratio, shape, ...(distribution === undefined ? {} : { distribution }) };
    const data = dropoutMask({ seed, round, index, ...drawn, ...owners });
    return [name, wrap('float32', shape, data)];
  });
}
