// Section table4: the lab's versions of the rows of the paper's Table 4: `best`, data parallelism, and a straight
// pipeline with 1F1B and the same balancing.

import { table } from '../common/table.ts';
import { type CaseGroup, type CaseResult, casesOf, planned } from './cases.ts';
import type { Found, Group, LabBench } from './group.ts';

interface Row extends CaseGroup {
  /** Ratios of the paper: over data parallelism, over a straight pipeline. */
  readonly paper: readonly [dp: number, pp: number];
}

function row(letter: string, mbps: number, model: Group['model'], microBatch: number, paper: Row['paper']): Row {
  return {
    name: `T4-${model}-${letter}-${mbps}`,
    environment: [letter, mbps],
    model,
    microBatch,
    count: 8,
    paper,
    cases: { best: planned('best'), dp: planned('dp'), gpipe: planned('gpipe', '1f1b') },
  };
}

const rows: readonly Row[] = [
  row('A', 100, 'mobilenet', 10, [1.5, 3.5]),
  row('B', 100, 'mobilenet', 10, [2.3, 11.2]),
  row('B', 1000, 'mobilenet', 10, [1.2, 1.3]),
  row('A', 100, 'efficientnet-64', 10, [2.1, 2.8]),
  row('B', 100, 'efficientnet-64', 10, [4.8, 9.7]),
  row('B', 1000, 'efficientnet-64', 10, [2.1, 1.4]),
  row('A', 100, 'resnet', 5, [3.6, 5.8]),
  row('B', 100, 'resnet', 5, [6.1, 12.2]),
  row('B', 1000, 'resnet', 5, [2.9, 3.1]),
  row('A', 100, 'bert', 5, [6.4, 1.0]),
  row('B', 100, 'bert', 5, [6.8, 1.0]),
  row('B', 1000, 'bert', 5, [4.2, 1.3]),
];

/** `best` over data parallelism and over a straight pipeline, next to the paper's ratios. */
function ratios(cases: readonly CaseResult[]): string {
  return table(
    ['row', 'over one device', 'over DP', 'paper', 'over PP', 'paper'],
    rows.flatMap(({ name, paper }) => {
      const of = (form: string) => cases.find((one) => one.cluster === name && one.form === form);
      const [best, dp, pp] = [of('best'), of('dp'), of('gpipe')];
      if (best === undefined || dp === undefined || pp === undefined) return [];
      const over = (other: CaseResult) => `${(other.measuredRoundMs / best.measuredRoundMs).toFixed(2)}x`;
      const single = best.speedupOverBestDevice === null ? '' : `${best.speedupOverBestDevice}x`;
      return [[name, single, over(dp), `${paper[0]}x`, over(pp), `${paper[1]}x`]];
    }),
  );
}

export async function table4(bench: LabBench): Promise<Found> {
  const found = await casesOf(bench, rows);
  return { ...found, tables: [...found.tables, ratios(found.cases)] };
}
