// The picture of throughput in docs/async.md, of the tables of bench/results/2026-11-28-modes.md: how many times as
// fast as the best synchronous plan streams are, for each of its rows. Written to its file by
//   node dist/testing/async-throughput.js

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { fixtureFolder } from './pytorch-fixtures.ts';
import { barChart } from './reproduction/charts.ts';

const results = join(fixtureFolder('zoo'), '..', '..', '..', 'bench', 'results');

export const throughputPath: string = join(results, '2026-11-28-modes.svg');

/** A row of a table: cluster, bandwidth and model, and the ratio that stands in its last column. */
interface Row {
  readonly name: string;
  readonly ratio: number;
}

/** The rows of the tables, in their order: whatever is fastest, and with a staleness of at most 1. */
function tables(text: string): readonly (readonly Row[])[] {
  return text
    .split('\n## ')
    .slice(1)
    .map((section) =>
      section
        .split('\n')
        .map((line) => line.split('|').map((cell) => cell.trim()))
        .flatMap(([, cluster = '', mbps = '', model = '', ...rest]): Row[] => {
          const ratio = Number.parseFloat(rest.at(-2) ?? '');
          const net = model === 'MobileNetV2' ? 'MN' : 'EN';
          return Number.isFinite(ratio) ? [{ name: `${cluster.toUpperCase()} ${mbps} ${net}`, ratio }] : [];
        }),
    );
}

/** The picture, as SVG. */
export function throughputPicture(): string {
  const [fastest = [], calm = []] = tables(readFileSync(join(results, '2026-11-28-modes.md'), 'utf8'));
  return barChart({
    title: 'Asynchronous rounds beside the best synchronous plan, predicted (cluster, Mbps, net)',
    unit: 'times as fast',
    groups: fastest.map(({ name }) => name),
    series: [
      { name: 'staleness 1 at most', values: calm.map(({ ratio }) => ratio) },
      { name: 'whatever is fastest', values: fastest.map(({ ratio }) => ratio) },
    ],
    reference: 1,
  });
}

if (process.argv[1] === fileURLToPath(import.meta.url)) writeFileSync(throughputPath, throughputPicture());
