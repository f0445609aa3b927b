// asteroid export: writes the trained ONNX from a run's last checkpoint.

import { join } from 'node:path';
import type { Command } from 'commander';
import { InputError } from '../../errors.ts';
import { asAdapter, asSafetensors, checkoutFolder, tokenizerFiles } from '../../runtime/host/export-run.ts';
import { modelOfRun, trainedRun } from '../../runtime/host/trained.ts';
import { makeFolders, writeFileAtomically } from '../../storage/atomic.ts';
import { nodeDisk } from '../../storage/node/disk.ts';
import { checkWritable, isThere } from '../files.ts';
import { createOutput, type Output } from '../output.ts';
import { counted, memory } from '../terminal.ts';

/** Adds the command. */
export function addExport(program: Command): Command {
  return program
    .command('export')
    .description("write the trained ONNX model of a run's last checkpoint")
    .option('--run <DIR>', "the run's folder")
    .option('-o, --output <FILE>', 'the file to write; of safetensors and peft the folder')
    .option('--format <NAME>', "onnx | safetensors (for transformers, a checkout's names) | peft (the adapter)", 'onnx')
    .addHelpText(
      'after',
      '\nExamples:\n  $ asteroid export --run runs/2026-11-21-1 -o digits.onnx' +
        '\n  $ asteroid export --run runs/reviews --format peft -o reviews-adapter',
    )
    .action((options: ExportOptions) => exportRun(options));
}

interface ExportOptions {
  readonly run?: string;
  readonly output?: string;
  readonly format: string;
  readonly json?: boolean;
}

async function exportRun(options: ExportOptions): Promise<void> {
  const output = createOutput(options);
  if (options.run === undefined) throw new InputError('--run is missing: give the folder of a run.');
  if (options.output === undefined) throw new InputError('--output is missing: give the file to write.');
  if (!['onnx', 'safetensors', 'peft'].includes(options.format))
    throw new InputError(`--format ${options.format} is none of onnx, safetensors and peft.`);
  await checkWritable(options.output);
  if (options.format !== 'onnx') return exportFolder(options.run, options.output, options.format, output);
  const { bytes, round } = await modelOfRun(options.run, (warning) =>
    output.observe({ kind: 'warning', message: warning }),
  );
  await writeFileAtomically(options.output, [bytes], nodeDisk);
  output.json({ file: options.output, bytes: bytes.length, round });
  if (!output.isJson)
    output.terminal.section(
      'Written',
      `${options.output} (${memory(bytes.length / 2 ** 20)}), the model after ${counted(round, 'round')}`,
    );
}

/** Writes the files that transformers or PEFT read, with the tokenizer of the model. */
async function exportFolder(run: string, folder: string, format: string, output: Output): Promise<void> {
  const trained = await trainedRun(run, (message) => output.observe({ kind: 'warning', message }));
  const files = new Map(format === 'peft' ? asAdapter(trained, run) : asSafetensors(trained));
  const source = checkoutFolder(trained);
  for (const name of source === undefined || format === 'peft' ? [] : tokenizerFiles) {
    const path = join(source ?? '', name);
    if (await isThere(path)) files.set(name, [await nodeDisk.read(path)]);
  }
  await makeFolders(folder, nodeDisk);
  for (const [name, pieces] of files) await writeFileAtomically(join(folder, name), pieces, nodeDisk);
  output.json({ folder, files: [...files.keys()], round: trained.round });
  if (!output.isJson)
    output.terminal.section(
      'Written',
      `${folder} (${[...files.keys()].join(', ')}), the model after ${counted(trained.round, 'round')}`,
    );
}
