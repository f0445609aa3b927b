// Messages with one thing wrong, from a seed: for fuzzing what takes JSON from the network.

import type { Random } from '../random.ts';

const nastyValues: readonly unknown[] = [
  null,
  true,
  0,
  -1,
  1,
  0.5,
  2 ** 31,
  2 ** 53,
  1e308,
  -1e308,
  '',
  'no such name',
  '__proto__',
  'x'.repeat(5000),
  [],
  [[]],
  {},
  { kind: 'x' },
  new Array(3000).fill(0),
];

/** A copy of `value` with one part of it, anywhere inside, replaced, removed, doubled or renamed. */
export function mutateJson(value: unknown, random: Random): unknown {
  if (typeof value !== 'object' || value === null || random.integer(8) === 0)
    return nastyValues[random.integer(nastyValues.length)];
  if (Array.isArray(value)) return mutateArray(value, random);
  const entries = Object.entries(value);
  if (entries.length === 0) return { extra: nastyValues[random.integer(nastyValues.length)] };
  const index = random.integer(entries.length);
  const [key, inner] = entries[index] as [string, unknown];
  const kind = random.integer(6);
  if (kind === 0) entries.splice(index, 1);
  else if (kind === 1) entries[index] = [`${key}2`, inner];
  else entries[index] = [key, mutateJson(inner, random)];
  return Object.fromEntries(entries);
}

function mutateArray(value: readonly unknown[], random: Random): unknown {
  if (value.length === 0) return [nastyValues[random.integer(nastyValues.length)]];
  const copy = [...value];
  const index = random.integer(copy.length);
  const kind = random.integer(6);
  if (kind === 0) copy.splice(index, 1);
  else if (kind === 1) copy.splice(index, 0, copy[index]);
  else copy[index] = mutateJson(copy[index], random);
  return copy;
}
