// The runs of a long benchmark, each a line of JSON in a file: a table that was stopped goes on with those that are
// missing.

import { appendFileSync, existsSync, readFileSync } from 'node:fs';

export class RunsFile<Key, Run extends Key> {
  readonly #path: string;
  readonly #keyOf: (key: Key) => string;

  /** `keyOf`: what tells runs apart. */
  constructor(path: string, keyOf: (key: Key) => string) {
    this.#path = path;
    this.#keyOf = keyOf;
  }

  read(): Run[] {
    if (!existsSync(this.#path)) return [];
    const lines = readFileSync(this.#path, 'utf8').split('\n');
    return lines.filter(Boolean).map((line) => JSON.parse(line) as Run);
  }

  /** Of those that are wanted, what has not been run and has a key that contains `only`. */
  missing(wanted: readonly Key[], only: string): readonly Key[] {
    const done = new Set(this.read().map(this.#keyOf));
    return wanted.filter((key) => !done.has(this.#keyOf(key)) && this.#keyOf(key).includes(only));
  }

  add(run: Run): void {
    appendFileSync(this.#path, `${JSON.stringify(run)}\n`);
  }
}
