// The passes of a stage that trains by forward gradients: each micro-batch is computed once, forward, with its
// tangents. Nothing of it stays behind but what the stage sends, and the loss.

import { assert, defined } from '../../assert.ts';
import type { Activity } from '../../autodiff/activity-perturbation.ts';
import { tangentName } from '../../autodiff/forward-mode.ts';
import type { Value } from '../../engine/engine.ts';
import { allocate, elementCount, scalar, type Tensor, wrap } from '../../graph/tensor.ts';
import { dropoutMasks, type PassParts, runGraph } from './engine-passes.ts';
import type { MicroBatchId } from './pieces.ts';
import type { StagePasses } from './stage.ts';
import { stepNames } from './stage-graphs.ts';
import type { StageTangents } from './stage-tangents.ts';

type Values = Record<string, Value>;

export class TangentPasses implements StagePasses {
  readonly #parts: PassParts;
  readonly #tangents: StageTangents;

  constructor(parts: PassParts, tangents: StageTangents) {
    this.#parts = parts;
    this.#tangents = tangents;
  }

  forward(
    microBatch: MicroBatchId,
    firstSample: number,
    inputs: readonly Tensor[],
    labels: Tensor | undefined,
  ): Promise<readonly Tensor[]> {
    const { engine, compiled, cuts, weights, state, rounds, sums } = this.#parts;
    const { round } = microBatch;
    const pass = defined(compiled.pass, 'a pass (this device has no samples)');
    const feeds: Values = {};
    cuts.inputs.forEach((cut, index) => {
      feeds[cut.name] = engine.upload(defined(inputs[index], cut.name));
    });
    Object.assign(feeds, dropoutMasks(this.#parts, pass, microBatch, firstSample));
    if (labels !== undefined) feeds[stepNames.labels] = engine.upload(labels);
    const graph = defined(compiled.graphs.tangent, 'the pass with tangents');
    const { parameters } = weights.live();
    const { carried } = this.#tangents;
    const { activities } = pass;
    if (activities !== undefined) Object.assign(feeds, this.#noise(activities, microBatch, firstSample));
    const states = carried.of(microBatch.index === 0);
    const directions = activities === undefined ? this.#tangents.of(round) : {};
    const sources = [feeds, states, directions, parameters, state.buffers()];
    const results =
      activities === undefined
        ? runGraph(graph, sources)
        : sums
            .of(round)
            .add({ gradients: pass.gradients }, (own, replaced) => runGraph(graph, [...sources, own], replaced));
    for (const value of Object.values(feeds)) engine.release(value);
    carried.keep(results);
    for (const { buffer, output } of pass.bufferUpdates) state.set('buffer', buffer, defined(results[output], output));
    if (!cuts.isLast) return Promise.all(cuts.outputs.map((cut) => this.#output(cut.name, results)));
    rounds.of(round).addLoss(results[stepNames.loss], results[stepNames.correct]);
    return this.#derivatives(results);
  }

  /** The noise of a micro-batch's activities, and what gradients of its loss are scaled by. */
  #noise(activities: readonly Activity[], { round, index }: MicroBatchId, firstSample: number): Values {
    const { engine, options } = this.#parts;
    const place = index * options.microBatchSize + firstSample;
    const scale = engine.upload(scalar('float32', 1 / options.training.batchSize));
    return { ...this.#tangents.noise(activities, round, place), [stepNames.scale]: scale };
  }

  /** An output or a tangent; zeros for a tangent that nothing moves. */
  #output(name: string, results: Readonly<Values>): Promise<Tensor> {
    const { engine, cuts, options } = this.#parts;
    const value = results[name];
    if (value !== undefined) return this.#tangents.carried.has(name) ? engine.download(value) : engine.take(value);
    const { type, shape } = defined(
      cuts.outputs.find((cut) => cut.name === name),
      name,
    );
    const sizes = shape.map((size) => (size === 'N' ? options.sampleCount : size));
    return Promise.resolve({ type, shape: sizes, data: allocate(type, elementCount(sizes)) });
  }

  /** The derivative of the loss's sum along each tangent; 0 where nothing moves it. */
  async #derivatives(results: Readonly<Values>): Promise<readonly Tensor[]> {
    const { engine } = this.#parts;
    const values = Array.from({ length: this.#tangents.count }, async (_, index) => {
      const value = results[tangentName(stepNames.loss, index)];
      return value === undefined ? 0 : Number((await engine.take(value)).data[0]);
    });
    return [wrap('float32', [values.length], Float32Array.from(await Promise.all(values)))];
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
}
