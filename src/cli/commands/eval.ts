// asteroid eval: tests a trained model.

import { dirname, join } from 'node:path';
import type { Command } from 'commander';
import { InputError } from '../../errors.ts';
import { type ImportedModel, importModel } from '../../graph/onnx/import.ts';
import { parseInputShape } from '../../graph/onnx/input-shapes.ts';
import { metadataOf } from '../../graph/onnx/metadata.ts';
import { readModel } from '../../runtime/host/models.ts';
import { evaluate } from '../../runtime/host/session-here.ts';
import { modelOfRun } from '../../runtime/host/trained.ts';
import { loadDataset } from '../../storage/node/datasets.ts';
import { defaultDataSettings } from '../../training/data/data-settings.ts';
import { readUse } from '../../training/data/preparation.ts';
import { lossKinds } from '../../training/losses.ts';
import { isThere } from '../files.ts';
import { pictureInputOf, textInputOf } from '../fit-model.ts';
import { collected, engineName, integer, positive } from '../flag-values.ts';
import { createOutput } from '../output.ts';
import { grouped } from '../terminal.ts';

interface EvalCommandOptions {
  readonly model?: string;
  readonly run?: string;
  readonly inputShape: readonly string[];
  readonly data?: string;
  readonly loss?: string;
  readonly tokenizer?: string;
  readonly output?: string;
  readonly ignoreLabel?: string;
  readonly threads: string;
  readonly engine: string;
  readonly json?: boolean;
}

/** Adds the command. */
export function addEval(program: Command): Command {
  return program
    .command('eval')
    .description('test a trained model')
    .option('--model <FILE>', 'an ONNX file')
    .option('--run <DIR>', "instead of --model: the last checkpoint of this run's folder")
    .option('--data <SPEC>', 'the data (their test part, if they have one)')
    .option('--loss <NAME>', `${lossKinds.join(' | ')} (default: the loss of its training, else cross-entropy)`)
    .option('--output <NAME>', "the model's output that the loss takes (default: its first)")
    .option('--ignore-label <N>', 'labels that are left out, such as 255; -100 always is')
    .option('--tokenizer <FILE>', 'the tokenizer.json of a model for texts (default: that of the run)')
    .option('--input-shape <NAME=SHAPE>', 'sizes that the model leaves open, as x=N,3,224,224', collected, [])
    .option('--threads <N>', 'compute threads', '1')
    .option('--engine <NAME>', 'onnxruntime | reference', 'onnxruntime')
    .addHelpText('after', '\nExample:\n  $ asteroid eval --model runs/2026-11-21-1/model.onnx --data mnist')
    .action((options: EvalCommandOptions) => evalModel(options));
}

async function evalModel(options: EvalCommandOptions): Promise<void> {
  const output = createOutput(options);
  if (options.data === undefined) throw new InputError('--data is missing: give the data to test on.');
  const { output: outputName } = options;
  const given = lossKinds.find((name) => name === options.loss);
  if (options.loss !== undefined && given === undefined)
    throw new InputError(`--loss ${options.loss} must be one of ${lossKinds.join(', ')}.`);
  const model = await modelOf(options);
  const { loss: own = 'cross-entropy', preparation, classNames } = readUse(metadataOf(model.proto)) ?? {};
  const loss = given ?? own;
  const tokenizer = options.tokenizer ?? (await tokenizerBeside(options));
  const { train, test } = await loadDataset(options.data, {
    picture: pictureInputOf(model.graph),
    text: textInputOf(model.graph),
    settings: { ...defaultDataSettings, ...(tokenizer === undefined ? {} : { tokenizer }) },
    preparation,
    ...(classNames === undefined ? {} : { classNames }),
  });
  const result = await evaluate(model.graph, test ?? train, {
    loss,
    ...(outputName === undefined ? {} : { output: outputName }),
    ...(options.ignoreLabel === undefined ? {} : { ignoreLabel: integer('--ignore-label', options.ignoreLabel) }),
    engine: engineName(options.engine),
    threads: positive('--threads', options.threads),
    onWarning: (message) => output.observe({ kind: 'warning', message }),
  });
  output.json(result);
  if (output.isJson) return;
  const { terminal } = output;
  if (result.accuracy !== null) terminal.section('Accuracy', `${(result.accuracy * 100).toFixed(2)} %`);
  terminal.section('Loss', result.loss.toFixed(6));
  if (result.perplexity !== undefined) terminal.section('Perplexity', result.perplexity.toPrecision(6));
  terminal.section(
    'Samples',
    `${grouped(result.sampleCount)}${test === undefined ? '' : ' (the test part of the data)'}`,
  );
}

/** The tokenizer in the folder of a run, if it has one. */
async function tokenizerBeside({ model, run }: EvalCommandOptions): Promise<string | undefined> {
  const path = join(run ?? dirname(model ?? '.'), 'tokenizer.json');
  return (await isThere(path)) ? path : undefined;
}

async function modelOf({ model, run, inputShape }: EvalCommandOptions): Promise<ImportedModel> {
  if (model !== undefined && run !== undefined)
    throw new InputError('--model and --run cannot both be given: choose one.');
  if (run !== undefined) return importModel((await modelOfRun(run)).bytes);
  if (model === undefined) throw new InputError('--model or --run is missing: give an ONNX file or a run folder.');
  return readModel(model, { inputShapes: inputShape.map(parseInputShape) });
}
