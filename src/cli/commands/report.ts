// asteroid report: writes the report of a run again, into its folder.

import { join } from 'node:path';
import type { Command } from 'commander';
import { nodeDisk } from '../../storage/node/disk.ts';
import { checkWritable, writeText } from '../files.ts';
import { createOutput } from '../output.ts';
import { readRunFacts } from '../results/read-run.ts';
import { reportPage } from '../results/report-page.ts';

interface ReportCommandOptions {
  readonly output?: string;
  readonly json?: boolean;
}

/** Adds the command. */
export function addReport(program: Command): Command {
  return program
    .command('report')
    .description('write what a run came to as one page: curves, classes, plan, devices, worst samples')
    .argument('<DIR>', 'the run folder')
    .option('-o, --output <FILE>', "the page, as HTML (default: the run folder's report.html)")
    .addHelpText('after', '\nExample:\n  $ asteroid report runs/2026-11-21-1')
    .action((folder: string, options: ReportCommandOptions) => writeReport(folder, options));
}

async function writeReport(folder: string, options: ReportCommandOptions): Promise<void> {
  const output = createOutput(options);
  const run = await readRunFacts(folder, nodeDisk);
  const path = options.output ?? join(folder, 'report.html');
  await checkWritable(path);
  await writeText(path, reportPage(run));
  output.json({ report: path });
  if (!output.isJson) output.terminal.section('Written', path);
}
