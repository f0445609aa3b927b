// Tests a trained model on data it was not trained on: in inference mode, on the engine.

import { defined } from '../../assert.ts';
import type { DeviceChoice, Engine, Executable } from '../../engine/engine.ts';
import type { Graph } from '../../graph/graph.ts';
import { type LayerSequence, layers } from '../../graph/layers.ts';
import { inferenceMode } from '../../graph/onnx/modes.ts';
import { elementCount, scalar, type Tensor } from '../../graph/tensor.ts';
import { batchOf } from '../../training/data/batch.ts';
import { countedLabels, type Dataset, gatherField } from '../../training/data/dataset.ts';
import { stepsOf } from '../../training/data/order.ts';
import { asSteps } from '../../training/data/sequences.ts';
import { countsCorrect, type LossKind } from '../../training/losses.ts';
import { type ScoreSheet, scoreSheet, type TestDetails } from '../../training/scores.ts';
import { CarriedStates } from '../device/carried-states.ts';
import { design } from '../device/designers.ts';
import { ownCopy, sliceSamples } from '../device/samples.ts';
import { type BindTask, bindToModel, labelCut, sizedByData } from './subject.ts';
import { outputOf } from './trained-output.ts';

/** How a model is to be tested on a data set. */
export interface EvaluateOptions extends BindTask {
  /** The output that the loss takes. Default: the first. */
  readonly output?: string;
  readonly engine: 'onnxruntime' | 'reference';
  readonly threads: number;
  /** The engine is a far slower one than this device could have. */
  onWarning?(message: string): void;
}

/** What a test found. */
export interface Evaluation {
  /** Fraction of right predictions, of labels that count; null if the loss knows none. */
  readonly accuracy: number | null;
  /** Mean over the samples; over the labels that count, where some do not. */
  readonly loss: number;
  readonly sampleCount: number;
  /** Of next tokens: e to the mean loss of a token. Absent for other data. */
  readonly perplexity?: number;
  /** By class and by sample; absent where a sample has more outputs than anyone would read. */
  readonly details?: TestDetails;
}

/** Samples of one run. */
const batchSize = 100;

/** Makes an engine in this process, with this many compute threads. */
export type EngineFactory = (options: {
  readonly engine: EvaluateOptions['engine'];
  /** Default 'cpu'. */
  readonly device?: DeviceChoice;
  readonly threadCount: number;
}) => Promise<Engine>;

/** The engine of a run in this process. */
export function engineOf({
  engine,
  device,
  threads,
}: {
  readonly engine: EvaluateOptions['engine'];
  readonly device: DeviceChoice;
  readonly threads: number;
}): Parameters<EngineFactory>[0] {
  return { engine, device, threadCount: threads };
}

/**
 * Runs a model in inference mode over a data set. Every sample counts once, in the last, smaller batch too. Throws
 * InputError if they do not fit.
 */
export async function evaluateOn(
  createEngine: EngineFactory,
  model: Graph,
  dataset: Dataset,
  options: EvaluateOptions,
): Promise<Evaluation> {
  const graph = sizedByData(inferenceMode(model), dataset);
  const sequence = layers(outputOf(graph, options.loss, options.output).graph);
  const isWhole = sequence.graph.states !== undefined && dataset.sequenceLength === undefined;
  const data = bindToModel(isWhole ? asSteps(dataset) : dataset, sequence, options);
  const engine = await createEngine({ engine: options.engine, threadCount: options.threads });
  if (engine.warning !== undefined) options.onWarning?.(engine.warning);
  try {
    return await run(engine, sequence, data, options.loss);
  } finally {
    await engine.close();
  }
}

async function run(engine: Engine, sequence: LayerSequence, data: Dataset, loss: LossKind): Promise<Evaluation> {
  let [lossSum, correctCount, weight] = [0, 0, 0];
  let compiled: Compiled | undefined;
  // Steps of sequences are in another order than the data.
  const sheet = data.sequenceLength === undefined ? sheetOf(sequence, data, loss) : undefined;
  let states: CarriedStates | undefined;
  for (const { indices, isFirst } of testBatches(sequence, data)) {
    const count = indices.length;
    if (compiled?.count !== count) {
      compiled?.release();
      compiled = await compile(engine, sequence, data, loss, count);
    }
    const labels = gatherField(data, data.labels, indices);
    weight += data.labels.ignored === undefined ? count : countedLabels(labels) / elementCount(labels.shape.slice(1));
    if (isFirst) {
      states?.release();
      states = new CarriedStates(engine, { sequence, layers: [0, sequence.layers.length], sampleCount: count }, 0);
    }
    const carried = defined(states, 'states');
    const [batchLoss, batchCorrect] = await runBatch(engine, compiled, data, {
      indices,
      labels,
      sheet,
      states: carried,
    });
    lossSum += batchLoss;
    correctCount += batchCorrect;
  }
  states?.release();
  return {
    accuracy: countsCorrect(loss) ? correctCount / weight : null,
    loss: lossSum / weight,
    sampleCount: data.sampleCount,
    ...(isLanguage(data) ? { perplexity: Math.exp(lossSum / weight) } : {}),
    ...(sheet === undefined ? {} : { details: sheet.details() }),
  };
}

/** Samples that run together, and whether they begin anew: not a later step of the sequences before. */
interface TestBatch {
  readonly indices: Uint32Array;
  readonly isFirst: boolean;
}

function* testBatches({ fixedBatch }: LayerSequence, data: Dataset): Generator<TestBatch> {
  const { sampleCount, sequenceLength: length = 1 } = data;
  const sequenceCount = sampleCount / length;
  const size = fixedBatch ?? Math.min(batchSize, sequenceCount);
  for (let first = 0; first < sequenceCount; first += size) {
    const count = Math.min(size, sequenceCount - first);
    const steps = stepsOf(
      Uint32Array.from({ length: count }, (_, index) => first + index),
      length,
    );
    for (let step = 0; step < length; step++)
      yield { indices: steps.subarray(step * count, (step + 1) * count), isFirst: step === 0 };
  }
}

function sheetOf({ layers: all }: LayerSequence, data: Dataset, loss: LossKind): ScoreSheet | undefined {
  const output = defined(all.at(-1)?.outputs[0], 'the output');
  // numbers of half precision are stored as bits
  if (output.type === 'float16') return undefined;
  const shape = output.shape.map((size) => (typeof size === 'number' ? size : 1));
  return scoreSheet(loss, shape, data.labels.values.shape);
}

function isLanguage({ preparation }: Dataset): boolean {
  return preparation?.kind === 'text' && preparation.form.task === 'language';
}

interface Compiled {
  /** Samples that count. */
  readonly count: number;
  /** Samples that the model runs with: more if it was exported for one batch size. */
  readonly forwardCount: number;
  readonly forward: Executable;
  readonly loss: Executable;
  release(): void;
}

async function compile(
  engine: Engine,
  sequence: LayerSequence,
  data: Dataset,
  loss: LossKind,
  count: number,
): Promise<Compiled> {
  const forwardCount = sequence.fixedBatch ?? count;
  const { graphs } = design(engine, {
    kind: 'infer',
    sequence,
    layers: [0, sequence.layers.length],
    sampleCount: forwardCount,
    test: { loss, label: labelCut(data), ignoresNegative: data.labels.ignored !== undefined, sampleCount: count },
  });
  const forward = await engine.compile(defined(graphs.forward, 'the forward pass'));
  const lossOf = await engine.compile(defined(graphs.loss, 'the loss'));
  const release = (): void => {
    forward.release();
    lossOf.release();
  };
  return { count, forwardCount, forward, loss: lossOf, release };
}

interface BatchParts {
  readonly indices: Uint32Array;
  readonly labels: Tensor;
  readonly sheet: ScoreSheet | undefined;
  readonly states: CarriedStates;
}

async function runBatch(
  engine: Engine,
  { count, forwardCount, forward, loss }: Compiled,
  data: Dataset,
  { indices, labels, sheet, states }: BatchParts,
): Promise<readonly [number, number]> {
  // The last sample fills up a batch of fixed size.
  const { inputs } = await batchOf(
    data,
    Uint32Array.from({ length: forwardCount }, (_, index) => defined(indices[Math.min(index, count - 1)], 'a sample')),
  );
  const feeds = Object.fromEntries(
    data.inputs.map((field, index) => [field.name, engine.upload(defined(inputs[index], field.name))]),
  );
  const outputs = forward.run({ ...feeds, ...states.of() });
  const name = defined(forward.outputs[0], 'the output');
  let logits = defined(outputs[name], 'the output');
  if (states.has(name)) logits = engine.upload(await engine.download(logits));
  states.keep(outputs);
  if (forwardCount > count || sheet !== undefined) {
    const taken = ownCopy(sliceSamples(await engine.take(logits), 0, 0, count));
    sheet?.add(defined(indices[0], 'a sample'), taken, labels, data.labels.ignored !== undefined);
    logits = engine.upload(taken);
  }
  const lossFeeds = { logits, labels: engine.upload(labels), scale: engine.upload(scalar('float32', 1)) };
  const results = loss.run(
    lossFeeds,
    ['loss', 'correct'].filter((name) => loss.outputs.includes(name)),
  );
  for (const value of [...Object.values(feeds), ...Object.values(lossFeeds)]) engine.release(value);
  const sum = Number((await engine.take(defined(results['loss'], 'the loss'))).data[0]);
  const correct = results['correct'] === undefined ? 0 : Number((await engine.take(results['correct'])).data[0]);
  return [sum, correct];
}
