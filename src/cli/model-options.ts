// What a model file leaves open, for the commands that work without a run: sizes, from --input-shape or --data, and
// which of several outputs is trained.

import type { Command } from 'commander';
import { parseInputShape } from '../graph/onnx/input-shapes.ts';
import { type LoadModelOptions, loadModel } from '../runtime/host/models.ts';
import type { LoadedModel } from '../runtime/run/loaded-model.ts';
import { sizedByData } from '../runtime/run/subject.ts';
import { withOutput } from '../runtime/run/trained-output.ts';
import { loadDataset } from '../storage/node/datasets.ts';
import { collected } from './flag-values.ts';

/** The flags of {@link addSizeFlags}. */
export interface SizeOptions {
  readonly inputShape?: readonly string[];
  readonly data?: string;
  readonly modelOutput?: string;
}

/** Adds --input-shape, --data and --model-output to a command. */
export function addSizeFlags(command: Command): Command {
  return command
    .option(
      '--input-shape <NAME=SHAPE>',
      'sizes of an input that the model leaves open, as x=N,3,224,224; repeatable',
      collected,
      [],
    )
    .option('--data <SPEC>', 'instead of --input-shape: data as of asteroid train, whose sizes are taken')
    .option('--model-output <NAME>', "the model's output that is trained, as of train --output (default: its first)");
}

/** Loads a model with its open sizes, and its output, as the flags give them. Throws InputError. */
export async function loadSizedModel(
  spec: string,
  { inputShape = [], data, modelOutput }: SizeOptions,
  options: LoadModelOptions = {},
): Promise<LoadedModel> {
  const loaded = await loadModel(spec, 0, { ...options, inputShapes: inputShape.map(parseInputShape) });
  const model = { ...loaded, graph: withOutput(loaded.graph, modelOutput, '--model-output') };
  if (data === undefined) return model;
  const { train } = await loadDataset(data);
  return { ...model, graph: sizedByData(model.graph, train) };
}
