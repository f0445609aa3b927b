// The options of built-in models and their text form: `NAME`, or `NAME:OPTION=VALUE,OPTION=VALUE`.

import { InputError } from '../errors.ts';

/** The options of built-in models. Each model takes some of these; src/models/zoo.ts holds the defaults. */
export interface ModelOptions {
  /** Side of the square images, in pixels. */
  readonly input: number;
  /** Colour channels of the images. */
  readonly channels: number;
  /** Outputs of the head. */
  readonly classes: number;
  /** The probability with which dropout zeroes elements in training; 0 leaves its nodes out. */
  readonly dropout: number;
  /** Tokens of a sequence. */
  readonly sequence: number;
  readonly activation: 'relu' | 'tanh';
  /** Numbers of a sample that is a row of a table. */
  readonly features: number;
  /** Widths of hidden layers, such as "128-64". */
  readonly hidden: string;
}

/** Names of options. */
export type OptionName = keyof ModelOptions;

type Reader<T> = { readonly takes: string; readonly read: (text: string) => T | undefined };

const wholeNumber = (highest: number): Reader<number> => ({
  takes: `a whole number from 1 to ${highest}`,
  read: (text) => (/^\d{1,9}$/.test(text) && Number(text) >= 1 && Number(text) <= highest ? Number(text) : undefined),
});

const readers: { readonly [K in OptionName]: Reader<ModelOptions[K]> } = {
  input: wholeNumber(4096),
  channels: wholeNumber(1024),
  classes: wholeNumber(1_000_000),
  dropout: {
    takes: 'a number from 0 to below 1',
    read: (text) => (/^\d*\.?\d+$/.test(text) && Number(text) < 1 ? Number(text) : undefined),
  },
  sequence: wholeNumber(512),
  features: wholeNumber(1_000_000),
  hidden: {
    takes: 'widths of at most 32 layers from 1 to 65536, such as 128-64',
    read: (text) => (/^\d{1,5}(-\d{1,5}){0,31}$/.test(text) && text.split('-').every(isWidth) ? text : undefined),
  },
  activation: { takes: 'relu or tanh', read: (text) => (text === 'relu' || text === 'tanh' ? text : undefined) },
};

function isWidth(text: string): boolean {
  return Number(text) >= 1 && Number(text) <= 65_536;
}

/** A spec's parts: the name as written, and the text after the colon. */
export function splitSpec(spec: string): { readonly name: string; readonly options: string } {
  const colon = spec.indexOf(':');
  return colon < 0 ? { name: spec, options: '' } : { name: spec.slice(0, colon), options: spec.slice(colon + 1) };
}

/** Reads `OPTION=VALUE,…` for a model with the options `names`. Throws InputError that lists them. */
export function parseOptions(model: string, text: string, names: readonly OptionName[]): Partial<ModelOptions> {
  const found = new Map<OptionName, number | string>();
  for (const part of text === '' ? [] : text.split(',')) {
    const equals = part.indexOf('=');
    const name = names.find((candidate) => candidate === part.slice(0, Math.max(equals, 0)));
    if (name === undefined) {
      const takes = names.length === 0 ? 'takes no options' : `takes ${names.map((known) => `${known}=…`).join(', ')}`;
      throw new InputError(`The built-in model ${model} has no option ${JSON.stringify(part)}; it ${takes}.`);
    }
    if (found.has(name))
      throw new InputError(`The option ${name} of the built-in model ${model} is given twice; give it once.`);
    found.set(name, checkedOption(model, name, part.slice(equals + 1)));
  }
  return Object.fromEntries(found);
}

/** An option's value from its text. Throws InputError that gives the valid values. */
function checkedOption(model: string, name: OptionName, text: string): number | string {
  const { takes, read } = readers[name];
  const value = read(text);
  if (value === undefined) {
    throw new InputError(
      `The option ${name} of the built-in model ${model} is ${JSON.stringify(text)}; it must be ${takes}.`,
    );
  }
  return value;
}
