// Section async: the best plan whose rounds overlap beside the best whose rounds follow each other, in one lab: how
// many times as many samples a second, measured, and as the simulator predicts it.

import { table } from '../common/table.ts';
import { type CaseGroup, type CaseResult, casesOf, planned } from './cases.ts';
import type { Found, Group, LabBench } from './group.ts';

const syncForm = 'sync: best';

function group(letter: string, mbps: number, model: Group['model'], microBatch: number): CaseGroup {
  return {
    name: `async-${model}-${letter}-${mbps}`,
    environment: [letter, mbps],
    model,
    microBatch,
    count: 8,
    cases: {
      [syncForm]: planned('best'),
      'sync: straight': planned('straight', '1f1b'),
      'async: best': planned('best', 'async'),
      'async: straight': planned('straight', 'async'),
    },
  };
}

const groups: readonly CaseGroup[] = (['A', 'C', 'D'] as const).flatMap((letter) =>
  [100, 1000].flatMap((mbps) => [group(letter, mbps, 'mobilenet', 10), group(letter, mbps, 'efficientnet-64', 10)]),
);

/**
 * Each asynchronous plan over the best synchronous one of its lab: measured, as the plans say, and as the simulator
 * says when rounds have corrected the profile: every other one, by which the rest is predicted (cases.ts).
 */
function ratios(cases: readonly CaseResult[]): string {
  return table(
    ['cluster', 'form', 'measured', 'as planned', 'difference', 'as corrected', 'difference'],
    cases.flatMap((one) => {
      const sync = cases.find(({ cluster, form }) => cluster === one.cluster && form === syncForm);
      if (sync === undefined || !one.form.startsWith('async')) return [];
      const measured = sync.measuredRoundMs / one.measuredRoundMs;
      const beside = (predicted: number): readonly string[] => [
        `${predicted.toFixed(2)}x`,
        `${(100 * (measured / predicted - 1)).toFixed(1)} %`,
      ];
      const planned = beside(sync.predictedRoundMs / one.predictedRoundMs);
      const corrected = beside(sync.correctedRoundMs / one.correctedRoundMs);
      return [[one.cluster, one.form, `${measured.toFixed(2)}x`, ...planned, ...corrected]];
    }),
  );
}

export async function asynchronous(bench: LabBench): Promise<Found> {
  const found = await casesOf(bench, groups);
  return { ...found, tables: [...found.tables, ratios(found.cases)] };
}
