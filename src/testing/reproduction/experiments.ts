// The experiments of docs/reproduction.md, in its order.

import { figure13, figure15, figure18 } from './asteroid-figures.ts';
import { energy, table2, table4, table7 } from './asteroid-tables.ts';
import type { Experiment } from './experiment.ts';
import { fits } from './fits.ts';
import { ftpipehd } from './ftpipehd.ts';
import { pipeEdgeFigure4, pipeEdgeFigure5, pipeEdgeFigure6, pipeEdgeTable2 } from './pipeedge.ts';
import { pipeEdgeFigure7, pipeEdgeFigure8, pipeEdgeFigure9 } from './pipeedge-more.ts';
import { figure16, ftpipehdTable3 } from './recovery.ts';

/** The experiments by name; `npm run reproduce -- NAME` runs one alone. */
export const experiments: Readonly<Record<string, Experiment>> = {
  fits,
  table2,
  table4,
  figure13,
  figure15,
  figure16,
  figure18,
  table7,
  energy,
  'pipeedge-table2': pipeEdgeTable2,
  'pipeedge-figure4': pipeEdgeFigure4,
  'pipeedge-figure5': pipeEdgeFigure5,
  'pipeedge-figure6': pipeEdgeFigure6,
  'pipeedge-figure7': pipeEdgeFigure7,
  'pipeedge-figure8': pipeEdgeFigure8,
  'pipeedge-figure9': pipeEdgeFigure9,
  ftpipehd,
  'ftpipehd-table3': ftpipehdTable3,
};
