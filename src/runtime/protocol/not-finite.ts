// A round whose loss or gradients are not finite: it does not commit, and the run ends.

import { RunError } from '../../errors.ts';

/** A run has ended in such a round. Whoever has the state before it can say where numbers left the finite ones. */
export class NotFinite extends RunError {
  readonly round: number;

  constructor(round: number, message: string) {
    super(message);
    this.round = round;
  }

  /** The error with what was found to be the matter, a clause. */
  explained(why: string): RunError {
    return new RunError(this.message.replace(what, `${what} (${why})`));
  }
}

const what = 'is not a finite number';

/** Why a run ends with such a round, and what helps. */
export function notFinite(round: number): string {
  const fix = 'lower the learning rate (--lr) or clip gradients (--clip-norm)';
  return `the loss or a gradient of round ${round} ${what}: ${fix}`;
}
