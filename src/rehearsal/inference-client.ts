// Who asks in a run that only infers: some requests at a time, after pauses of any length. It knows what each must be
// answered with, and sees to it that each is answered once, in the order in which they were asked.

import { RunError } from '../errors.ts';
import type { Tensor } from '../graph/tensor.ts';
import { createRandom, type Random } from '../random.ts';
import type { MachineConfig } from '../runtime/coordinator/machine-types.ts';
import type { CoordinatorEnd, CoordinatorOptions, WeightSource } from '../runtime/coordinator/options.ts';
import type { RunSubject } from '../runtime/protocol/run-subject.ts';
import { windowOf } from '../runtime/run/infer.ts';
import { InferenceRounds } from '../runtime/run/inference-rounds.ts';
import { batchOf, initialRunState, label, layerRules, rowLength, sampleAt, stateNames } from './exact-model.ts';
import type { VirtualProcess } from './virtual-process.ts';
import type { World } from './world.ts';

/** The longest pause between an answer and the next request. */
const longestPauseMs = 200;

/** Asks for all rounds of a scenario. */
export class InferenceClient {
  readonly #world: World;
  readonly #process: VirtualProcess;
  readonly #rounds = new InferenceRounds();
  readonly #random: Random;
  readonly #weights: readonly number[];
  readonly #onAnswer: (round: number) => void;
  /** Requests so far, and answers. */
  #askedCount = 0;
  #answeredCount = 0;
  /** Rounds whose results have come. */
  #resultCount = 0;

  /** `onAnswer`: the request of a round was answered. */
  constructor(world: World, process: VirtualProcess, onAnswer: (round: number) => void) {
    const { seed, layerCount } = world.scenario;
    this.#world = world;
    this.#process = process;
    this.#random = createRandom(seed, 5);
    this.#onAnswer = onAnswer;
    const { parameter } = initialRunState(seed, layerCount);
    this.#weights = Array.from({ length: layerCount }, (_, layer) =>
      Number(parameter.get(stateNames(layer).parameter)?.data[0]),
    );
  }

  /** What the coordinator gets in place of what it gets where it trains. */
  get options(): Pick<CoordinatorOptions, 'onReady' | 'weights'> {
    const { seed, layerCount } = this.#world.scenario;
    return {
      weights: exactWeights(seed, layerCount),
      onReady: (offer) => {
        this.#rounds.begin(offer);
        const atOnce = 1 + this.#random.integer(this.#window + 1);
        for (let index = 0; index < atOnce; index++) this.#ask();
      },
    };
  }

  get hooks(): Pick<CoordinatorOptions['hooks'], 'batch' | 'onResults'> {
    return {
      batch: (round) => this.#rounds.batch(round),
      onResults: (round, outputs) => {
        for (const given of this.#world.bug?.results?.(round, outputs) ?? [[round, outputs] as const])
          this.#results(...given);
      },
    };
  }

  #results(round: number, outputs: readonly Tensor[]): void {
    if (round !== this.#resultCount)
      this.#world.witness.violate(`the outputs of round ${round} come after those of ${this.#resultCount} rounds`);
    this.#resultCount++;
    this.#rounds.results(round, outputs);
  }

  get machine(): Partial<MachineConfig> {
    return {
      endRound: Number.MAX_SAFE_INTEGER,
      checkpointEvery: Number.MAX_SAFE_INTEGER,
      isStateConstant: true,
      awaitsOffers: true,
      replicateEvery: 0,
      window: this.#window,
      batchAt: (round) => this.#rounds.batchAt(round),
    };
  }

  get #window(): number {
    return windowOf(this.#world.scenario.devices.length);
  }

  /** Nobody has asked for anything that is not answered. */
  get isContent(): boolean {
    return this.#answeredCount === this.#askedCount;
  }

  /** The run has ended, after all rounds where it neither failed nor was stopped. */
  ended(end: CoordinatorEnd | Error): void {
    const { scenario, witness } = this.#world;
    if (end instanceof Error || end.stopped) this.#rounds.fail(new RunError('the run has ended'));
    else if (this.#answeredCount !== scenario.endRound)
      witness.violate(`the run ended with ${this.#answeredCount} of ${scenario.endRound} requests answered`);
  }

  #ask(): void {
    const { seed, endRound } = this.#world.scenario;
    if (this.#askedCount === endRound) return;
    const round = this.#askedCount++;
    this.#rounds.submit(batchOf(seed, round, this.#world.samplesIn(round)).inputs).then(
      ([output]) => this.#answered(round, output),
      () => {}, // the run has failed, and says so
    );
    if (this.#askedCount === endRound) this.#rounds.end();
  }

  #answered(round: number, output: Tensor | undefined): void {
    const { witness } = this.#world;
    if (round !== this.#answeredCount)
      witness.violate(`request ${round} was answered after ${this.#answeredCount} others`);
    this.#answeredCount++;
    this.#onAnswer(round);
    const wrong = this.#wrong(round, (output?.data ?? new Float32Array(0)) as Float32Array);
    if (wrong !== undefined) witness.violate(`the answer to request ${round} is wrong: ${wrong}`);
    // takes: a pause is nothing that the coordinator must end before it may end itself.
    if (this.#random.uniform() < 0.7) this.#ask();
    else this.#process.takes(longestPauseMs * this.#random.uniform(), () => this.#ask());
  }

  #wrong(round: number, rows: Float32Array): string | undefined {
    const { seed } = this.#world.scenario;
    const count = this.#world.samplesIn(round);
    if (rows.length !== count * rowLength) return `${rows.length / rowLength} samples instead of ${count}`;
    for (let place = 0; place < count; place++) {
      const { id, value } = sampleAt(seed, round, place);
      const wanted = this.#weights.reduce((input, weight, layer) => layerRules.forward(input, weight, layer), value);
      const [found, sample, of] = rows.subarray(place * rowLength);
      if (found !== wanted || sample !== id || of !== round)
        return `${found} for sample ${sample} of round ${of}, not ${wanted} for sample ${id}`;
    }
    return undefined;
  }
}

/** The run's subject, but for its sequence: it knows no weights. */
export const inferenceSubject: Pick<RunSubject, 'label' | 'state'> = {
  label,
  state: { parameter: new Map(), buffer: new Map(), optimizer: new Map() },
};

/** The weights of the exact model, as a file would give them. */
function exactWeights(seed: number, layerCount: number): WeightSource {
  const { parameter, buffer } = initialRunState(seed, layerCount);
  return {
    count: ([first, end]) => 2 * (end - first),
    *entries([first, end]) {
      for (let layer = first; layer < end; layer++) {
        const names = stateNames(layer);
        for (const [role, values] of [
          ['parameter', parameter],
          ['buffer', buffer],
        ] as const) {
          const value = values.get(names[role]);
          if (value !== undefined) yield { role, name: names[role], value: { ...value, data: value.data.slice() } };
        }
      }
    },
  };
}
