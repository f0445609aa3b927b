// Patterns of parameters' names, as flags give them.

import { InputError } from '../../errors.ts';

/**
 * The names that match one of the patterns, in which `*` stands for any text. Throws InputError for one that matches
 * none, with the names that come closest; `flag`: where it was given.
 */
export function matching(parameters: readonly string[], patterns: readonly string[], flag: string): Set<string> {
  const found = new Set<string>();
  for (const pattern of patterns) {
    const expression = patternExpression(pattern);
    const matches = parameters.filter((name) => expression.test(name));
    if (matches.length === 0) {
      const close = closest(pattern, parameters).join(', ');
      throw new InputError(
        `${flag} ${pattern} matches no ${flag === '--train' ? 'float tensor' : 'parameter'}: ` +
          `${parameters.length > shownCount ? 'the closest of the model’s names are' : 'the model has'} ${close}.`,
      );
    }
    for (const name of matches) found.add(name);
  }
  return found;
}

/** `*` stands for any text. */
export function patternExpression(pattern: string): RegExp {
  return new RegExp(`^${pattern.replace(/[.+?^${}()|[\]\\]/g, '\\$&').replace(/\*/g, '.*')}$`);
}

/** How many names an error lists. */
const shownCount = 4;

/** The names that take the fewest changes to become the pattern, in the model's order where equal. */
export function closest(pattern: string, names: readonly string[]): readonly string[] {
  return names
    .map((name) => ({ name, distance: patternDistance(pattern, name) }))
    .sort((a, b) => a.distance - b.distance)
    .slice(0, shownCount)
    .map(({ name }) => name);
}

/**
 * Characters to insert, delete or replace so that the name matches; those that a `*` stands for cost nothing
 * (Levenshtein 1966, row by row).
 */
function patternDistance(pattern: string, name: string): number {
  let row = Array.from({ length: name.length + 1 }, (_, index) => index);
  for (const sign of pattern) {
    const next = [sign === '*' ? (row[0] as number) : (row[0] as number) + 1];
    for (let index = 1; index <= name.length; index++) {
      const [left, above, corner] = [next[index - 1] as number, row[index] as number, row[index - 1] as number];
      next.push(
        sign === '*'
          ? Math.min(left, above)
          : Math.min(left + 1, above + 1, corner + (sign === name[index - 1] ? 0 : 1)),
      );
    }
    row = next;
  }
  return row[name.length] as number;
}
