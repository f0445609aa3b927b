// Targets with planted mistakes: the fuzzer must find them. One input in twenty meets one.

import { InputError } from '../../errors.ts';
import type { Target, TargetEntry } from '../target.ts';

function planted(mistake: () => void | Promise<void>): () => Target<number> {
  return () => ({
    input: (random) => random.integer(20),
    take(input) {
      if (input === 17) return mistake();
      if (input % 2 === 0) throw new InputError('Even numbers are refused.');
    },
  });
}

let held: unknown;

/** Targets by mistake. */
export const plantedTargets: readonly TargetEntry[] = [
  [
    'planted-type-error',
    planted(() => {
      (undefined as unknown as { length: number }).length++;
    }),
  ] as const,
  [
    'planted-loop',
    planted(() => {
      for (;;);
    }),
  ] as const,
  ['planted-silence', planted(() => new Promise(() => {}))] as const,
  [
    'planted-memory',
    planted(() => {
      held = new Uint8Array(80 * 2 ** 20);
      if (held === undefined) return;
    }),
  ] as const,
  [
    'planted-array',
    planted(() => {
      held = new Array(12_000_000).fill(0);
    }),
  ] as const,
  [
    'planted-page',
    planted(() => {
      throw Object.assign(new InputError(''), { message: `a\nb${'c'.repeat(20)}` });
    }),
  ] as const,
].map(([name, create]) => ({ name: name, share: 0, refusals: [InputError], create }));
