// The values of `--data`, parsed. Pure: no file is read.

import { InputError } from '../../errors.ts';
import { safeProduct } from './source.ts';
import type { SyntheticShape } from './synthetic.ts';
import type { SyntheticTokens } from './synthetic-tokens.ts';
import { defaultBlockLength } from './tokens.ts';

/** A parsed data spec; paths as written. */
export type DataSpec =
  | { readonly kind: 'mnist' }
  | { readonly kind: 'cifar10'; readonly folder: string }
  | { readonly kind: 'idx'; readonly folder: string }
  | { readonly kind: 'images'; readonly path: string }
  | { readonly kind: 'npy'; readonly inputs: string; readonly labels: string }
  | { readonly kind: 'npz'; readonly file: string }
  | { readonly kind: 'csv'; readonly file: string; readonly labelColumn?: string }
  | { readonly kind: 'table'; readonly file: string }
  | { readonly kind: 'text'; readonly file: string }
  | { readonly kind: 'tokens'; readonly file: string; readonly blockLength: number }
  | ({ readonly kind: 'synthetic' } & SyntheticShape)
  | ({ readonly kind: 'synthetic-tokens' } & SyntheticTokens)
  | { readonly kind: 'mix'; readonly parts: readonly MixPartSpec[] };

/** A part of a mix. */
export interface MixPartSpec {
  readonly spec: DataSpec;
  /** Above 0, at most 1. */
  readonly share: number;
  /** The part's own spec, as written. */
  readonly text: string;
}

/** The forms, for help texts and errors. */
export const dataSpecForms: readonly string[] = [
  'mnist',
  'cifar10:DIR',
  'idx:DIR',
  'images:DIR|FILE',
  'npy:INPUTS,LABELS',
  'npz:FILE',
  'csv:FILE[,LABELCOLUMN]',
  'table:FILE',
  'text:FILE',
  'tokens:FILE[,BLOCKLENGTH]',
  'synthetic:SHAPE[:CLASSES[:SAMPLES]]',
  'synthetic-tokens:LENGTH:VOCABULARY[:CLASSES[:SAMPLES]]',
  'mix:SPEC[@SHARE]+SPEC[@SHARE]',
];

/** Parses a data spec. Throws InputError that lists the valid forms. */
export function parseDataSpec(text: string): DataSpec {
  const colon = text.indexOf(':');
  const kind = colon < 0 ? text : text.slice(0, colon);
  const rest = colon < 0 ? '' : text.slice(colon + 1);
  switch (kind) {
    case 'mnist':
      if (colon >= 0) throw wrongSpec(text, 'mnist takes nothing after it');
      return { kind };
    case 'cifar10':
    case 'idx':
      if (rest === '') throw wrongSpec(text, `the folder is missing`);
      return { kind, folder: rest };
    case 'images':
      if (rest === '') throw wrongSpec(text, 'the folder is missing');
      return { kind, path: rest };
    case 'npy': {
      const [inputs, labels] = pair(text, rest, 'the two files, inputs and labels, are needed');
      if (labels === undefined) throw wrongSpec(text, 'the two files, inputs and labels, are needed');
      return { kind, inputs, labels };
    }
    case 'npz':
    case 'table':
    case 'text':
      if (rest === '') throw wrongSpec(text, 'the file is missing');
      return { kind, file: rest };
    case 'csv': {
      const [file, labelColumn] = pair(text, rest, 'the file is missing');
      return labelColumn === undefined ? { kind, file } : { kind, file, labelColumn };
    }
    case 'tokens': {
      const [file, length] = pair(text, rest, 'the file is missing');
      return {
        kind,
        file,
        blockLength: length === undefined ? defaultBlockLength : count(text, length, 'block length'),
      };
    }
    case 'synthetic':
      return { kind, ...parseShape(text, rest) };
    case 'synthetic-tokens':
      return { kind, ...parseTokens(text, rest) };
    case 'mix':
      return { kind, parts: parseMix(text, rest) };
    default:
      throw wrongSpec(text, 'its kind is unknown');
  }
}

/** The beginnings of specs, behind a plus that separates two; others belong to a path. */
const partStart = new RegExp(`\\+(?=(?:${dataSpecForms.map((form) => form.split(':')[0]).join('|')})(?:[:@+]|$))`);

function parseMix(text: string, rest: string): readonly MixPartSpec[] {
  const parts = rest.split(partStart).map((part): MixPartSpec => {
    const [, own = part, share = '1'] = /^(.*)@([\d.]+)$/.exec(part) ?? [];
    if (own.startsWith('mix:')) throw wrongSpec(text, 'a mix cannot be part of a mix');
    const spec = parseDataSpec(own);
    if (!(Number(share) > 0 && Number(share) <= 1))
      throw wrongSpec(text, `the share ${JSON.stringify(share)} is not above 0 and at most 1`);
    return { spec, share: Number(share), text: own };
  });
  if (parts.length < 2) throw wrongSpec(text, 'a mix needs two parts at least, with + between them');
  return parts;
}

function wrongSpec(text: string, problem: string): InputError {
  return new InputError(
    `The data spec ${JSON.stringify(text)} cannot be read: ${problem}; valid are ${dataSpecForms.join(', ')}.`,
  );
}

/** A, or A and B separated by a comma. */
function pair(text: string, rest: string, missing: string): [string, string?] {
  const parts = rest.split(',');
  if (parts.length > 2) throw wrongSpec(text, 'there is more than one comma (a path with a comma must be renamed)');
  if (parts.includes('')) throw wrongSpec(text, missing);
  return parts as [string, string?];
}

function count(text: string, digits: string, what: string): number {
  const value = /^\d{1,9}$/.test(digits) ? Number(digits) : 0;
  if (value < 1) throw wrongSpec(text, `the ${what} ${JSON.stringify(digits)} is not a positive integer`);
  return value;
}

function parseShape(text: string, rest: string): SyntheticShape {
  const [dimensions, classes, samples, ...more] = rest.split(':');
  if (dimensions === undefined || more.length > 0) throw wrongSpec(text, 'SHAPE, CLASSES and SAMPLES are all it takes');
  const shape = dimensions.split('x').map((dimension) => count(text, dimension, 'dimension'));
  if (shape.length > 8 || safeProduct(shape, 4) === undefined) throw wrongSpec(text, 'the shape is too large');
  const classCount = classes === undefined ? 10 : count(text, classes, 'number of classes');
  return samples === undefined
    ? { shape, classCount }
    : { shape, classCount, sampleCount: count(text, samples, 'number of samples') };
}

function parseTokens(text: string, rest: string): SyntheticTokens {
  const [length = '', vocabulary = '', classes = '2', samples = '1024', ...more] = rest.split(':');
  if (more.length > 0) throw wrongSpec(text, 'LENGTH, VOCABULARY, CLASSES and SAMPLES are all it takes');
  return {
    length: count(text, length, 'length'),
    vocabularySize: count(text, vocabulary, 'vocabulary'),
    classCount: count(text, classes, 'number of classes'),
    sampleCount: count(text, samples, 'number of samples'),
  };
}
