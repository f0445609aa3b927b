// A terminal that remembers what was written to it, and what then stands on its screen. Used by tests only.

import type { TerminalStream } from '../cli/terminal.ts';

/** Understands what createTerminal writes: lines, "n lines up", "erase to the end of the line" and "erase below". */
export class FakeStream implements TerminalStream {
  readonly isTTY: boolean;
  readonly columns: number;
  readonly rows: number;
  readonly writes: string[] = [];

  constructor({ isTTY = true, columns = 100, rows = 30 }: { isTTY?: boolean; columns?: number; rows?: number }) {
    this.isTTY = isTTY;
    this.columns = columns;
    this.rows = rows;
  }

  write(text: string): boolean {
    this.writes.push(text);
    return true;
  }

  get text(): string {
    return this.writes.join('');
  }

  /** The lines on the screen, scrolled ones included, without colours and trailing blanks. */
  screen(): string[] {
    const lines: string[] = [];
    let [row, column] = [0, 0];
    // biome-ignore lint/suspicious/noControlCharactersInRegex: escape sequences begin with one
    for (const token of this.text.match(/\u001b\[\d*[A-Za-z]|\n|\r|[^\u001b\n\r]+/g) ?? []) {
      const sequence = token.startsWith('\u001b') ? token.at(-1) : undefined;
      const line = lines[row] ?? '';
      if (token === '\n') [row, column] = [row + 1, 0];
      else if (token === '\r') column = 0;
      else if (sequence === 'A') row -= Number(token.slice(2, -1));
      else if (sequence === 'K') lines[row] = line.slice(0, column);
      else if (sequence === 'J') {
        lines.length = row;
      } else if (sequence === undefined) {
        while (lines.length <= row) lines.push('');
        lines[row] = line.padEnd(column).slice(0, column) + token + line.slice(column + token.length);
        column += token.length;
      } else if (sequence !== 'm') throw new Error(`An unknown sequence was written: ${JSON.stringify(token)}.`);
      if (row < 0) throw new Error('The cursor moved above the screen.');
    }
    return lines.map((line) => (line ?? '').trimEnd());
  }
}
