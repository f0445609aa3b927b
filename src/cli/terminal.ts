// What a person sees: on a terminal a few lines that are repainted, elsewhere plain lines. Writes to the given stream;
// keeps no facts; `NO_COLOR` and dumb terminals are honoured.

import type { WriteStream } from 'node:tty';
import { createColors } from 'picocolors';

export { bandwidth, counted, duration, grouped, memory } from '../measures.ts';

type Colors = ReturnType<typeof createColors>;

/** Where and how to write. */
export interface Terminal {
  readonly colors: Colors;
  readonly isInteractive: boolean;
  readonly columns: number;
  /** Prints lines that stay. */
  print(text: string): void;
  /** Prints a line that begins with its label; the lines of one label stand together under it. */
  section(label: string, text: string): void;
  /** Shows lines that the next call replaces; off a terminal it prints nothing. */
  live(lines: readonly string[]): void;
  /** Keeps the live lines as they are and continues below them. */
  keepLive(): void;
}

/** The part of a stream that a terminal needs. */
export type TerminalStream = Pick<WriteStream, 'write'> & Partial<Pick<WriteStream, 'isTTY' | 'columns' | 'rows'>>;

/** Columns of a label. */
export const labelWidth = 11;

const repaintMs = 80;
const [eraseLine, eraseBelow] = ['\u001b[K', '\u001b[0J'];

/** A terminal on a stream. Repaints at most every 80 ms, so that fast rounds cost nothing. */
export function createTerminal(stream: TerminalStream, environment: NodeJS.ProcessEnv, now: () => number): Terminal {
  const isInteractive = stream.isTTY === true && environment['TERM'] !== 'dumb' && environment['CI'] === undefined;
  const colors = createColors(isInteractive && (environment['NO_COLOR'] ?? '') === '');
  let shownCount = 0;
  let latest: readonly string[] = [];
  let lastLabel = '';
  let paintedMs = Number.NEGATIVE_INFINITY;
  const columns = (): number => (isInteractive ? Math.max(20, stream.columns ?? 80) : 100);
  /** One write: over the old lines, without a moment at which they are gone. */
  const paint = (above = ''): void => {
    const rows = Math.max(1, (stream.rows ?? 24) - 1);
    const lines = latest.slice(0, rows).map((line) => `${clip(line, columns())}${eraseLine}\n`);
    const up = shownCount > 0 ? `\u001b[${shownCount}A\r` : '';
    const kept = above === '' ? '' : `${above.replaceAll('\n', `${eraseLine}\n`)}${eraseLine}\n`;
    const text = `${up}${kept}${lines.join('')}${up === '' ? '' : eraseBelow}`;
    if (text !== '') stream.write(text);
    shownCount = lines.length;
    paintedMs = now();
  };
  const print = (text: string): void => {
    lastLabel = '';
    if (isInteractive) paint(text === '' ? ' ' : text);
    else stream.write(`${text}\n`);
  };
  return {
    colors,
    isInteractive,
    get columns() {
      return columns();
    },
    print,
    section(label, text) {
      const shown = label === lastLabel ? '' : label;
      print(`${colors.cyan(shown.padEnd(labelWidth))}${text.replaceAll('\n', `\n${' '.repeat(labelWidth)}`)}`);
      lastLabel = label;
    },
    live(lines) {
      if (!isInteractive) return;
      const isNew = latest.length !== lines.length;
      latest = lines;
      if (isNew || now() - paintedMs >= repaintMs) paint();
    },
    keepLive() {
      if (isInteractive) paint();
      latest = [];
      shownCount = 0;
    },
  };
}

/** Cuts a line to the terminal's width; escape sequences have no width. */
export function clip(line: string, columns: number): string {
  let width = 0;
  let index = 0;
  while (index < line.length) {
    if (line[index] === '\u001b') {
      const end = line.indexOf('m', index);
      index = end < 0 ? line.length : end + 1;
      continue;
    }
    if (width === columns) return `${line.slice(0, index)}${line.includes('\u001b') ? '\u001b[0m' : ''}`;
    width++;
    index++;
  }
  return line;
}

/** A bar of `width` characters, filled to `fraction`. */
export function bar(fraction: number, width: number): string {
  const eighths = Math.round(Math.min(1, Math.max(0, Number.isFinite(fraction) ? fraction : 0)) * width * 8);
  const full = Math.floor(eighths / 8);
  const part = ['', '▏', '▎', '▍', '▌', '▋', '▊', '▉'][eighths % 8] ?? '';
  return `${'█'.repeat(full)}${part}`.padEnd(width, '░');
}

/** A command of this program as it can be typed, in a checkout and where the package is installed. */
export function command(rest: string): string {
  return `npx asteroid ${rest}`;
}
