// The profile of a run that only infers: the model in a few parts, each compiled and timed as a stage that infers is,
// with weights as constants, from inputs in memory to outputs in memory. Parts that compute the same take the same. A
// part's time is shared out among its layers by what these take alone, since plans cut inside parts; of a model without
// repeated blocks, whose layers are too many to compile each, by their operations. What the main
// thread does for a pass, and the engine's call, are a stage's own, however many layers it has. Weights need not be
// there: zeros take as long.

import { defined } from '../../../assert.ts';
import type { DeviceTimes } from '../../../cluster/cluster.ts';
import { passOverhead } from '../../../cluster/overhead.ts';
import type { Engine, Executable } from '../../../engine/engine.ts';
import { GraphBuilder } from '../../../graph/builder.ts';
import type { Graph } from '../../../graph/graph.ts';
import { type CutTensor, cutBefore, cutBytes, type LayerSequence, parameterBytes } from '../../../graph/layers.ts';
import { allocate, elementCount, type Tensor } from '../../../graph/tensor.ts';
import { mean, median } from '../../../statistics.ts';
import { designInference } from '../inference-design.ts';
import { withSessionBytes } from '../memory-need.ts';
import { layersMs } from './calibration.ts';
import type { MeasuredProfile, ProfileOptions } from './measurement.ts';
import { at, partStarts, type Range, rangesOf, sum } from './parts.ts';
import { timedWork, type Work } from './stage-trial.ts';

type Options = Pick<ProfileOptions, 'batchSizes' | 'processWork' | 'onProgress'>;

/** Timed runs: as many as take `ms`, within these limits. */
interface Runs {
  readonly ms: number;
  readonly least: number;
  readonly most: number;
  /** The shortest counts, for what disturbs short runs makes them longer. Default: the median. */
  readonly isShortest?: boolean;
}

const partRuns: Runs = { ms: 60, least: 3, most: 12 };
/** Of a layer alone, of which only its share in a part counts. */
const layerRuns: Runs = { ms: 10, least: 2, most: 5 };
const emptyRuns: Runs = { ms: 5, least: 5, most: 30, isShortest: true };

/** Layers of more kinds are not compiled alone: DeiT has twelve, EfficientNet-B1 72. */
const mostKinds = 16;
/** Of a part's time, what its layers then have by their operations; the rest they have by being one. */
const flopsWeight = 0.9;

/** Times each layer's forward pass at each batch size, and what a pass takes besides. */
export async function profileInference(
  engine: Engine,
  sequence: LayerSequence,
  options: Options,
): Promise<MeasuredProfile> {
  const { layers } = sequence;
  const profiles = layers.map((layer) => ({
    name: layer.name,
    outputBytes: cutBytes(layer.outputs),
    weightBytes: parameterBytes(sequence, layer),
    savedBytes: 0,
    flops: layer.flops,
    batchDependent: layer.batchDependent || sequence.fixedBatch !== undefined,
  }));
  return {
    layers: profiles.map(withSessionBytes),
    times: await new Trials(engine, sequence, options).times(),
    cached: false,
  };
}

/** The trials of one model. */
class Trials {
  readonly #engine: Engine;
  readonly #sequence: LayerSequence;
  readonly #options: Options;
  /** Of each layer; layers of a kind compute the same. */
  readonly #kinds: readonly string[];
  readonly #parts: readonly Range[];
  #doneCount = 0;

  constructor(engine: Engine, sequence: LayerSequence, options: Options) {
    const { layers } = sequence;
    this.#engine = engine;
    this.#sequence = sequence;
    this.#options = options;
    this.#kinds = layers.map(({ signature }) => signature);
    const borders = layers.map((_, layer) => cutBytes(layers[layer - 1]?.outputs ?? []));
    this.#parts = rangesOf(partStarts(this.#flops(), borders), layers.length);
  }

  async times(): Promise<DeviceTimes> {
    const { batchSizes } = this.#options;
    const emptyMs = (await this.#timeCall()).computeMs;
    const shares = await this.#layerShares(defined(batchSizes.at(-1), 'a batch size'), emptyMs);
    const forwardMs: number[][] = [];
    const mainsMs: number[] = [];
    for (const batchSize of batchSizes) {
      const works: Work[] = [];
      for (const part of this.#parts) works.push(await this.#timeStage(part, batchSize, partRuns));
      for (const { mainMs } of works) if (mainMs !== undefined) mainsMs.push(mainMs);
      const partMs = this.#pooled(works.map(({ computeMs }) => layersMs(computeMs, emptyMs)));
      forwardMs.push(this.#parts.flatMap((part, index) => shares.slice(...part).map((one) => one * at(partMs, index))));
    }
    return {
      forwardMs,
      backwardMs: forwardMs.map((row) => row.map(() => 0)),
      ...passOverhead(emptyMs, mainsMs.length === 0 ? undefined : median(mainsMs)),
    };
  }

  /** Parts of the same layers have the mean of their times. */
  #pooled(partMs: readonly number[]): readonly number[] {
    const alike = new Map<string, number[]>();
    const keys = this.#parts.map((part) => JSON.stringify(this.#kinds.slice(...part)));
    for (const [index, key] of keys.entries()) alike.set(key, [...(alike.get(key) ?? []), at(partMs, index)]);
    return keys.map((key) => mean(defined(alike.get(key), 'a time')));
  }

  /** What each layer takes of its part's time. */
  async #layerShares(batchSize: number, emptyMs: number): Promise<readonly number[]> {
    const sizes = this.#isRepeated ? await this.#timeAlone(batchSize, emptyMs) : this.#flops();
    const flat = this.#isRepeated ? 0 : 1 - flopsWeight;
    return this.#parts.flatMap((part) => {
      const own = sizes.slice(...part);
      const total = sum(own);
      return own.map((size) => (total === 0 ? 1 / own.length : ((1 - flat) * size) / total + flat / own.length));
    });
  }

  get #isRepeated(): boolean {
    return new Set(this.#kinds).size <= mostKinds;
  }

  #flops(): readonly number[] {
    return this.#sequence.layers.map(({ flops }) => flops);
  }

  /** What layers take alone. Those that compute the same are measured once. */
  async #timeAlone(batchSize: number, emptyMs: number): Promise<readonly number[]> {
    const known = new Map<string, number>();
    for (const [layer, kind] of this.#kinds.entries()) {
      if (known.has(kind)) continue;
      const { computeMs } = await this.#timeStage([layer, layer + 1], batchSize, layerRuns, onlyMade);
      known.set(kind, layersMs(computeMs, emptyMs));
    }
    return this.#kinds.map((kind) => defined(known.get(kind), 'a time'));
  }

  /** A pass of a graph that computes next to nothing. */
  async #timeCall(): Promise<Work> {
    const builder = new GraphBuilder('empty', { seed: 1 });
    const graph = builder.build([builder.relu(builder.input('x', 'float32', [1]))]);
    return this.#time(graph, [{ name: 'x', type: 'float32', shape: [1], batchAxis: 0, differentiable: false }], {
      sampleCount: 1,
      runs: emptyRuns,
    });
  }

  /** A pass of layers [first, end) with `sampleCount` samples. */
  async #timeStage(
    layers: Range,
    sampleCount: number,
    runs: Runs,
    change = (graph: Graph): Graph => graph,
  ): Promise<Work> {
    const sequence = this.#sequence;
    const { graphs } = designInference({ sequence, layers, sampleCount, keepsMemory: true });
    const forward = defined(graphs.forward, 'the forward pass');
    const work = await this.#time(change(forward), cutBefore(sequence, layers[0]), { sampleCount, runs });
    const aloneCount = this.#isRepeated ? new Set(this.#kinds).size : 0;
    const total = this.#parts.length * this.#options.batchSizes.length + aloneCount;
    this.#options.onProgress(++this.#doneCount, total);
    return work;
  }

  async #time(
    graph: Graph,
    inputs: readonly CutTensor[],
    {
      sampleCount,
      runs: { ms, least, most, isShortest = false },
    }: { readonly sampleCount: number; readonly runs: Runs },
  ): Promise<Work> {
    const engine = this.#engine;
    const executable = await engine.compile(graph);
    const run = (): Promise<Work> => {
      const given = inputs.map((input) => zeros(input, sampleCount));
      return timedWork(engine, this.#options.processWork, () => pass(engine, executable, given));
    };
    await run(); // it allocates
    const works: Work[] = [];
    for (let passedMs = 0; works.length < least || (passedMs < ms && works.length < most); ) {
      const work = await run();
      works.push(work);
      passedMs += work.computeMs;
    }
    executable.release();
    engine.trim();
    const mains = works.map(({ mainMs }) => mainMs).filter((main) => main !== undefined);
    const computesMs = works.map(({ computeMs }) => computeMs);
    return {
      computeMs: isShortest ? Math.min(...computesMs) : median(computesMs),
      mainMs: mains.length < works.length ? undefined : median(mains),
    };
  }
}

/** Without the outputs that are inputs: what only passes by a layer is copied at a stage's ends, not in its midst. */
function onlyMade(graph: Graph): Graph {
  const given = new Set(graph.inputs.map(({ name }) => name));
  return { ...graph, outputs: graph.outputs.filter(({ name }) => !given.has(name)) };
}

/** One pass, as a stage that infers runs it: see InferenceStage. */
async function pass(
  engine: Engine,
  executable: Executable,
  inputs: readonly (readonly [name: string, value: Tensor])[],
): Promise<void> {
  const feeds = Object.fromEntries(inputs.map(([name, value]) => [name, engine.upload(value)]));
  const results = executable.run(feeds);
  for (const value of Object.values(feeds)) engine.release(value);
  await Promise.all(Object.values(results).map((value) => engine.take(value)));
}

function zeros({ name, type, shape }: CutTensor, sampleCount: number): readonly [name: string, value: Tensor] {
  const sizes = shape.map((size) => (size === 'N' ? sampleCount : size));
  return [name, { type, shape: sizes, data: allocate(type, elementCount(sizes)) }];
}
