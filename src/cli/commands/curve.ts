// asteroid curve: draws the learning curve of a run, on the terminal and as a picture in the run folder.

import { join } from 'node:path';
import type { Command } from 'commander';
import { readLearningCurve } from '../../runtime/run/learning-curve.ts';
import { nodeDisk } from '../../storage/node/disk.ts';
import { panels } from '../curve/chart.ts';
import { curveSvg } from '../curve/svg-chart.ts';
import { chartColumns, drawPanel } from '../curve/terminal-chart.ts';
import { checkWritable, writeText } from '../files.ts';
import { createOutput } from '../output.ts';
import { labelWidth } from '../terminal.ts';

interface CurveCommandOptions {
  readonly output?: string;
  readonly json?: boolean;
}

/** Rows of each panel on the terminal. */
const panelRows = 10;

/** Adds the command. */
export function addCurve(program: Command): Command {
  return program
    .command('curve')
    .description('draw how loss and accuracy went over a run')
    .argument('<DIR>', 'the run folder')
    .option('-o, --output <FILE>', "the picture, as SVG (default: the run folder's curve.svg)")
    .addHelpText('after', '\nExample:\n  $ asteroid curve runs/2026-11-21-1')
    .action((folder: string, options: CurveCommandOptions) => drawCurve(folder, options));
}

async function drawCurve(folder: string, options: CurveCommandOptions): Promise<void> {
  const output = createOutput(options);
  const curve = await readLearningCurve(folder, nodeDisk);
  const picture = options.output ?? join(folder, 'curve.svg');
  await checkWritable(picture);
  await writeText(picture, curveSvg(curve));
  output.json({ ...curve, picture });
  if (output.isJson) return;
  const { terminal } = output;
  const { cyan, yellow } = terminal.colors;
  const chart = { columns: chartColumns(terminal.columns), rows: panelRows, train: cyan, test: yellow };
  for (const panel of panels(curve)) {
    const last = panel.curve.test.at(-1);
    const result = last === undefined ? '' : `   ${yellow('●')} test, ${panel.format(last.y)} at the end`;
    terminal.section(
      panel.title.split(' ')[0] === 'loss' ? 'Loss' : 'Accuracy',
      `${cyan('⠤⠤')} training${result}   (by ${curve.unit})`,
    );
    for (const line of drawPanel(panel, chart)) terminal.print(' '.repeat(labelWidth) + line);
  }
  terminal.section('Written', picture);
}
