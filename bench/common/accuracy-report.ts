// Tables and pictures of bench/async-accuracy.ts, from its runs.

import { lineChart } from '../../dist/testing/reproduction/charts.js';
import { sum } from './numbers.ts';
import { table } from './table.ts';

/** One training run. */
export interface Run {
  readonly dataset: string;
  readonly method: string;
  readonly optimizer: string;
  readonly rate: number;
  readonly seed: number;
  readonly epochs: number;
  /** On the test pictures, after each epoch. */
  readonly accuracies: readonly number[];
  /** The mean of each epoch's rounds. */
  readonly losses: readonly number[];
  readonly cpuS: number;
}

/** Runs that differ in their seed alone, by the labels of a column. */
type Column = readonly [dataset: string, optimizer: string, rate: number];

const distinct = <T>(values: readonly T[]): T[] => [...new Set(values)];
const mean = (values: readonly number[]): number => sum(values) / values.length;
/** Of a sample. */
const deviation = (values: readonly number[]): number =>
  Math.sqrt(sum(values.map((value) => (value - mean(values)) ** 2)) / Math.max(1, values.length - 1));

/** Final accuracies in per cent, by seed. */
function finals(runs: readonly Run[], [dataset, optimizer, rate]: Column, method: string): ReadonlyMap<number, number> {
  return new Map(
    runs
      .filter((run) => run.dataset === dataset && run.optimizer === optimizer && run.rate === rate)
      .filter((run) => run.method === method)
      .map((run) => [run.seed, 100 * (run.accuracies.at(-1) ?? Number.NaN)]),
  );
}

function columnsOf(runs: readonly Run[]): Column[] {
  const keys = distinct(runs.map(({ dataset, optimizer, rate }) => JSON.stringify([dataset, optimizer, rate])));
  return keys.map((key) => JSON.parse(key) as Column);
}

const title = ([dataset, optimizer, rate]: Column): string => `${dataset}, ${optimizer} ${rate}`;

/**
 * Mean ± deviation of the final accuracy, and the mean difference to synchronous training of the same seeds ± its
 * standard error.
 */
export function accuracyTable(runs: readonly Run[]): string {
  const columns = columnsOf(runs);
  const methods = distinct(runs.map(({ method }) => method));
  const cell = (column: Column, method: string): string => {
    const [own, plain] = [finals(runs, column, method), finals(runs, column, 'synchronous')];
    const differences = [...own].flatMap(([seed, value]) => {
      const other = plain.get(seed);
      return other === undefined ? [] : [value - other];
    });
    const values = [...own.values()];
    if (values.length === 0) return '';
    const shown = `${mean(values).toFixed(2)} ± ${deviation(values).toFixed(2)}`;
    if (method === 'synchronous' || differences.length === 0) return shown;
    const difference = mean(differences);
    const error = deviation(differences) / Math.sqrt(differences.length);
    return `${shown} (${difference < 0 ? '−' : '+'}${Math.abs(difference).toFixed(2)} ± ${error.toFixed(2)})`;
  };
  return table(
    ['method', ...columns.map(title)],
    methods.map((method) => [method, ...columns.map((column) => cell(column, method))]),
  );
}

/** By method: the mean accuracy after each epoch, in per cent. */
export function epochTable(runs: readonly Run[]): string {
  const rows = columnsOf(runs).flatMap((column) =>
    distinct(runs.map(({ method }) => method)).map((method) => [
      title(column),
      method,
      ...meansByEpoch(runs, column, method).map((value) => value.toFixed(2)),
    ]),
  );
  const epochs = Math.max(...runs.map((run) => run.epochs));
  return table(['', 'method', ...Array.from({ length: epochs }, (_, epoch) => `epoch ${epoch + 1}`)], rows);
}

function meansByEpoch(runs: readonly Run[], [dataset, optimizer, rate]: Column, method: string): number[] {
  const own = runs.filter(
    (run) => run.dataset === dataset && run.optimizer === optimizer && run.rate === rate && run.method === method,
  );
  const [first] = own;
  return (first?.accuracies ?? []).map((_, epoch) => 100 * mean(own.map((run) => run.accuracies[epoch] ?? Number.NaN)));
}

/** Test errors over epochs, a line a method. */
export function errorPicture(runs: readonly Run[], column: Column, seedCount: number): string {
  const methods = distinct(runs.map(({ method }) => method));
  const series = methods.map((method) => ({
    name: method.replace('asynchronous, ', ''),
    values: meansByEpoch(runs, column, method).map((value) => 100 - value),
    dashed: method === 'synchronous',
  }));
  const xs = (series[0]?.values ?? []).map((_, epoch) => epoch + 1);
  return lineChart({
    title: `Test error by epoch: ${title(column)}, mean of ${seedCount} seeds`,
    ...{ unit: '% wrong', xName: 'epoch', xs, series },
  });
}
