// The text of a file, piece by piece: UTF-8, or UTF-16 where a byte order mark says so.

import { InputError } from '../../../errors.ts';
import type { Source } from '../../../training/data/source.ts';

const pieceBytes = 1024 * 1024;

function encodingOf(bytes: Uint8Array): 'utf-8' | 'utf-16le' | 'utf-16be' {
  if (bytes[0] === 0xff && bytes[1] === 0xfe) return 'utf-16le';
  if (bytes[0] === 0xfe && bytes[1] === 0xff) return 'utf-16be';
  return 'utf-8';
}

/** The text in pieces. Throws InputError with the line of the first bytes that are no text. */
export function* pieces({ name, bytes }: Source): Generator<string, void> {
  const encoding = encodingOf(bytes);
  const decoder = new TextDecoder(encoding, { fatal: true });
  let lineCount = 0;
  for (let start = 0; start < bytes.length; start += pieceBytes) {
    const piece = bytes.subarray(start, start + pieceBytes);
    let text: string;
    try {
      text = decoder.decode(piece, { stream: start + pieceBytes < bytes.length });
    } catch {
      throw new InputError(
        `${name}, line ${lineCount + badLine(piece, encoding)}, is not UTF-8 text; save the file as UTF-8.`,
      );
    }
    for (let at = text.indexOf('\n'); at >= 0; at = text.indexOf('\n', at + 1)) lineCount++;
    yield text;
  }
}

/** The line, from 1, of the first bytes of a piece that cannot be decoded. */
function badLine(piece: Uint8Array, encoding: string): number {
  let line = 1;
  for (let start = 0; start < piece.length; line++) {
    const end = piece.indexOf(10, start);
    try {
      new TextDecoder(encoding, { fatal: true }).decode(piece.subarray(start, end < 0 ? piece.length : end));
    } catch {
      return line;
    }
    if (end < 0) return line;
    start = end + 1;
  }
  return line;
}

/** The whole text, however damaged. */
export function textOf({ bytes }: Source): string {
  return new TextDecoder(encodingOf(bytes)).decode(bytes);
}

/** The lines that are not blank, with their numbers. Throws InputError as {@link pieces} does. */
export function* linesOf(source: Source): Generator<{ readonly text: string; readonly line: number }, void> {
  let [rest, line] = ['', 0];
  for (const piece of pieces(source)) {
    const lines = (rest + piece).split('\n');
    rest = lines.pop() ?? '';
    for (const text of lines) {
      line++;
      if (text.trim() !== '') yield { text, line };
    }
  }
  if (rest.trim() !== '') yield { text: rest, line: line + 1 };
}
