// Everything that is fuzzed. Shares are such that a million inputs take as long as they may: what is fast gets more of them.

import { InputError, ProtocolError } from '../errors.ts';
import type { TargetEntry } from './target.ts';
import { helloTarget, messageTarget } from './targets/control.ts';
import { clusterTarget, planTarget, profileTarget } from './targets/documents.ts';
import { frameTarget } from './targets/frames.ts';
import { plantedTargets } from './targets/planted.ts';
import { safetensorsTarget } from './targets/weights.ts';

/** All of them, planted ones last. */
export const targets: readonly TargetEntry[] = [
  { name: 'frame', share: 10, refusals: [ProtocolError], create: frameTarget },
  { name: 'hello', share: 10, refusals: [ProtocolError], create: helloTarget },
  { name: 'message', share: 10, refusals: [ProtocolError], create: messageTarget },
  { name: 'cluster', share: 0.3, refusals: [InputError], create: clusterTarget },
  { name: 'profile', share: 0.3, refusals: [InputError], create: profileTarget },
  { name: 'plan', share: 0.3, refusals: [InputError], create: planTarget },
  { name: 'safetensors', share: 10, refusals: [InputError], create: safetensorsTarget },
  ...plantedTargets,
];

/** The target of this name. Throws InputError. */
export function targetOf(name: string): TargetEntry {
  const found = targets.find((target) => target.name === name);
  if (found !== undefined) return found;
  const known = targets.filter(({ share }) => share > 0).map((target) => target.name);
  throw new InputError(`There is no target "${name}"; use one of ${known.join(', ')}.`);
}
