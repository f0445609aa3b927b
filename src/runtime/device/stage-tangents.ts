// The directions of a stage's parameters, or the noise of its activities: drawn in the engine when a round's passes
// need them, let go when they are queued, and drawn again for the update. They are functions of seed, parameter, round
// and tangent (noise.ts).

import { defined } from '../../assert.ts';
import type { Activity } from '../../autodiff/activity-perturbation.ts';
import { activityName, tangentName } from '../../autodiff/forward-mode.ts';
import type { Engine, Value } from '../../engine/engine.ts';
import { elementCount } from '../../graph/tensor.ts';
import type { Noise, NoisePart } from '../../noise.ts';
import type { TensorSpec } from '../protocol/model-message.ts';
import { type ForwardGradientSpec, tangentScaleOf } from '../protocol/training-spec.ts';
import { CarriedStates } from './carried-states.ts';
import type { CompiledStage } from './compiled-stages.ts';
import type { StageOptions } from './stage-graphs.ts';

type Values = Record<string, Value>;

/** A tangent, and the factor of the directions drawn for it. */
interface Weighted {
  readonly tangent: number;
  readonly factor: number;
}

export class StageTangents {
  readonly #engine: Engine;
  readonly #compiled: Pick<CompiledStage, 'trained' | 'packs'>;
  readonly #isOfActivities: boolean;
  readonly #seed: number;
  readonly #spec: ForwardGradientSpec;
  /** What passes hand to the next of their round. */
  readonly carried: CarriedStates;
  /** The directions that are there, and their round. */
  #drawn: { readonly round: number; readonly values: Values } | undefined;

  constructor(engine: Engine, options: StageOptions, compiled: Pick<CompiledStage, 'trained' | 'packs'>) {
    this.#engine = engine;
    this.#compiled = compiled;
    const { training } = options;
    this.#seed = training.seed;
    this.#spec = defined(training.forwardGradient, 'what forward gradients need');
    this.#isOfActivities = this.#spec.perturbs === 'activations';
    this.carried = new CarriedStates(engine, options, this.#spec.tangentCount);
  }

  get count(): number {
    return this.#spec.tangentCount;
  }

  /** Whether passes make estimates from the noise of activities, and not updates from directions of weights. */
  get isOfActivities(): boolean {
    return this.#isOfActivities;
  }

  /** The noise of activities, of samples from `firstSample` of a round's batch: the caller's. */
  noise(activities: readonly Activity[], round: number, firstSample: number): Values {
    const tangents = Array.from({ length: this.count }, (_, tangent) => tangent);
    return Object.fromEntries(
      activities.flatMap((activity) =>
        tangents.map((tangent) => {
          const noise = activityNoise(activity, { spec: this.#spec, seed: this.#seed, round, firstSample, tangent });
          return [
            tangentName(activityName(activity.value), tangent),
            this.#engine.draw(activity.shape, noise),
          ] as const;
        }),
      ),
    );
  }

  /** The directions of a round, by `tangentName` of what the graphs take. They stay this object's. */
  of(round: number): Readonly<Values> {
    if (this.#drawn?.round !== round) {
      this.#releaseDrawn();
      const tangents = Array.from({ length: this.count }, (_, tangent) => tangent);
      const values = tangents.flatMap((tangent) =>
        this.#compiled.trained.map(
          (spec) => [tangentName(spec.name, tangent), this.#draw(spec, round, [{ tangent, factor: 1 }])] as const,
        ),
      );
      this.#drawn = { round, values: Object.fromEntries(values) };
    }
    return this.#drawn.values;
  }

  /** Lets go of directions and states; those of passes that are queued stay until these have run. */
  release(): void {
    this.#releaseDrawn();
    this.carried.release();
  }

  #releaseDrawn(): void {
    for (const value of Object.values(this.#drawn?.values ?? {})) this.#engine.release(value);
    this.#drawn = undefined;
  }

  /** (1/N) Σ d_j u_j for each trained parameter: the caller's. */
  estimate(round: number, derivatives: readonly number[]): Values {
    const weighted = derivatives.map((derivative, tangent) => ({ tangent, factor: derivative / this.count }));
    return Object.fromEntries(
      this.#compiled.trained.map((spec) => [spec.name, this.#draw(spec, round, weighted)] as const),
    );
  }

  #draw({ name, shape }: TensorSpec, round: number, weighted: readonly Weighted[]): Value {
    const pack = this.#compiled.packs.find(({ role, pack }) => role === 'parameter' && pack.name === name)?.pack;
    const members = pack?.members ?? [{ name, offset: 0, count: elementCount(shape) }];
    const parts = members.flatMap(({ name: member, offset, count }): NoisePart[] => {
      const scale = tangentScaleOf(this.#spec, member, round);
      return scale === 0
        ? []
        : weighted.map(({ tangent, factor }) => ({ name: member, offset, count, tangent, scale: scale * factor }));
    });
    const noise: Noise = { kind: this.#spec.kind, seed: this.#seed, round, parts };
    return this.#engine.draw(shape, noise);
  }
}

/**
 * The noise of what a layer gives for samples from `firstSample` of the batch: that of its first trained parameter,
 * under `activityName`, sample by sample.
 */
export function activityNoise(
  { parameter, shape }: Activity,
  { spec, seed, round, firstSample, tangent }: ActivityNoise,
): Noise {
  const count = elementCount(shape);
  const scale = tangentScaleOf(spec, parameter, round);
  const first = firstSample * elementCount(shape.slice(1));
  const part = { name: activityName(parameter), offset: 0, count, scale, tangent, first };
  return { kind: spec.kind, seed, round, parts: scale === 0 ? [] : [part] };
}

interface ActivityNoise {
  readonly spec: ForwardGradientSpec;
  readonly seed: number;
  readonly round: number;
  readonly firstSample: number;
  readonly tangent: number;
}
