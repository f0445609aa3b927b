// Tables from files: CSV, TSV and the like, JSON lines, Parquet, by kept parsers. The text of a file is parsed piece by
// piece; what stays in memory is the columns.

import { Readable } from 'node:stream';
import { type CsvError, parse } from 'csv-parse';
import { InputError } from '../../../errors.ts';
import { gunzip, type Source } from '../../../training/data/source.ts';
import { type Cell, isNumberText, type Table, TableBuilder } from '../../../training/data/tables/table.ts';
import { inflate } from '../inflate.ts';
import { readJsonLines } from './json-lines.ts';
import { readParquet } from './parquet.ts';
import { pieces, textOf } from './text-pieces.ts';

const tableName = /\.(csv|tsv|jsonl|ndjson|parquet)(\.gz)?$/i;

/** True for a file that is a table by its name. */
export function isTableName(name: string): boolean {
  return tableName.test(name);
}

/** Reads a table, gzipped or not, by its name's ending: .jsonl, .parquet, else delimited text. Throws InputError. */
export async function readTable(file: Source): Promise<Table> {
  const source = gunzip(file, inflate);
  const name = source.name.replace(/\.gz$/i, '');
  if (/\.parquet$/i.test(name)) return readParquet(source);
  if (/\.(jsonl|ndjson)$/i.test(name)) return readJsonLines(source);
  return readDelimited(source);
}

/** Longer records are refused: a file without line ends is not a table. */
const maxRecordBytes = 16 * 1024 * 1024;

const complaints: Readonly<Record<string, string>> = {
  CSV_QUOTE_NOT_CLOSED: 'has a quotation mark that does not close; correct that line',
  CSV_INVALID_CLOSING_QUOTE: 'has a quotation mark that does not close; correct that line',
  CSV_NON_TRIMABLE_CHAR_AFTER_CLOSING_QUOTE: 'has a quotation mark that does not close; correct that line',
  INVALID_OPENING_QUOTE: 'has a quotation mark inside a cell; put the cell in quotes and double that mark',
  CSV_MAX_RECORD_SIZE: `is longer than ${maxRecordBytes} bytes; is it a table with one line a sample?`,
};

/** Reads delimited text; the first line names the columns unless it holds numbers only. */
async function readDelimited(source: Source): Promise<Table> {
  const delimiter = delimiterOf(source);
  let lastLine = 0;
  const parser = parse({
    bom: true,
    delimiter,
    info: true,
    max_record_size: maxRecordBytes,
    relax_column_count: true,
    skip_empty_lines: true,
    trim: true,
    on_record: (record: string[], { lines }) => {
      lastLine = lines;
      return record;
    },
  });
  const texts = Readable.from(pieces(source));
  texts.once('error', (error) => parser.destroy(error));
  texts.pipe(parser);
  let builder: TableBuilder | undefined;
  try {
    for await (const { record, info } of parser as AsyncIterable<{ record: string[]; info: { lines: number } }>) {
      if (builder === undefined) {
        checkWidth(source, record);
        const hasNames = record.some((cell) => !isNumberText(cell));
        builder = new TableBuilder(source.name, hasNames ? record : record.map((_, index) => `${index + 1}`), hasNames);
        if (hasNames) continue;
      }
      builder.add(record as readonly Cell[], info.lines);
    }
  } catch (error) {
    throw explained(error, source, lastLine);
  }
  if (builder === undefined) throw new InputError(`${source.name} is empty; a table with one line a sample is needed.`);
  return builder.build();
}

/** A quotation mark that does not close is in the record behind the last whole one, which ends in `lastLine`. */
function explained(error: unknown, { name }: Source, lastLine: number): unknown {
  const { code, message, lines } = error as Partial<CsvError> & { readonly lines?: number };
  if (error instanceof InputError || code === undefined) return error;
  const line = code === 'CSV_QUOTE_NOT_CLOSED' ? lastLine + 1 : (lines ?? 1);
  return new InputError(`${name}, line ${line}, ${complaints[code] ?? `is no line of a table (${message})`}.`);
}

function checkWidth({ name }: Source, record: readonly string[]): void {
  if (record.length < 2)
    throw new InputError(`${name} has a single column; inputs and a label are needed, separated by commas.`);
}

const delimiters = [',', ';', '\t', '|'];
/** Bytes in which the first line is looked for. */
const headBytes = 64 * 1024;

/** The delimiter that the first line has most of outside of quotes. */
function delimiterOf(source: Source): string {
  const head = textOf({ ...source, bytes: source.bytes.subarray(0, headBytes) });
  const line =
    head
      .replace(/"(?:[^"]|"")*"/g, '')
      .trimStart()
      .split('\n', 1)[0] ?? '';
  const counts = delimiters.map((delimiter) => line.split(delimiter).length - 1);
  return delimiters[counts.indexOf(Math.max(...counts))] as string;
}
