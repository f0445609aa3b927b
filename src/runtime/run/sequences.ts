// Recurrent cells over sequences (AsyncFGD, App. G.3): a round is a batch of whole sequences, its micro-batches are
// their time steps, and states that `--state OUT=IN` names go from step to step.

import { InputError } from '../../errors.ts';
import type { CarriedState, Graph } from '../../graph/graph.ts';
import { statesEntry } from '../../graph/onnx/metadata.ts';
import type { Dataset } from '../../training/data/dataset.ts';
import { asSteps } from '../../training/data/sequences.ts';
import type { LoadedModel } from './loaded-model.ts';
import type { TrainSettings } from './settings.ts';

/** What a run is made of, as far as sequences change it. */
interface RunParts {
  readonly settings: TrainSettings;
  readonly model: LoadedModel;
  readonly train: Dataset;
  readonly test: Dataset | undefined;
}

/** A model, data and settings of a run over sequences; as they are where no state is named. Throws InputError. */
export function overSequences<Input extends RunParts>(input: Input): Input {
  const { settings, model, test } = input;
  if (settings.state.length === 0) return input;
  const train = asSteps(input.train);
  const { sequenceLength: length = 1 } = train;
  const microBatch = settings.batch / length;
  if (!Number.isInteger(microBatch))
    throw new InputError(
      `--batch counts time steps and must be a multiple of the ${length} of a sequence: give ` +
        `${length * Math.max(1, Math.round(microBatch))} or another.`,
    );
  if (settings.microBatch !== undefined && settings.microBatch !== microBatch)
    throw new InputError(
      `With --state a micro-batch is a time step of ${microBatch} sequences (--batch ${settings.batch}): leave out ` +
        `--micro-batch ${settings.microBatch}.`,
    );
  return {
    ...input,
    // What does not fill a batch would be fewer samples of each step, not fewer steps.
    settings: { ...settings, microBatch, dropLast: true },
    model: withStatesWritten(model, settings.state),
    train,
    test: test === undefined ? undefined : asSteps(test),
  };
}

/** The model with states, which its file names, too. */
function withStatesWritten(model: LoadedModel, texts: readonly string[]): LoadedModel {
  const graph = withStates(model.graph, texts);
  return {
    ...model,
    graph,
    write: (trained, metadata = new Map()) =>
      model.write(trained, new Map([...metadata, statesEntry(graph.states ?? [])])),
  };
}

/** The graph with the states that `--state OUT=IN` names. Throws InputError; unknown names are found by `layers`. */
export function withStates(graph: Graph, texts: readonly string[]): Graph {
  const states = texts.map((text): CarriedState => {
    const [output = '', input = '', ...rest] = text.split('=');
    if (output === '' || input === '' || rest.length > 0)
      throw new InputError(
        `--state ${text} is not OUT=IN, the names of an output of the model and of the input that it becomes.`,
      );
    return { input, output };
  });
  return { ...graph, states };
}
