// Accuracy per class and confusions on the terminal, as small as they can be read.
//
// Classes    class  samples    right   predicted as  cat  dog
//            cat         12   91.7 %                  11    1

import { labelWidth, type Terminal } from '../terminal.ts';
import { confusedPairs, type TestResults } from './test-results.ts';

/** Classes that are shown: the ones that are recognised least where there are more. */
const shownCount = 12;
const shownPairCount = 5;
const nameWidth = 20;

/** Prints the classes of a test; nothing where it has none. */
export function printClasses(results: TestResults, terminal: Terminal): void {
  const { classes = [], confusion } = results;
  if (classes.length === 0) return;
  const all = classes.map((score, index) => ({ ...score, index }));
  const isWhole = all.length <= shownCount;
  const rows = isWhole ? all : all.toSorted((a, b) => (a.recall ?? 2) - (b.recall ?? 2)).slice(0, shownCount);
  const width = Math.min(nameWidth, Math.max(5, ...rows.map(({ name }) => name.length)));
  const cellWidth = Math.max(3, ...(confusion ?? []).flat().map((count) => String(count).length)) + 1;
  const fixed = labelWidth + width + 9 + 10 + 4;
  const hasMatrix = isWhole && confusion !== undefined && fixed + cellWidth * all.length <= terminal.columns;
  const cell = (text: string): string => text.slice(0, cellWidth - 1).padStart(cellWidth);
  const matrixHead = hasMatrix ? `  as ${all.map(({ name }) => cell(name)).join('')}` : '';
  terminal.section('Classes', `${'class'.padEnd(width)}  samples     right${matrixHead}`);
  for (const { name, sampleCount, recall, index } of rows) {
    const right = recall === null ? '–' : `${(recall * 100).toFixed(1)} %`;
    const counts = hasMatrix
      ? `     ${(confusion[index] ?? []).map((count) => cell(String(count || '·'))).join('')}`
      : '';
    terminal.section(
      'Classes',
      `${name.slice(0, width).padEnd(width)}  ${String(sampleCount).padStart(7)}  ${right.padStart(8)}${counts}`,
    );
  }
  if (!isWhole) terminal.section('Classes', `… the ${shownCount} of ${all.length} that are recognised least`);
  if (hasMatrix || confusion === undefined) return;
  const pairs = confusedPairs(results).slice(0, shownPairCount);
  const texts = pairs.map(({ from, to, count }) => `${from} for ${to} ${count} times`);
  if (texts.length > 0) terminal.section('Confused', texts.join(', '));
}
