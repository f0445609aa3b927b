// Results as Markdown.

import { writeFileSync } from 'node:fs';

/** One line of a table. */
export function tableRow(cells: readonly (string | number)[]): string {
  return `| ${cells.join(' | ')} |`;
}

/** The lines above a table's rows. */
export function tableHead(head: readonly string[]): string {
  return `${tableRow(head)}\n${tableRow(head.map(() => '---'))}`;
}

/** A whole table; '' without rows. */
export function table(head: readonly string[], rows: readonly (readonly (string | number)[])[]): string {
  return rows.length === 0 ? '' : [tableHead(head), ...rows.map(tableRow)].join('\n');
}

/** Writes today's result of a benchmark into bench/results/; `textOf` is given the date. */
export function writeResult(name: string, textOf: (date: string) => string): void {
  const date = new Date().toISOString().slice(0, 10);
  writeFileSync(new URL(`../../bench/results/${date}-${name}.md`, import.meta.url), textOf(date));
}
