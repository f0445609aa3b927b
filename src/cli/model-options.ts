// What a model file leaves open, for the commands that work without a run: sizes, from --input-shape or --data, which
// of several outputs is trained, and the states of a recurrent cell.

import type { Command } from 'commander';
import { InputError } from '../errors.ts';
import { parseInputShape } from '../graph/onnx/input-shapes.ts';
import { type LoadModelOptions, loadModel } from '../runtime/host/models.ts';
import type { LoadedModel } from '../runtime/run/loaded-model.ts';
import { withStates } from '../runtime/run/sequences.ts';
import { sizedByData } from '../runtime/run/subject.ts';
import { withOutput } from '../runtime/run/trained-output.ts';
import { loadDataset } from '../storage/node/datasets.ts';
import { asSteps } from '../training/data/sequences.ts';
import { collected } from './flag-values.ts';

/** The flags of {@link addSizeFlags}. */
export interface SizeOptions {
  readonly inputShape?: readonly string[];
  readonly data?: string;
  readonly modelOutput?: string;
  readonly state?: readonly string[];
}

/** Adds --input-shape, --data, --model-output and --state to a command. */
export function addSizeFlags(command: Command): Command {
  return command
    .option(
      '--input-shape <NAME=SHAPE>',
      'sizes of an input that the model leaves open, as x=N,3,224,224; repeatable',
      collected,
      [],
    )
    .option('--data <SPEC>', 'instead of --input-shape: data as of asteroid train, whose sizes are taken')
    .option('--model-output <NAME>', "the model's output that is trained, as of train --output (default: its first)")
    .option(
      '--state <OUT=IN>',
      "of forward-gradient: a recurrent cell's output that is its input in the next time step; repeatable",
      collected,
      [],
    );
}

/** Loads a model with its open sizes, and its output, as the flags give them. Throws InputError. */
export async function loadSizedModel(
  spec: string,
  { inputShape = [], data, modelOutput, state = [] }: SizeOptions,
  options: LoadModelOptions = {},
): Promise<LoadedModel> {
  const loaded = await loadModel(spec, 0, { ...options, inputShapes: inputShape.map(parseInputShape) });
  const graph = withOutput(loaded.graph, modelOutput, '--model-output');
  const model = { ...loaded, graph: state.length === 0 ? graph : withStates(graph, state) };
  if (data === undefined) return model;
  const { train } = await loadDataset(data);
  return { ...model, graph: sizedByData(model.graph, state.length === 0 ? train : asSteps(train)) };
}

/** Cells are trained by forward gradients alone. `isGiven`: that they are. Throws InputError where they are not. */
export function checkStates({ state = [] }: SizeOptions, isGiven: boolean, flag: string): void {
  if (state.length > 0 && !isGiven)
    throw new InputError(`--state needs ${flag}: cells are trained by forward gradients alone.`);
}
