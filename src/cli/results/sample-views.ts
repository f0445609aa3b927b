// Samples as a person looks at them: pictures as PNG, texts by their tokenizer, rows by their columns.

import { defined } from '../../assert.ts';
import { elementCount, type Tensor, toNumbers } from '../../graph/tensor.ts';
import { writePng } from '../../storage/node/png.ts';
import { decoderOf } from '../../storage/node/texts/tokenizer.ts';
import { batchOf } from '../../training/data/batch.ts';
import { type Dataset, rowOf } from '../../training/data/dataset.ts';
import type { TableForm } from '../../training/data/tables/table-form.ts';

/** What can be shown of a sample. */
export interface SampleView {
  /** Its file, its line, or its number. */
  readonly name: string;
  /** A PNG as data URI. */
  readonly picture?: string;
  readonly text?: string;
}

/** The longer side of a picture in the report. */
const largestSide = 112;
const longestText = 400;
const shownColumnCount = 12;

/** Views of some samples of a data set. */
export async function viewSamples(
  dataset: Dataset,
  samples: readonly number[],
  tokenizer: string | undefined,
): Promise<readonly SampleView[]> {
  const decode = tokenizer === undefined ? undefined : await decoderOf(tokenizer);
  const views: SampleView[] = [];
  for (const sample of samples) {
    const name = dataset.rowName?.(rowOf(dataset, sample)) ?? `sample ${sample}`;
    const { inputs } = await batchOf(dataset, Uint32Array.of(sample));
    views.push({ name, ...viewOf(dataset, inputs, decode) });
  }
  return views;
}

function viewOf(
  { preparation, inputs: fields }: Dataset,
  inputs: readonly Tensor[],
  decode: ((ids: readonly number[]) => string) | undefined,
): Omit<SampleView, 'name'> {
  if (preparation?.kind === 'table') return { text: rowText(preparation.form, toNumbers(defined(inputs[0], 'a row'))) };
  if (preparation?.kind === 'text') {
    const ids = inputs[fields.findIndex(({ name }) => name === 'input_ids')] ?? inputs[0];
    const text = decode?.(toNumbers(defined(ids, 'tokens')));
    return text === undefined ? {} : { text: shortened(text, longestText) };
  }
  const pixels = inputs.find(({ type, shape }) => type === 'float32' && isPicture(shape));
  if (pixels === undefined) return {};
  const form = preparation?.kind === 'pictures' ? preparation.form : undefined;
  return { picture: pictureOf(pixels, form) };
}

function isPicture(shape: readonly number[]): boolean {
  return shape.length === 4 && (shape[1] === 1 || shape[1] === 3) && elementCount(shape.slice(2)) > 16;
}

/** The columns in the order of their inputs, as they were before they were standardised. */
function rowText({ columns }: TableForm, row: readonly number[]): string {
  let at = 0;
  const cells = columns.map((column) => {
    const { name } = column;
    if (column.kind === 'number')
      return `${name} ${Number((defined(row[at++], name) * column.deviation + column.mean).toPrecision(4))}`;
    const place = row.slice(at, at + column.values.length).indexOf(1);
    at += column.values.length;
    return `${name} ${column.values[place] ?? '(none)'}`;
  });
  const rest = cells.length > shownColumnCount ? `, and ${cells.length - shownColumnCount} more` : '';
  return cells.slice(0, shownColumnCount).join(', ') + rest;
}

function shortened(text: string, length: number): string {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}

/** A picture [1, channels, height, width] as it was before it was normalised. */
function pictureOf(
  { shape, data }: Tensor,
  form: { readonly mean: readonly number[]; readonly deviation: readonly number[] } | undefined,
): string {
  const [, channels, height, width] = shape as [number, 1 | 3, number, number];
  const values = data as Float32Array;
  const [least, most] = form === undefined ? rangeOf(values) : [0, 1];
  const step = Math.max(1, Math.ceil(Math.max(width, height) / largestSide));
  const [columns, rows] = [Math.floor(width / step), Math.floor(height / step)];
  const bytes = new Uint8Array(columns * rows * channels);
  for (let channel = 0; channel < channels; channel++) {
    const [mean, deviation] = [form?.mean[channel] ?? 0, form?.deviation[channel] ?? 1];
    for (let row = 0; row < rows; row++)
      for (let column = 0; column < columns; column++) {
        let sum = 0;
        for (let y = row * step; y < (row + 1) * step; y++)
          for (let x = column * step; x < (column + 1) * step; x++)
            sum += values[(channel * height + y) * width + x] as number;
        const value = (sum / step ** 2) * deviation + mean;
        const byte = Math.round((255 * (value - least)) / (most - least));
        bytes[(row * columns + column) * channels + channel] = Math.max(0, Math.min(255, byte));
      }
  }
  const png = writePng({ width: columns, height: rows, channels, data: bytes });
  return `data:image/png;base64,${Buffer.from(png).toString('base64')}`;
}

/** Values from 0 to 1 are brightness; others are spread over it. */
function rangeOf(values: Float32Array): readonly [number, number] {
  let [least, most] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (const value of values) [least, most] = [Math.min(least, value), Math.max(most, value)];
  return least >= 0 && most <= 1 ? [0, 1] : [least, most > least ? most : least + 1];
}
