// Forward gradients in the oracle of streams (delayed-training.ts): a micro-batch of the whole model with its tangents
// as one graph, and the estimate that comes of it. Directions are drawn parameter by parameter, without packs.

import { defined } from '../../assert.ts';
import type { Activity } from '../../autodiff/activity-perturbation.ts';
import { activityName, tangentName } from '../../autodiff/forward-mode.ts';
import type { Engine, Value } from '../../engine/engine.ts';
import { loweringOf } from '../../engine/lowering.ts';
import { extractStage } from '../../graph/stage.ts';
import { elementCount, type Tensor, wrap } from '../../graph/tensor.ts';
import { writeNoise } from '../../noise.ts';
import type { Parameter } from '../../training/names.ts';
import { dropoutsOf } from '../device/pass-design.ts';
import { stepNames } from '../device/stage-graphs.ts';
import { activityNoise } from '../device/stage-tangents.ts';
import { activityPass, directionalGraph, withLoss } from '../device/tangent-design.ts';
import type { RunSubject } from '../protocol/run-subject.ts';
import { type TrainingSpec, tangentScaleOf } from '../protocol/training-spec.ts';
import type { Step } from './delayed-step.ts';

type Values = Record<string, Value>;

/** The whole model's pass with tangents for a micro-batch of `sampleCount` samples. */
export async function tangentStepOf(engine: Engine, subject: RunSubject, sampleCount: number): Promise<Step> {
  const { sequence, training, label } = subject;
  const layers = [0, sequence.layers.length] as const;
  const frozen = new Set(training.frozen);
  if (training.forwardGradient?.perturbs === 'activations') return activityStepOf(engine, subject, sampleCount);
  const whole = extractStage(sequence, ...layers, sampleCount);
  const stage = withLoss(whole, { training, label, sampleCount });
  const parameters = stage.graph.parameters.filter((name) => !frozen.has(name));
  const inputs = whole.states.map(({ input }) => input);
  const outputs = [stepNames.loss, ...whole.states.map(({ output }) => output)];
  const options = { inputs, parameters, outputs, ...loweringOf(engine) };
  const { graph, bufferUpdates, ...rest } = directionalGraph(stage, training, options);
  return {
    executable: await engine.compile(graph),
    graphs: { bufferUpdates, parameterGradients: [] },
    dropouts: dropoutsOf(rest, { sequence, layers, sampleCount }),
  };
}

/** The same where activities move: its gradients are those of a backward pass in form. */
async function activityStepOf(engine: Engine, subject: RunSubject, sampleCount: number): Promise<Step> {
  const { sequence, training, label } = subject;
  const layers = [0, sequence.layers.length] as const;
  const frozen = new Set(training.frozen);
  const stage = extractStage(sequence, ...layers, sampleCount);
  const parameters = stage.graph.parameters.filter((name) => !frozen.has(name));
  const given = { parameters, ...loweringOf(engine) };
  const { graph, parts } = activityPass(stage, { training, label, sampleCount }, given);
  const { bufferUpdates, ...rest } = parts.tangents;
  return {
    executable: await engine.compile(graph),
    graphs: { bufferUpdates, parameterGradients: parameters },
    dropouts: dropoutsOf(rest, { sequence, layers, sampleCount }),
    activities: parts.activities,
  };
}

/** The noise of a micro-batch's activities, by input of its graph. */
export function activityFeeds(
  training: TrainingSpec,
  activities: readonly Activity[],
  { round, firstSample }: { readonly round: number; readonly firstSample: number },
): readonly (readonly [name: string, value: Tensor])[] {
  const spec = defined(training.forwardGradient, 'what forward gradients need');
  return activities.flatMap((activity) =>
    Array.from({ length: spec.tangentCount }, (_, tangent) => {
      const into = new Float32Array(elementCount(activity.shape));
      writeNoise(into, activityNoise(activity, { spec, seed: training.seed, round, firstSample, tangent }));
      return [tangentName(activityName(activity.value), tangent), wrap('float32', activity.shape, into)] as const;
    }),
  );
}

/** The directions of a round. */
export class Directions {
  /** By tangent, in the order of the parameters. */
  readonly #values: readonly (readonly Float32Array[])[];
  readonly #trained: readonly Parameter[];
  readonly #batchSize: number;

  constructor(training: TrainingSpec, trained: readonly Parameter[], round: number) {
    const spec = defined(training.forwardGradient, 'what forward gradients need');
    this.#trained = trained;
    this.#batchSize = training.batchSize;
    this.#values = Array.from({ length: spec.tangentCount }, (_, tangent) =>
      trained.map(({ name, shape }) => {
        const count = elementCount(shape);
        const into = new Float32Array(count);
        const scale = tangentScaleOf(spec, name, round);
        const parts = scale === 0 ? [] : [{ name, offset: 0, count, scale, tangent }];
        writeNoise(into, { kind: spec.kind, seed: training.seed, round, parts });
        return into;
      }),
    );
  }

  /** As the graph takes them. */
  feeds(): readonly (readonly [name: string, value: Tensor])[] {
    return this.#values.flatMap((own, tangent) =>
      this.#trained.map(
        ({ name, shape }, index) =>
          [tangentName(name, tangent), wrap('float32', shape, defined(own[index], name).slice())] as const,
      ),
    );
  }

  /** (1/N) Σ d_j u_j / batch, d_j being the derivatives of the sum of a micro-batch's losses. */
  async gradients(engine: Engine, results: Readonly<Values>): Promise<Values> {
    const derivatives = await Promise.all(
      this.#values.map(async (_, tangent) => {
        const value = results[tangentName(stepNames.loss, tangent)];
        return value === undefined ? 0 : Number((await engine.take(value)).data[0]);
      }),
    );
    const factor = 1 / (this.#values.length * this.#batchSize);
    return Object.fromEntries(
      this.#trained.map(({ name, shape }, index) => {
        const sum = new Float32Array(elementCount(shape));
        for (const [tangent, own] of this.#values.entries()) {
          const derivative = (derivatives[tangent] as number) * factor;
          const direction = defined(own[index], name);
          for (let at = 0; at < sum.length; at++)
            sum[at] = (sum[at] as number) + derivative * (direction[at] as number);
        }
        return [name, engine.upload(wrap('float32', shape, sum))];
      }),
    );
  }
}
