// Which of a model's outputs a run trains (--output), and what of it the loss computes itself: a Softmax or a Sigmoid
// at its end.

import { InputError } from '../../errors.ts';
import type { Graph } from '../../graph/graph.ts';
import { type Squashing, withLogits } from '../../graph/logits.ts';
import type { LossKind } from '../../training/losses.ts';

/** A model with the output that a loss takes as its first, and what the user should know of it, one sentence each. */
export interface TrainedOutput {
  readonly graph: Graph;
  readonly notes: readonly string[];
}

/** What each loss does itself. */
const squashings: { readonly [Loss in LossKind]: Squashing | undefined } = {
  'cross-entropy': 'Softmax',
  'binary-cross-entropy': 'Sigmoid',
  focal: 'Softmax',
  mse: undefined,
  l1: undefined,
  huber: undefined,
};

/** The model with `output` (default: the first) as its output, without what the loss does itself. Throws InputError. */
export function outputOf(model: Graph, loss: LossKind, output: string | undefined): TrainedOutput {
  const chosen = withOutput(model, output);
  const notes: string[] = [];
  const carried = new Set(model.states?.map((state) => state.output));
  const outputs = model.outputs.filter(({ name }) => !carried.has(name));
  if (outputs.length > 1 && output === undefined)
    notes.push(
      `The model has ${outputs.length} outputs, ${outputs.map(({ name }) => name).join(', ')}: the loss ` +
        'takes the first, and what only the others read stays as it is; --output NAME chooses another.',
    );
  const squashing = squashings[loss];
  const { graph, removed } = squashing === undefined ? { graph: chosen } : withLogits(chosen, squashing);
  if (removed !== undefined)
    notes.push(`The model ends in a ${removed}: the loss takes the logits before it, and the trained model keeps it.`);
  else if (loss === 'binary-cross-entropy')
    notes.push('The loss takes the outputs as logits, of which a Sigmoid makes probabilities: the model has none.');
  else if (squashing === 'Softmax' && withLogits(chosen, 'Sigmoid').removed !== undefined)
    notes.push(
      'The model ends in a Sigmoid, and cross-entropy takes what it gives as logits: for labels of 0 and 1 use ' +
        '--loss binary-cross-entropy.',
    );
  return { graph, notes };
}

/**
 * The model with this output alone, beside those of its states; as it is where none is named. Throws InputError for one
 * that it does not have.
 */
export function withOutput(model: Graph, name: string | undefined, flag = '--output'): Graph {
  if (name === undefined) return model;
  const found = model.outputs.find((output) => output.name === name);
  if (found === undefined) {
    const names = model.outputs.map((output) => output.name).join(', ');
    throw new InputError(`${flag} ${name} is not an output of the model: it has ${names}.`);
  }
  const carried = new Set(model.states?.map((state) => state.output));
  const others = model.outputs.filter((one) => one !== found && carried.has(one.name));
  return { ...model, outputs: [found, ...others] };
}

/** The model with these outputs alone, in their order; with its first where none is named. Throws InputError. */
export function withOutputs(model: Graph, names: readonly string[]): Graph {
  if (names.length === 0) return { ...model, outputs: model.outputs.slice(0, 1) };
  const outputs = [...new Set(names)].flatMap((name) => withOutput(model, name).outputs.slice(0, 1));
  return { ...model, outputs };
}
