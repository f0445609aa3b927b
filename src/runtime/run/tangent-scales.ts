// --tangent-scale PATTERN=ALPHA[:EPOCHS]: how far the directions of forward gradients move which parameters (AsyncFGD
// §4.3, App. I.1).

import { InputError } from '../../errors.ts';
import type { TangentScale } from '../protocol/training-spec.ts';
import { matching } from './parameter-patterns.ts';

const flag = '--tangent-scale';

/** Factors by parameter, other than 1. */
export interface TangentScales {
  readonly scales: Readonly<Record<string, TangentScale>>;
  /** Parameters that nothing moves: they are frozen, and cost nothing. */
  readonly zeros: readonly string[];
}

/** What the flags say of these parameters; the last pattern that matches decides. Throws InputError. */
export function tangentScales(parameters: readonly string[], texts: readonly string[]): TangentScales {
  const found = new Map<string, TangentScale>();
  for (const text of texts) {
    const { pattern, ...scale } = parseTangentScale(text);
    for (const name of matching(parameters, [pattern], flag)) found.set(name, scale);
  }
  const isZero = ({ factor }: TangentScale): boolean => factor === 0;
  return {
    scales: Object.fromEntries([...found].filter(([, scale]) => !isZero(scale) && !isDefault(scale))),
    zeros: [...found].flatMap(([name, scale]) => (isZero(scale) ? [name] : [])),
  };
}

function isDefault({ factor, rampEpochs }: TangentScale): boolean {
  return factor === 1 && rampEpochs === 0;
}

/** `features.*=0.1:20`, for example. Throws InputError. */
export function parseTangentScale(text: string): TangentScale & { readonly pattern: string } {
  const [, pattern = '', factor = '', epochs = '0'] = /^(.+)=([\d.eE+-]+)(?::(\d+))?$/.exec(text) ?? [];
  const [alpha, rampEpochs] = [Number(factor), Number(epochs)];
  if (pattern === '' || factor === '' || !(alpha >= 0) || !Number.isFinite(alpha) || rampEpochs > 1e6)
    throw new InputError(
      `${flag} ${text} is not PATTERN=ALPHA or PATTERN=ALPHA:EPOCHS, with a number of at least 0 and a whole number ` +
        'of epochs, such as "*.bias=0.1:20".',
    );
  return { pattern, factor: alpha, rampEpochs };
}
