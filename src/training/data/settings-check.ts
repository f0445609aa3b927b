// Which settings concern which kinds of data: one that would be without effect is refused.

import { InputError } from '../../errors.ts';
import { type DataSettings, defaultDataSettings } from './data-settings.ts';
import type { DataSpec } from './spec.ts';

/** The kinds of data that a setting concerns, its flag, and the words for them. */
interface Concern {
  readonly flag: string;
  readonly kinds: readonly DataSpec['kind'][];
  readonly what: string;
}

const pictures = { kinds: ['images'], what: 'pictures (images:DIR)' } as const;

const tables = { kinds: ['csv', 'table', 'text', 'images'], what: 'tables (table:FILE)' } as const;

const texts = { kinds: ['text'], what: 'texts (text:FILE)' } as const;

const concerns: Readonly<Partial<Record<keyof DataSettings, Concern>>> = {
  imageSize: { flag: '--image-size', ...pictures },
  preprocessor: { flag: '--preprocessor', ...pictures },
  augment: { flag: '--augment', ...pictures },
  label: { flag: '--label', ...tables },
  columns: { flag: '--columns', ...tables },
  standardize: { flag: '--no-standardize', kinds: ['csv', 'table'], what: 'tables (table:FILE)' },
  tokenizer: { flag: '--tokenizer', ...texts },
  maxLength: { flag: '--max-length', ...texts },
  groupByLength: { flag: '--group-by-length', ...texts },
  onBadFile: { flag: '--on-bad-file', ...pictures },
};

/** Throws InputError for a setting that does not concern data of this kind. */
export function checkSettings(kind: DataSpec['kind'], settings: DataSettings): void {
  for (const [name, { flag, kinds, what }] of Object.entries(concerns) as [keyof DataSettings, Concern][]) {
    const value = settings[name];
    if (value === undefined || value === defaultDataSettings[name] || kinds.includes(kind)) continue;
    throw new InputError(`${flag} ${value} concerns ${what}, and the data are ${kind}: leave it out.`);
  }
}
