// What a stage that only infers refuses: it has no loss, no gradients and no updates.

import type { Tensor } from '../../graph/tensor.ts';
import type { RoundTotals } from './round-sums.ts';
import type { OwnGradients } from './stage.ts';

/** The part of a stage that trains, for stages that never do: a call of it is a mistake of ours. */
export abstract class ForwardOnly {
  finishRound(): Promise<RoundTotals> {
    return neverTrains();
  }

  update(): void {
    neverTrains();
  }

  backward(): Promise<readonly Tensor[]> {
    return neverTrains();
  }

  backwardInput(): Promise<readonly Tensor[]> {
    return neverTrains();
  }

  backwardWeight(): void {
    neverTrains();
  }

  takeGradients(): Promise<OwnGradients> {
    return neverTrains();
  }

  putGradients(): void {
    neverTrains();
  }
}

function neverTrains(): never {
  throw new Error('a stage that infers is asked to train');
}
