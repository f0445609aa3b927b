// What a person sees: on a terminal a few lines that repaint themselves, elsewhere plain lines. Writes to the stream it is given and keeps no
// facts; `NO_COLOR` and dumb terminals are honoured.

import type { WriteStream } from 'node:tty';
import { createColors } from 'picocolors';

type Colors = ReturnType<typeof createColors>;

/** Where and how to write. */
export interface Terminal {
  readonly colors: Colors;
  readonly isInteractive: boolean;
  readonly columns: number;
  /** Prints lines that stay. */
  print(text: string): void;
  /** Shows lines that the next call replaces; off a terminal it prints nothing. */
  live(lines: readonly string[]): void;
  /** Leaves the live lines as they are and goes on below them. */
  keepLive(): void;
}

/** A terminal on a stream. Repaints at most every 80 ms, so that fast rounds cost nothing. */
export function createTerminal(stream: WriteStream | NodeJS.WriteStream, environment: NodeJS.ProcessEnv, now: () => number): Terminal {
  const isInteractive = stream.isTTY === true && environment['TERM'] !== 'dumb' && environment['CI'] === undefined;
  const colors = createColors(isInteractive && environment['NO_COLOR'] === undefined);
  let shownCount = 0;
  let latest: readonly string[] = [];
  let paintedMs = Number.NEGATIVE_INFINITY;
  const columns = (): number => Math.max(40, Math.min(stream.columns ?? 100, 120));
  const clear = (): void => {
    if (shownCount > 0) stream.write(`\u001b[${shownCount}A\u001b[0J`);
    shownCount = 0;
  };
  const paint = (): void => {
    clear();
    for (const line of latest) stream.write(`${clip(line, columns())}\n`);
    shownCount = latest.length;
  };
  return {
    colors,
    isInteractive,
    get columns() {
      return columns();
    },
    print(text) {
      clear();
      stream.write(`${text}\n`);
      if (latest.length > 0) paint();
    },
    live(lines) {
      if (!isInteractive) return;
      const isNew = latest.length !== lines.length;
      latest = lines;
      if (!isNew && now() - paintedMs < 80) return;
      paintedMs = now();
      paint();
    },
    keepLive() {
      if (isInteractive) paint();
      latest = [];
      shownCount = 0;
    },
  };
}

/** Cuts a line to the terminal's width; escape sequences take no room. */
export function clip(line: string, columns: number): string {
  let width = 0;
  let index = 0;
  while (index < line.length) {
    if (line[index] === '\u001b') {
      const end = line.indexOf('m', index);
      index = end < 0 ? line.length : end + 1;
      continue;
    }
    if (width === columns) return `${line.slice(0, index)}\u001b[0m`;
    width++;
    index++;
  }
  return line;
}

/** A bar of `width` characters, filled to `fraction`. */
export function bar(fraction: number, width: number): string {
  const eighths = Math.round(Math.min(1, Math.max(0, fraction)) * width * 8);
  const full = Math.floor(eighths / 8);
  const part = ' ▏▎▍▌▋▊▉'[eighths % 8] ?? '';
  return `${'█'.repeat(full)}${full < width ? part : ''}`.padEnd(width, '░').replace(/ /g, '░');
}

/** "1 h 02 min", "3 min 07 s", "4.2 s". */
export function duration(seconds: number): string {
  if (!Number.isFinite(seconds)) return '…';
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  const two = (value: number): string => String(value).padStart(2, '0');
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
}

/** "840 Mbps", "12.4 Gbps". */
export function bandwidth(mbps: number): string {
  return mbps >= 1000 ? `${(mbps / 1000).toFixed(1)} Gbps` : `${mbps.toFixed(mbps < 10 ? 1 : 0)} Mbps`;
}
