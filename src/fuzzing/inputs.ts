// Inputs from seeds: valid ones with a few mistakes in their bytes or their content, and some that are random.

import { stringify as toYaml } from 'yaml';
import type { Random } from '../random.ts';
import { mutate } from '../testing/mutations.ts';
import { mutateJson } from '../testing/wrong-messages.ts';

/** One of the values. */
export function oneOf<T>(items: readonly T[], random: Random): T {
  return items[random.integer(items.length)] as T;
}

/** Up to `maxLength` random bytes. */
export function randomBytes(random: Random, maxLength = 300): Uint8Array {
  return Uint8Array.from({ length: random.integer(maxLength + 1) }, () => random.integer(256));
}

/**
 * One of the originals with a few wrong bytes; one time in ten random bytes, half of the time after the first bytes of
 * an original.
 */
export function damagedBytes(originals: readonly Uint8Array[], random: Random): Uint8Array {
  const original = oneOf(originals, random);
  const kind = random.integer(20);
  if (kind === 0) return randomBytes(random);
  if (kind === 1) return Uint8Array.from([...original.subarray(0, random.integer(16)), ...randomBytes(random)]);
  return mutate(original, random);
}

/** A copy of `value` with one to three mistakes. */
export function damagedValue(value: unknown, random: Random): unknown {
  let damaged = value;
  for (let change = random.integer(3); change >= 0; change--) damaged = mutateJson(damaged, random);
  return damaged;
}

const encoder = new TextEncoder();
const decoder = new TextDecoder();

/** Marks that mean something to parsers of JSON and YAML. */
const marks: readonly string[] = [
  ...[
    '&a ',
    '*a',
    '<<: ',
    '!!binary ',
    '!!set ',
    '!x ',
    '? ',
    '- ',
    '|\n',
    '>-\n',
    '%YAML 9.9\n',
    '---\n',
    '...\n',
    '\t',
    '#',
    '"',
    "'",
  ],
  ...[
    '{',
    '}',
    '[',
    ']',
    ',',
    ':',
    ': ',
    '\\',
    '\\u',
    '\u2028',
    '\ufeff',
    '\0',
    '__proto__',
    '1e999',
    '-0',
    '0x1',
    '.nan',
    '~',
    '\n',
  ],
];

/** A text with wrong bytes, or with marks of JSON and YAML. */
export function damagedText(text: string, random: Random): string {
  if (random.integer(2) === 0) return decoder.decode(damagedBytes([encoder.encode(text)], random));
  let damaged = text;
  for (let change = random.integer(3); change >= 0; change--) {
    const at = random.integer(damaged.length + 1);
    damaged = damaged.slice(0, at) + oneOf(marks, random) + damaged.slice(at);
  }
  return damaged;
}

/** Longer ones are given as JSON only. */
const maxYamlLength = 3000;

/**
 * A document as JSON or YAML, damaged as a text or in its content. Mostly JSON on one line, which is read a hundred
 * times as fast as YAML.
 */
export function damagedDocument(values: readonly unknown[], random: Random): string {
  const value = oneOf(values, random);
  if (random.integer(20) > 0) {
    const said = damagedValue(value, random);
    const [kind, text] = [random.integer(30), JSON.stringify(said)];
    if (kind > 2 || text.length > maxYamlLength) return text;
    return kind > 1 ? JSON.stringify(said, undefined, 1) : toYaml(said);
  }
  return damagedText(
    random.integer(2) === 0 ? toYaml(value) : JSON.stringify(value, undefined, random.integer(2)),
    random,
  );
}
