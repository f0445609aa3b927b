// The derivatives of a stream's rounds on one device: its own and those of the other devices of the last stage, until
// the round's update takes their sum. All devices add them in one order, so that equal weights stay equal to the bit.

import { ProtocolError } from '../../errors.ts';
import type { Tensor } from '../../graph/tensor.ts';
import type { MicroBatchId } from './pieces.ts';

interface Part {
  readonly index: number;
  readonly from: string;
  readonly values: Promise<ArrayLike<number>>;
}

export class Derivatives {
  readonly #rounds = new Map<number, Part[]>();

  /** Files what a device has found for a micro-batch; a failure is seen by `sum`. */
  add({ round, index }: MicroBatchId, from: string, result: Promise<readonly Tensor[]>): void {
    const values = result.then((tensors) => tensors[0]?.data as ArrayLike<number>);
    values.catch(() => {});
    const parts = this.#rounds.get(round) ?? [];
    parts.push({ index, from, values });
    this.#rounds.set(round, parts);
  }

  /** Whether a round has any. */
  has(round: number): boolean {
    return this.#rounds.has(round);
  }

  /** Takes out a round's sums, one for each tangent. */
  async sum(round: number): Promise<readonly number[]> {
    const parts = this.#rounds.get(round) ?? [];
    this.#rounds.delete(round);
    const isBefore = (a: Part, b: Part): boolean => a.index < b.index || (a.index === b.index && a.from < b.from);
    parts.sort((a, b) => (isBefore(a, b) ? -1 : 1));
    const values = await Promise.all(parts.map((part) => part.values));
    return Array.from(values[0] ?? [], (_, tangent) => values.reduce((sum, own) => sum + (own[tangent] as number), 0));
  }
}

/** What arrives must be a number for each tangent. Throws ProtocolError. */
export function checkDerivative(tensors: readonly Tensor[], tangentCount: number, peer: string): void {
  const [tensor] = tensors;
  const fits = tensors.length === 1 && tensor?.type === 'float32' && tensor.data.length === tangentCount;
  if (!fits) throw new ProtocolError(`The derivatives of ${peer} should be ${tangentCount} numbers.`, { peer });
}
