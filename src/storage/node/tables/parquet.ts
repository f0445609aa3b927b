// Tables as Parquet files, by hyparquet, which is loaded where the first is read.

import { InputError } from '../../../errors.ts';
import type { Source } from '../../../training/data/source.ts';
import { type Table, TableBuilder } from '../../../training/data/tables/table.ts';
import { cellOf } from './json-lines.ts';

/** Rows that are read at once. */
const rowCount = 8192;

async function loadParquet(): Promise<{
  readonly parquet: typeof import('hyparquet');
  readonly compressors: typeof import('hyparquet-compressors')['compressors'];
}> {
  try {
    const [parquet, { compressors }] = await Promise.all([import('hyparquet'), import('hyparquet-compressors')]);
    return { parquet, compressors };
  } catch (error) {
    const [reason] = (error as Error).message.split('\n');
    throw new InputError(
      `Parquet files are read by the package hyparquet, which is not to be had here (${reason}): npm install ` +
        'hyparquet hyparquet-compressors.',
    );
  }
}

/** Reads the file. Throws InputError for one that is damaged or of a kind that hyparquet does not know. */
export async function readParquet({ name, bytes }: Source): Promise<Table> {
  const { parquet, compressors } = await loadParquet();
  const buffer = bytes.buffer as ArrayBuffer;
  const file = {
    byteLength: bytes.length,
    slice: (start: number, end?: number) =>
      buffer.slice(bytes.byteOffset + start, bytes.byteOffset + (end ?? bytes.length)),
  };
  try {
    const metadata = await parquet.parquetMetadataAsync(file);
    const names = parquet.parquetSchema(metadata).children.map(({ element }) => element.name);
    const total = Number(metadata.num_rows);
    const builder = new TableBuilder(name, names, true);
    for (let rowStart = 0; rowStart < total; rowStart += rowCount) {
      const rowEnd = Math.min(total, rowStart + rowCount);
      const rows = await parquet.parquetReadObjects({ file, metadata, compressors, rowStart, rowEnd });
      for (const [index, row] of rows.entries())
        builder.add(
          names.map((column) => cellOf(row[column])),
          rowStart + index + 1,
        );
    }
    return builder.build();
  } catch (error) {
    if (error instanceof InputError) throw error;
    throw new InputError(
      `${name} is not a Parquet file that can be read (${(error as Error).message}); write or download it again.`,
    );
  }
}
