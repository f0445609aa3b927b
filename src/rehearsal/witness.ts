// Watches a rehearsal: the events, as a hash that is the same whenever a seed is replayed, and the violations.

import { hashString } from '../random.ts';
import type { VirtualTime } from './virtual-time.ts';

/** The most violations reported of one run: one causes others. */
const maxViolations = 10;

export class Witness {
  readonly violations: string[] = [];
  /** A line for each event, if that was asked for. */
  readonly lines: string[] | undefined;
  readonly #time: VirtualTime;
  readonly #words = new Map<string, number>();
  readonly #float = new Float64Array(1);
  readonly #halves = new Uint32Array(this.#float.buffer);
  #hash = 0x811c9dc5;
  #eventCount = 0;

  constructor(time: VirtualTime, { isTraced }: { readonly isTraced: boolean }) {
    this.#time = time;
    this.lines = isTraced ? [] : undefined;
  }

  /** Notes an event. Sentences are for people: they count as events, but not in the hash. */
  note(...words: readonly (string | number)[]): void {
    this.#eventCount++;
    this.#float[0] = this.#time.nowMs;
    this.#mix(this.#halves[0] as number);
    this.#mix(this.#halves[1] as number);
    for (const word of words) {
      if (typeof word === 'number') this.#mix(word);
      else if (!word.includes(' ')) this.#mix(this.#wordHash(word));
    }
    this.lines?.push(`${this.#time.nowMs.toFixed(3).padStart(12)}  ${words.join(' ')}`);
  }

  /**
   * Notes a violation. `details` are not part of the trace: they depend on where the code lies.
   */
  violate(what: string, details?: string): void {
    this.note('VIOLATION', what);
    if (this.violations.length >= maxViolations) return;
    this.violations.push(
      `at ${(this.#time.nowMs / 1000).toFixed(3)} s: ${what}${details === undefined ? '' : `\n${details}`}`,
    );
  }

  get eventCount(): number {
    return this.#eventCount;
  }

  /** The trace so far, in eight hexadecimal digits. */
  get hash(): string {
    return (this.#hash >>> 0).toString(16).padStart(8, '0');
  }

  #mix(word: number): void {
    let hash = Math.imul(this.#hash ^ (word | 0), 0x85ebca6b);
    hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
    this.#hash = hash ^ (hash >>> 16);
  }

  #wordHash(word: string): number {
    let hash = this.#words.get(word);
    if (hash === undefined) {
      hash = hashString(word);
      if (word.length < 40) this.#words.set(word, hash);
    }
    return hash;
  }
}
