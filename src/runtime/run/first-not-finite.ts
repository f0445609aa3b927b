// Why a round's loss or gradients are not finite: the round again, forward only and layer by layer, with the weights
// before it, until an output is not finite. At leisure: the run has ended.

import { defined } from '../../assert.ts';
import type { Engine } from '../../engine/engine.ts';
import type { LayerSequence } from '../../graph/layers.ts';
import type { Tensor } from '../../graph/tensor.ts';
import { firstNotFinite } from '../../training/data/finite.ts';
import type { Batch } from '../coordinator/options.ts';
import { createStage } from '../device/create-stage.ts';
import { ownCopy, sliceSamples } from '../device/samples.ts';
import { wholeForm } from '../device/stage-form.ts';
import type { RunState } from '../protocol/run-state.ts';
import type { RunSubject } from '../protocol/run-subject.ts';

/** A round that is to be explained. */
export interface FailedRound {
  readonly round: number;
  readonly batch: Batch;
  readonly microBatchSize: number;
  /** Before the round. */
  readonly state: RunState;
}

/** One clause: the first layer whose output is not finite, or that there is none. */
export async function explainNotFinite(engine: Engine, given: RunSubject, failed: FailedRound): Promise<string> {
  const length = failed.batch.inputs[0]?.shape[1] ?? 0;
  const subject = { ...given, sequence: given.sequence.shorter?.get(length) ?? given.sequence };
  const { parameter, buffer } = failed.state;
  const isSpoilt = (name: string): boolean =>
    firstNotFinite(defined(parameter.get(name) ?? buffer.get(name), name)) >= 0;
  let values = microBatchesOf(failed);
  for (const [index, { name, parameters, buffers }] of subject.sequence.layers.entries()) {
    values = await outputsOf(engine, subject, failed, { index, values });
    if (values.flat().every((value) => firstNotFinite(value) < 0)) continue;
    const spoilt = [...parameters, ...buffers].find(isSpoilt);
    const why = spoilt === undefined ? 'its weights were finite' : `its ${spoilt} was not finite before that round`;
    return `the first layer whose output is not finite is ${name}, and ${why}`;
  }
  return 'the output of every layer is finite: the loss of it, or a gradient, is not';
}

/** The model's inputs by micro-batch. */
function microBatchesOf({ batch: { inputs, labels }, microBatchSize }: FailedRound): readonly (readonly Tensor[])[] {
  const sampleCount = labels.shape[0] as number;
  return Array.from({ length: Math.ceil(sampleCount / microBatchSize) }, (_, index) => {
    const first = index * microBatchSize;
    return inputs.map((input) => sliceSamples(input, 0, first, Math.min(sampleCount, first + microBatchSize)));
  });
}

/** What a layer makes of the cut before it, by micro-batch. */
async function outputsOf(
  engine: Engine,
  { sequence, training, label }: RunSubject,
  { round, microBatchSize, state }: FailedRound,
  { index, values }: { readonly index: number; readonly values: readonly (readonly Tensor[])[] },
): Promise<readonly (readonly Tensor[])[]> {
  const { layers } = sequence;
  const layer = defined(layers[index], 'a layer');
  // A layer behind the last: then that one, too, gives its output, not its loss.
  const open: LayerSequence = { ...sequence, layers: [...layers, defined(layers.at(-1), 'a layer')] };
  const { grain: _, ...plain } = training;
  const options = {
    ...{ sequence: open, layers: [index, index + 1] as const, label, microBatchSize, form: wholeForm },
    training: { ...plain, frozen: sequence.graph.parameters },
  };
  const results: (readonly Tensor[])[] = [];
  for (const [place, inputs] of values.entries()) {
    const sampleCount = defined(inputs[0]?.shape[batchAxisOf(open, index)], 'samples');
    const stage = await createStage(engine, { ...options, sampleCount });
    for (const [role, names] of [['parameter', layer.parameters] as const, ['buffer', layer.buffers] as const])
      for (const name of names) stage.load({ role, name, value: ownCopy(defined(state[role].get(name), name)) });
    stage.beginRound(round);
    results.push(await stage.forward({ round, index: place }, 0, inputs.map(ownCopy), undefined));
    stage.dispose();
  }
  return results;
}

/** The batch axis of the first tensor before a layer. */
function batchAxisOf({ inputs, layers }: LayerSequence, index: number): number {
  const cut = index === 0 ? inputs : defined(layers[index - 1], 'a layer').outputs;
  return defined(cut[0], 'a tensor').batchAxis;
}
