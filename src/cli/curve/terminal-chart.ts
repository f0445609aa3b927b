// A panel in characters: the training line in Braille dots, two by four in each character, and a mark for each test.
//
//   0.8 ┤⣇
//       │⠘⢦⡀   ●
//   0.4 ┤  ⠉⠒⠤⣀●⣀⣀●
//       └┬──────┬──────
//        0      4

import { labelWidth } from '../terminal.ts';
import { type Panel, place } from './chart.ts';

export interface TerminalChartOptions {
  readonly columns: number;
  readonly rows: number;
  /** Colours of the two lines. */
  train(text: string): string;
  test(text: string): string;
}

/** The lines of a panel, without its title. */
export function drawPanel(panel: Panel, options: TerminalChartOptions): string[] {
  const labels = panel.y.ticks.map((tick) => panel.format(tick));
  const margin = Math.max(...labels.map((label) => label.length));
  const [width, height] = [Math.max(10, options.columns - margin - 3), options.rows];
  const dots = trainingDots(panel, width, height);
  const marks = testMarks(panel, width, height);
  const lines: string[] = [];
  for (let row = 0; row < height; row++) {
    const tick = panel.y.ticks.findIndex((value) => rowOf(panel, value, height) === row);
    const cells = Array.from({ length: width }, (_, column) => {
      if (marks.has(row * width + column)) return options.test('●');
      const bits = dots[row * width + column] as number;
      return bits === 0 ? ' ' : options.train(String.fromCharCode(0x2800 + bits));
    });
    const label = tick < 0 ? '' : (labels[tick] as string);
    lines.push(`${label.padStart(margin)} ${tick < 0 ? '│' : '┤'}${cells.join('').trimEnd()}`);
  }
  return [...lines, ...horizontalAxis(panel, width).map((line) => ' '.repeat(margin + 1) + line)];
}

/** Rows count from the top. */
function rowOf({ y }: Panel, value: number, height: number): number {
  return Math.round((1 - place(y, value)) * (height - 1));
}

/** The bits of Braille's eight dots, by column and row. */
const dotBits = [
  [0x01, 0x02, 0x04, 0x40],
  [0x08, 0x10, 0x20, 0x80],
] as const;

function trainingDots({ curve, x, y }: Panel, width: number, height: number): Uint8Array {
  const cells = new Uint8Array(width * height);
  const set = (column: number, row: number): void => {
    const index = (row >> 2) * width + (column >> 1);
    cells[index] = (cells[index] as number) | (dotBits[(column & 1) as 0 | 1][row & 3] as number);
  };
  let before: readonly [number, number] | undefined;
  for (const point of curve.train) {
    if (point.y > y.most || point.y < y.least) {
      before = undefined;
      continue;
    }
    const here = [
      Math.round(place(x, point.x) * (2 * width - 1)),
      Math.round((1 - place(y, point.y)) * (4 * height - 1)),
    ] as const;
    const [fromColumn, fromRow] = before ?? here;
    const steps = Math.max(1, Math.abs(here[0] - fromColumn), Math.abs(here[1] - fromRow));
    for (let step = 0; step <= steps; step++) {
      const part = step / steps;
      set(Math.round(fromColumn + part * (here[0] - fromColumn)), Math.round(fromRow + part * (here[1] - fromRow)));
    }
    before = here;
  }
  return cells;
}

function testMarks(panel: Panel, width: number, height: number): Set<number> {
  const within = panel.curve.test.filter(({ y }) => y <= panel.y.most && y >= panel.y.least);
  return new Set(
    within.map(({ x, y }) => rowOf(panel, y, height) * width + Math.round(place(panel.x, x) * (width - 1))),
  );
}

function horizontalAxis({ x }: Panel, width: number): [string, string] {
  const line = new Array<string>(width).fill('─');
  let labels = '';
  for (const tick of x.ticks) {
    const column = Math.round(place(x, tick) * (width - 1));
    const label = String(tick);
    const start = Math.min(width - label.length, Math.max(0, column - Math.floor((label.length - 1) / 2)));
    if (labels.length > 0 && start <= labels.length) continue;
    line[column] = '┬';
    labels = labels.padEnd(start) + label;
  }
  return [`└${line.join('')}`, ` ${labels}`];
}

/** Columns that a chart has to the right of the section labels. */
export function chartColumns(columns: number): number {
  return Math.min(90, columns - labelWidth);
}
