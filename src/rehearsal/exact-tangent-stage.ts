// A stage of the exact model (exact-model.ts) that trains by forward gradients, in the place of one on an engine:
// passes read the live weights and carry tangents along, updates come of the sums of derivatives.

import { assert, defined } from '../assert.ts';
import type { Tensor } from '../graph/tensor.ts';
import { wrap } from '../graph/tensor.ts';
import type { MicroBatchId } from '../runtime/device/pieces.ts';
import { withPasses } from '../runtime/device/rest-stage.ts';
import type { RoundTotals } from '../runtime/device/round-sums.ts';
import type { RestShare, RoundStage, StagePort, TangentPort } from '../runtime/device/stage.ts';
import type { StageOptions } from '../runtime/device/stage-graphs.ts';
import type { UpdateOptions } from '../runtime/device/stage-update.ts';
import { tangentCuts } from '../runtime/device/tangent-design.ts';
import { directionAt, estimateOf, layerRules, learningRate } from './exact-model.ts';
import { valuesOf } from './exact-rows.ts';
import { ExactTraining, sum } from './exact-training.ts';
import type { StageWorld } from './exact-world.ts';

/** What a round has come to on this device. */
interface RoundParts {
  lossSum: number;
  correctCount: number;
  /** By layer, once the derivatives are known. */
  estimates: readonly number[] | undefined;
}

/** A stage of exact layers whose passes carry tangents. */
export class ExactTangentStage extends ExactTraining implements StagePort {
  readonly tangents: TangentPort;
  readonly #seed: number;
  /** By round, until its update. */
  readonly #rounds = new Map<number, RoundParts>();
  /** By round: this device's part of smaller rounds. */
  readonly #rests = new Map<number, RestShare>();
  /** The version with which the stream began. */
  #first = 0;
  #round = -1;

  constructor(options: StageOptions, world: StageWorld) {
    const { forwardGradient, seed } = options.training;
    const { tangentCount } = defined(forwardGradient, 'what forward gradients need');
    super(options, world, (cuts) => [...cuts, ...tangentCuts(cuts, tangentCount)]);
    this.#seed = seed;
    this.tangents = {
      count: tangentCount,
      draw: () => {},
      estimate: (round, derivatives) => this.#estimate(round, derivatives),
    };
  }

  protected get roundAtWork(): number {
    return this.#round;
  }

  async rest(share: RestShare): Promise<RoundStage> {
    const forward: RoundStage['forward'] = (microBatch, ...given) => {
      this.#rests.set(microBatch.round, share);
      return this.forward(microBatch, ...given);
    };
    return { ...withPasses(this, this, () => this.takeGradients()), forward };
  }

  beginRound(): void {
    assert(false, 'rounds of forward gradients are those of a stream');
  }

  beginStream(first: number): void {
    this.forgetAll();
    this.#first = first;
    this.numbers.beginStream(first, 0, undefined);
  }

  protected forgetAll(): void {
    this.#rounds.clear();
    this.#rests.clear();
  }

  #partsOf(round: number): RoundParts {
    const parts = this.#rounds.get(round) ?? { lossSum: 0, correctCount: 0, estimates: undefined };
    this.#rounds.set(round, parts);
    return parts;
  }

  forward(
    microBatch: MicroBatchId,
    firstSample: number,
    inputs: readonly Tensor[],
    labels: Tensor | undefined,
  ): Promise<readonly Tensor[]> {
    const { round, index } = microBatch;
    this.#round = round;
    const samples = this.samplesOf(microBatch, firstSample, this.#rests.get(round));
    const isFed = this.layers[0] === 0;
    const received = inputs.map(({ data }, tensor) => {
      const what = tensor === 0 ? `micro-batch ${index}` : `tangent ${tensor - 1} of micro-batch ${index}`;
      this.checkRows(data as Float32Array, samples, what, round, isFed);
      return valuesOf(data as Float32Array, samples.length);
    });
    this.#checkRead(round);
    let [values, ...moving] = received as [number[], ...number[][]];
    // What comes from the data does not move.
    if (isFed) moving = Array.from({ length: this.tangents.count }, () => samples.map(() => 0));
    for (const layer of this.layers) {
      const [weight] = this.numbers.layer(layer).parameter;
      const before = values;
      moving = moving.map((own, tangent) => {
        const direction = this.#direction(layer, round, tangent);
        return own.map((value, at) => layerRules.tangent(value, { weight, direction, input: before[at] as number }));
      });
      values = values.map((value) => layerRules.forward(value, weight, layer));
    }
    const outputs = this.isLast
      ? [this.#derivatives(round, { values, moving, labels: this.labelsOf(labels, samples) })]
      : [values, ...moving].map((own) => this.rows(samples, own, round));
    return this.computedIn(1 + this.tangents.count).then(() => outputs);
  }

  /** The losses of samples, and the sum of their derivatives along each tangent. */
  #derivatives(
    round: number,
    given: {
      readonly values: readonly number[];
      readonly moving: readonly (readonly number[])[];
      readonly labels: readonly number[];
    },
  ): Tensor {
    const { values, moving, labels } = given;
    const parts = this.#partsOf(round);
    parts.lossSum += sum(values.map((value, at) => layerRules.loss(value, labels[at] as number)));
    parts.correctCount += values.length;
    const sums = moving.map((own) => sum(own.map((value, at) => layerRules.derivative(value, labels[at] as number))));
    return wrap('float32', [sums.length], Float32Array.from(sums));
  }

  #direction(layer: number, round: number, tangent: number): number {
    return this.numbers.isFrozen(layer) ? 0 : directionAt(this.#seed, { layer, round, tangent });
  }

  /**
   * A round reads what is live: no older than the stage's staleness says, and after a pause, when all rounds before are
   * applied, newer. Which it should have been, its loss tells.
   */
  #checkRead(round: number): void {
    const oldest = Math.max(this.#first, round - this.staleness);
    for (const layer of this.layers) {
      const [, version] = this.numbers.layer(layer).parameter;
      const isDue = this.numbers.isFrozen(layer) || (version >= oldest && version <= round);
      if (!isDue) this.violate(`layer ${layer} is read as of round ${version}, and ${oldest} is due`);
    }
  }

  #estimate(round: number, derivatives: readonly number[]): void {
    const drawn = this.world.drawsOtherDirections === true ? round + 1 : round;
    this.#partsOf(round).estimates = this.layers.map((layer) =>
      estimateOf(derivatives, (tangent) => this.#direction(layer, drawn, tangent)),
    );
  }

  backward(): never {
    assert(false, 'forward gradients have no backward pass');
  }

  backwardInput(): never {
    return this.backward();
  }

  backwardWeight(): never {
    return this.backward();
  }

  takeGradients(): never {
    assert(false, 'forward gradients are not reduced');
  }

  putGradients(): never {
    return this.takeGradients();
  }

  async finishRound(countNorm: boolean, round: number = this.#round): Promise<RoundTotals> {
    const { lossSum, correctCount, estimates = [] } = this.#partsOf(round);
    await this.computedIn(0);
    const squaredNorm = countNorm ? sum(estimates.map(layerRules.norm)) : 0;
    return { lossSum, correctCount, squaredNorm, finite: true };
  }

  update({ learningRate: rate, gradientScale, step }: UpdateOptions, round: number = this.#round): void {
    if (rate !== learningRate(round)) this.violate(`the update has the rate ${rate}`);
    if (step !== round + 1) this.violate(`the update calls itself step ${step}`);
    const { estimates } = this.#partsOf(round);
    if (estimates === undefined) this.violate(`round ${round} is to be applied, and no derivatives have come`);
    this.numbers.weights.advance();
    for (const [index, layer] of this.layers.entries()) {
      this.numbers.checkVersions(layer, ['parameter', 'optimizer', 'buffer'], round);
      const sums = { gradient: estimates?.[index] ?? 0, output: undefined };
      this.numbers.update(layer, sums, { learningRate: rate, gradientScale, step }, undefined);
    }
    this.#rounds.delete(round);
    this.#rests.delete(round);
    this.keepVersion(round + 1);
    void this.computedIn(0);
  }
}
