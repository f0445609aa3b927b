// asteroid predict: what a trained model says of new samples.

import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Command } from 'commander';
import { InputError } from '../../errors.ts';
import type { ImportedModel } from '../../graph/onnx/import.ts';
import { metadataOf } from '../../graph/onnx/metadata.ts';
import { readModel } from '../../runtime/host/models.ts';
import { predict } from '../../runtime/host/session-here.ts';
import { loadSamples } from '../../storage/node/new-samples.ts';
import { type ModelUse, readUse } from '../../training/data/preparation.ts';
import { isNumberLoss } from '../../training/losses.ts';
import { engineName, positive } from '../flag-values.ts';
import { createOutput, type Output } from '../output.ts';

interface PredictCommandOptions {
  readonly model?: string;
  readonly top: string;
  readonly threads: string;
  readonly engine: string;
  readonly json?: boolean;
}

/** Adds the command. */
export function addPredict(program: Command): Command {
  return program
    .command('predict')
    .description('name what a trained model sees in new samples')
    .argument('[FILES...]', 'pictures or folders of them; a table; texts, in a table or one a line')
    .option('--model <PATH>', 'the folder of a run, or its model.onnx')
    .option('--top <K>', 'classes to show for each sample, the likeliest first', '3')
    .option('--threads <N>', 'compute threads', '1')
    .option('--engine <NAME>', 'onnxruntime | reference', 'onnxruntime')
    .addHelpText('after', '\nExample:\n  $ asteroid predict --model runs/2026-11-21-1 photo.jpg more-photos/')
    .action((files: readonly string[], options: PredictCommandOptions) => predictSamples(files, options));
}

async function predictSamples(paths: readonly string[], options: PredictCommandOptions): Promise<void> {
  const output = createOutput(options);
  const top = positive('--top', options.top);
  if (options.model === undefined)
    throw new InputError('--model is missing: give the folder of a run, or an ONNX file.');
  if (paths.length === 0) throw new InputError('No samples are given: name the files to predict behind the flags.');
  const path = await modelPath(options.model);
  const model = await readModel(path);
  const use = useOf(model, path);
  const { dataset, names } = await loadSamples(paths, use.preparation, path);
  const rows = await predict(model.graph, dataset, {
    loss: use.loss,
    engine: engineName(options.engine),
    threads: positive('--threads', options.threads),
  });
  for (const [index, outputs] of rows.entries()) show(names[index] ?? `${index}`, outputs, { use, top, output });
}

async function modelPath(path: string): Promise<string> {
  const found = await stat(path).catch(() => undefined);
  return found?.isDirectory() === true ? join(path, 'model.onnx') : path;
}

function useOf({ proto }: ImportedModel, path: string): ModelUse {
  const use = readUse(metadataOf(proto));
  if (use !== undefined) return use;
  throw new InputError(
    `${path} does not say how its inputs are made: predict takes models that asteroid train wrote from pictures, ` +
      'tables or texts.',
  );
}

/** A class and its probability. */
interface Guess {
  readonly label: string;
  readonly probability: number;
}

function show(
  name: string,
  outputs: readonly number[],
  { use, top, output }: { readonly use: ModelUse; readonly top: number; readonly output: Output },
): void {
  const { loss, classNames = [] } = use;
  if (isNumberLoss(loss)) {
    output.json({ sample: name, values: outputs });
    if (!output.isJson) output.terminal.print(`${name}  ${outputs.map((value) => value.toPrecision(6)).join(', ')}`);
    return;
  }
  const guesses = outputs
    .map((probability, index): Guess => ({ label: classNames[index] ?? String(index), probability }))
    .sort((a, b) => b.probability - a.probability)
    .slice(0, top);
  output.json({ sample: name, predictions: guesses });
  if (output.isJson) return;
  const shown = guesses.map(({ label, probability }) => `${label} ${(probability * 100).toFixed(1)} %`);
  output.terminal.print(`${name}  ${shown.join(', ')}`);
}
