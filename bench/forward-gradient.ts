// Forward gradients beside backpropagation, each case in a process of its own that trains as `asteroid train --workers
// 0` does: the peak of the process over its start, and the time that a step computes; memory against depth; and what
// drawing directions takes of a step. Backpropagation runs as it does by default, in one micro-batch, and in the
// micro-batches that are the default of forward gradients. Linux only (/proc).
//   npm run bench -- forward-gradient [--models resnet-18:64,…] [--depths 4,8,16,32,48]
//     [--sequences 8,32,128,512] [--input 64] [--steps 8]
// Freed memory goes back to the system at once (bench/memory.ts: `returned`), so that the peak is that of the step.

import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { defined } from '../dist/assert.js';
import { systemClock } from '../dist/clock.js';
import type { Engine, Executable } from '../dist/engine/engine.js';
import { createOnnxRuntimeNodeEngine } from '../dist/engine/node/onnxruntime-node.js';
import { GraphBuilder } from '../dist/graph/builder.js';
import { type Graph, int } from '../dist/graph/graph.js';
import { fanInUniform } from '../dist/graph/initialization.js';
import { layers } from '../dist/graph/layers.js';
import { elementCount, type Tensor, tensor, wrap } from '../dist/graph/tensor.js';
import { buildModel } from '../dist/models/zoo.js';
import { writeNoise } from '../dist/noise.js';
import { tangentMicroBatch } from '../dist/planner/forward-gradient.js';
import { createRandom } from '../dist/random.js';
import type { PiecewiseBatch } from '../dist/runtime/coordinator/options.js';
import type { RunSubject } from '../dist/runtime/protocol/run-subject.js';
import type { TrainingSpec } from '../dist/runtime/protocol/training-spec.js';
import { trainHere } from '../dist/runtime/run/local.js';
import { localPlan } from '../dist/runtime/run/local-plan.js';
import { median } from '../dist/statistics.js';
import { resetPeak, residentMiB, runJson } from './common/cases.ts';
import { table } from './common/table.ts';

const { values: flags } = parseArgs({
  options: {
    models: {
      type: 'string',
      default: 'resnet-18:64,mobilenet-v3-small:64,efficientnet-b0:64,mnasnet-0.5:64,shufflenet-v2-x0.5:64',
    },
    depths: { type: 'string', default: '4,8,16,32,48' },
    sequences: { type: 'string', default: '8,32,128,512' },
    input: { type: 'string', default: '64' },
    steps: { type: 'string', default: '8' },
    case: { type: 'string' },
  },
});

interface Case {
  /** A built-in model, `depth:LAYERS`, `sequence:STEPS`, a recurrent cell, or `unrolled:STEPS`, the same unrolled. */
  readonly model: string;
  readonly batch: number;
  readonly microBatch: number;
  /** 0: backpropagation. */
  readonly tangents: number;
  readonly kind: 'gaussian' | 'rademacher';
}

interface Measured extends Case {
  /** Of the process over its start: compiling is in it. */
  readonly peakMiB: number;
  /** Of a round after the second, over what the process has before it: graphs, weights and their copies. The median. */
  readonly passMiB: number;
  /** Values in the engine at most: weights, optimizer state, estimates and directions among them. */
  readonly valueMiB: number;
  readonly stepMs: number;
  readonly drawMs: number;
}

/** Steps up to which the unrolled net is measured: compiling it takes minutes beyond. */
const mostUnrolled = 32;

/** Passes of a recurrent cell in a case, so that V8 has compiled as much and left as much garbage for all lengths. */
const sequencePasses = 4096;

/** Of the recurrent cell: sequences of a batch, features of a step, elements of its state. */
const [sequenceCount, featureCount, hiddenCount] = [64, 8, 512];

/** Rounds before those of which a step's memory is taken. */
const settling = 1;

const script = fileURLToPath(import.meta.url);
/** Of small nets: V8 collects garbage late where it may, and would hide what is used. */
const smallHeap = ['--max-semi-space-size=1', '--max-old-space-size=64'];

const returned = { MALLOC_ARENA_MAX: '1', MALLOC_MMAP_THRESHOLD_: '65536' };

if (flags.case === undefined) runAll();
else console.log(JSON.stringify(await measure(JSON.parse(flags.case) as Case)));

function runAll(): void {
  const measureIn = (found: Case): Measured => {
    const [, length] = /^(?:sequence|unrolled):(\d+)/.exec(found.model) ?? [];
    const steps = length === undefined ? flags.steps : String(Math.max(3, sequencePasses / Number(length)));
    const own = ['--input', flags.input, '--steps', steps, '--case', JSON.stringify(found)];
    return runJson<Measured>([...(length === undefined ? [] : smallHeap), script, ...own], returned);
  };
  const rows = flags.models
    .split(',')
    .filter(Boolean)
    .map((text) => modelRow(text, measureIn));
  const heads = ['model:batch', 'backward MiB', 'backward in micro-batches', 'forward MiB', 'of backward', 'of equal'];
  const times = ['backward ms', 'forward ms', 'ratio', 'drawing, rademacher', 'drawing, gaussian'];
  if (rows.length > 0) console.log(table([...heads, ...times], rows));
  const deep = flags.depths
    .split(',')
    .filter(Boolean)
    .map((depth) => {
      const common = { model: `depth:${depth}`, batch: 64, microBatch: 64, kind: 'rademacher' } as const;
      const [backward, one, four] = [0, 1, 4].map((tangents) => measureIn({ ...common, tangents }));
      const all = [backward, one, four].map((found) => defined(found, 'a case'));
      return [depth, ...all.map(({ passMiB }) => passMiB.toFixed(1)), ...all.map(({ peakMiB }) => peakMiB.toFixed(0))];
    });
  const kinds = ['backward', '1 tangent', '4 tangents'];
  const columns = [...kinds.map((kind) => `step MiB, ${kind}`), ...kinds.map((kind) => `process MiB, ${kind}`)];
  if (deep.length > 0) console.log(table(['layers', ...columns], deep));
  const long = flags.sequences
    .split(',')
    .filter(Boolean)
    .map((steps) => sequenceRow(Number(steps), measureIn));
  if (long.length > 0)
    console.log(table(['steps', 'batch MiB', ...columns.map((head) => head.replace('step MiB', 'values MiB'))], long));
}

/** A recurrent cell over sequences, beside backpropagation through time. */
function sequenceRow(steps: number, measureIn: (found: Case) => Measured): readonly string[] {
  const common = { kind: 'rademacher', microBatch: sequenceCount } as const;
  const backward =
    steps > mostUnrolled
      ? undefined
      : measureIn({ ...common, model: `unrolled:${steps}`, batch: sequenceCount, tangents: 0 });
  const batch = sequenceCount * steps;
  const all = [
    backward,
    ...[1, 4].map((tangents) => measureIn({ ...common, model: `sequence:${steps}`, batch, tangents })),
  ];
  return [
    String(steps),
    ((4 * batch * featureCount) / 2 ** 20).toFixed(2),
    ...all.map((found) => found?.valueMiB.toFixed(2) ?? 'not measured'),
    ...all.map((found) => found?.peakMiB.toFixed(0) ?? 'not measured'),
  ];
}

/** h' = tanh(W x + U h + b), y = V h' + c: one step, or as many unrolled, whose logits are of the last. */
function recurrentNet(steps: number, isUnrolled: boolean): Graph {
  const b = new GraphBuilder('recurrent', { seed: 1 });
  const parameter = (name: string, shape: readonly number[]): string =>
    b.parameter(name, shape, fanInUniform(hiddenCount));
  const weights = [parameter('w', [featureCount, hiddenCount]), parameter('u', [hiddenCount, hiddenCount])] as const;
  const bias = parameter('b', [hiddenCount]);
  const next = (x: string, h: string): string =>
    b.tanh(b.node('Gemm', [x, weights[0], b.node('Gemm', [h, weights[1], bias])]));
  if (isUnrolled) {
    const all = b.input('x', 'float32', ['N', steps, featureCount]);
    const at = (step: number): string =>
      b.node('Gather', [all, b.constant(tensor('int64', [], [step]))], { axis: int(1) });
    let h = b.node('Gemm', [at(0), weights[0], bias]);
    h = b.tanh(h);
    for (let step = 1; step < steps; step++) h = next(at(step), h);
    return b.build([b.linear(h, { name: 'head', outFeatures: 10 })]);
  }
  const x = b.input('x', 'float32', ['N', featureCount]);
  const h = next(x, b.input('h', 'float32', ['N', hiddenCount]));
  const y = b.linear(h, { name: 'head', outFeatures: 10 });
  return { ...b.build([y, h]), states: [{ input: 'h', output: h }] };
}

/** The net of a case. */
function graphOf(model: string): Graph {
  const [kind, count] = model.split(':');
  if (kind === 'depth') return deepNet(Number(count));
  if (kind === 'sequence' || kind === 'unrolled') return recurrentNet(Number(count), kind === 'unrolled');
  return buildModel(`${model}:input=${flags.input},classes=10`, { seed: 1 }).graph;
}

/** A model by backpropagation as it is by default and in equal micro-batches, and by forward gradients. */
function modelRow(text: string, measureIn: (found: Case) => Measured): readonly string[] {
  const [model = '', batchText] = text.split(':');
  const batch = Number(batchText);
  const common = { model, batch, microBatch: tangentMicroBatch(batch), kind: 'rademacher' } as const;
  const backward = measureIn({ ...common, microBatch: batch, tangents: 0 });
  const equal = measureIn({ ...common, tangents: 0 });
  const forward = measureIn({ ...common, tangents: 1 });
  const gaussian = measureIn({ ...common, tangents: 1, kind: 'gaussian' });
  return [
    text,
    backward.peakMiB.toFixed(0),
    equal.peakMiB.toFixed(0),
    forward.peakMiB.toFixed(0),
    (forward.peakMiB / backward.peakMiB).toFixed(2),
    (forward.peakMiB / equal.peakMiB).toFixed(2),
    backward.stepMs.toFixed(0),
    forward.stepMs.toFixed(0),
    (forward.stepMs / backward.stepMs).toFixed(2),
    `${((100 * forward.drawMs) / forward.stepMs).toFixed(1)} %`,
    `${((100 * gaussian.drawMs) / gaussian.stepMs).toFixed(1)} %`,
  ];
}

/** 3x3 convolutions of 16 channels with ReLU on 32x32. */
function deepNet(depth: number): Graph {
  const b = new GraphBuilder('deep', { seed: 1 });
  let x = b.conv2d(b.input('x', 'float32', ['N', 3, 32, 32]), { name: 'stem', outChannels: 16, kernel: 3, padding: 1 });
  for (let index = 1; index < depth; index++)
    x = b.conv2d(b.relu(x), { name: `conv${index}`, outChannels: 16, kernel: 3, padding: 1 });
  return b.build([b.linear(b.flatten(b.globalAveragePool(x)), { name: 'head', outFeatures: 10 })]);
}

/** The engine, and the most bytes that its values have had after a run. */
function watched(engine: Engine): { readonly engine: Engine; readonly mostBytes: () => number } {
  let most = 0;
  const compile: Engine['compile'] = async (source) => {
    const executable = await engine.compile(source);
    const run: Executable['run'] = (...given) => {
      const results = executable.run(...given);
      most = Math.max(most, engine.valueBytes());
      return results;
    };
    return { inputs: executable.inputs, outputs: executable.outputs, run, release: () => executable.release() };
  };
  const own = new Proxy(engine, {
    get: (target, key) => {
      const found: unknown = key === 'compile' ? compile : Reflect.get(target, key, target);
      return typeof found === 'function' ? found.bind(target) : found;
    },
  });
  return { engine: own, mostBytes: () => most };
}

async function measure({ model, batch, microBatch, tangents, kind }: Case): Promise<Measured> {
  const { engine, mostBytes } = watched(await createOnnxRuntimeNodeEngine());
  const graph = graphOf(model);
  const startMiB = residentMiB().now;
  resetPeak();
  const subject = subjectOf(graph, { model, batch, microBatch, tangents, kind });
  const { sequence, training } = subject;
  const random = createRandom(1);
  const shape = defined(graph.inputs[0], 'an input').shape.map((size) => (size === 'N' ? batch : Number(size)));
  const inputs = (count: number): Tensor => {
    const values = new Float32Array((count / batch) * elementCount(shape));
    for (let index = 0; index < values.length; index++) values[index] = random.normal();
    return wrap('float32', [count, ...shape.slice(1)], values);
  };
  const labels = (count: number): Tensor => {
    const values = new BigInt64Array(count);
    for (let index = 0; index < count; index++) values[index] = BigInt(random.integer(10));
    return wrap('int64', [count], values);
  };
  const pieces: PiecewiseBatch = {
    sampleCount: batch,
    piece: (payload, [first, end]) => [payload === 'input' ? inputs(end - first) : labels(end - first)],
  };
  const stepMs: number[] = [];
  let mostMiB = 0;
  const rounds: { readonly now: number; readonly peak: number }[] = [];
  await trainHere(
    subject,
    {
      // Memory of its own each time, as of samples that are gathered from a data set.
      batch: () => (model.startsWith('sequence:') ? pieces : { inputs: [inputs(batch)], labels: labels(batch) }),
      observe: () => {},
      onCommitted: (_round, _loss, _correct, _rate, results) => {
        stepMs.push(defined(Object.values(results)[0], 'a result').busyMs);
        const seen = residentMiB();
        resetPeak();
        mostMiB = Math.max(mostMiB, seen.peak);
        if (stepMs.length > settling) rounds.push(seen);
      },
      onCheckpoint: async () => true,
    },
    {
      ...{ workerCount: 0, firstRound: 0, endRound: Number(flags.steps), checkpointEvery: 1_000_000 },
      ...{ batchSize: batch, batchSizesToProfile: [1], planGiven: false },
      learningRate: () => 1e-6,
      gradientScale: () => 1,
    },
    localPlan(sequence.layers.length, batch, microBatch, training),
    { engine, clock: systemClock, signal: new AbortController().signal },
  );
  const peakMiB = mostMiB - startMiB;
  // Garbage of batches is collected at other times: each step is compared with what was there right before it.
  const passMiB = median(rounds.slice(1).map(({ peak }, index) => peak - defined(rounds[index], 'a round').now));
  await engine.close();
  return {
    ...{ model, batch, microBatch, tangents, kind, peakMiB, passMiB, valueMiB: mostBytes() / 2 ** 20 },
    stepMs: median(stepMs.slice(1)),
    drawMs: drawMs(sequence.graph, kind),
  };
}

/** What is trained, with SGD and momentum. */
function subjectOf(graph: Graph, { model, batch, tangents, kind }: Case): RunSubject {
  const sequence = layers(graph);
  const training: TrainingSpec = {
    ...{ batchSize: batch, loss: 'cross-entropy', clipNorm: null, seed: 1, frozen: [] },
    optimizer: {
      ...{ kind: 'sgd', momentum: 0.9, nesterov: false, weightDecay: 0 },
      ...{ beta1: 0.9, beta2: 0.999, epsilon: 1e-8 },
    },
    ...(tangents === 0 ? {} : { forwardGradient: { tangentCount: tangents, kind, scales: {}, roundsPerEpoch: 1000 } }),
  };
  const pick = (names: readonly string[]): Map<string, Tensor> =>
    new Map(names.map((name) => [name, defined(sequence.graph.initializers.get(name), name)]));
  return {
    modelName: model,
    sequence,
    training,
    label: { name: 'label', type: 'int64', shape: ['N'], batchAxis: 0, differentiable: false } as const,
    state: { parameter: pick(sequence.graph.parameters), buffer: pick(sequence.graph.buffers), optimizer: new Map() },
  };
}

/** What drawing all directions twice takes, as a step does: for its pass, and for its update. */
function drawMs({ parameters, initializers }: Graph, kind: Case['kind']): number {
  const counts = parameters.map((name) => elementCount(defined(initializers.get(name), name).shape));
  const times = [0, 1, 2].map((round) => {
    const startMs = performance.now();
    for (const [index, count] of counts.entries())
      writeNoise(new Float32Array(count), {
        ...{ kind, seed: 1, round },
        parts: [{ name: `w${index}`, offset: 0, count, scale: 1, tangent: 0 }],
      });
    return performance.now() - startMs;
  });
  return 2 * median(times);
}
