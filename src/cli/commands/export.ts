// asteroid export: writes the trained ONNX from a run's last checkpoint.

import type { Command } from 'commander';
import { InputError } from '../../errors.ts';
import { modelOfRun } from '../../runtime/host/trained.ts';
import { writeFileAtomically } from '../../storage/atomic.ts';
import { nodeDisk } from '../../storage/node/disk.ts';
import { checkWritable } from '../files.ts';
import { createOutput } from '../output.ts';
import { counted, memory } from '../terminal.ts';

/** Adds the command. */
export function addExport(program: Command): Command {
  return program
    .command('export')
    .description("write the trained ONNX model of a run's last checkpoint")
    .option('--run <DIR>', "the run's folder")
    .option('-o, --output <FILE>', 'the file to write')
    .addHelpText('after', '\nExample:\n  $ asteroid export --run runs/2026-11-21-1 -o digits.onnx')
    .action((options: { run?: string; output?: string; json?: boolean }) => exportRun(options));
}

async function exportRun(options: { run?: string; output?: string; json?: boolean }): Promise<void> {
  const output = createOutput(options);
  if (options.run === undefined) throw new InputError('--run is missing: give the folder of a run.');
  if (options.output === undefined) throw new InputError('--output is missing: give the file to write.');
  await checkWritable(options.output);
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
