// A round whose loss or gradients are not finite: it does not commit, and the run ends.

import { RunError } from '../../errors.ts';

/** A run has ended in such a round. Whoever has the state before it can say where numbers left the finite ones. */
export class NotFinite extends RunError {
  readonly round: number;

  constructor(round: number, message: string) {
    super(message);
    this.round = round;
  }
}

/** Why a run ends with such a round, and what helps. */
export function notFinite(round: number): string {
  const fix = 'lower the learning rate (--lr) or clip gradients (--clip-norm)';
  return `the loss or a gradient of round ${round} is not a finite number: ${fix}`;
}
