// What forward mode costs compared with reverse mode: CPU time of a stage's outputs with their tangents, of forward and
// of backward, in alternation, and the memory of a run. Whole models, one thread; graphs in plain forms, and lowered to
// the engine's kernels as training has them.
// Usage: npm run bench -- forward-mode [--dist FOLDER] [--json]

import { parseArgs } from 'node:util';
import { defined } from '../dist/assert.js';
import type { Graph } from '../dist/graph/graph.js';
import type { Tensor } from '../dist/graph/tensor.js';
import { median } from '../dist/statistics.js';
import { loadFrom } from './common/build.ts';
import { cpuMsOf, sum } from './common/numbers.ts';
import { table } from './common/table.ts';

const { values: flags } = parseArgs({
  options: { dist: { type: 'string', default: 'dist' }, json: { type: 'boolean', default: false } },
});
const load = loadFrom(flags.dist);
const { differentiate, outputGradientName } = await load('autodiff/differentiate.js');
const { tangentGraph, tangentName } = await load('autodiff/forward-mode.js');
const { runMemory } = await load('engine/onnxruntime-memory.js');
const { loweringOf } = await load('engine/lowering.js');
const { createOnnxRuntimeNodeEngine } = await load('engine/node/onnxruntime-node.js');
const { instantiate } = await load('graph/static.js');
const { elementCount, tensor } = await load('graph/tensor.js');
const { buildModel } = await load('models/zoo.js');
const { createRandom } = await load('random.js');

interface Case {
  readonly model: string;
  readonly batch: number;
}

const cases: readonly Case[] = [
  { model: 'conv-s', batch: 64 },
  { model: 'conv-l', batch: 64 },
  { model: 'mobilenet-v2:input=32,classes=10', batch: 32 },
  { model: 'resnet-18:input=32,classes=10', batch: 32 },
  { model: 'efficientnet-b0:input=32,classes=10,dropout=0', batch: 32 },
  { model: 'bert-small:sequence=128,dropout=0', batch: 4 },
];
const runCount = 7;
const parts = ['forward', 'backward', 'tangent'] as const;
type Part = (typeof parts)[number];
type Prepared = ReturnType<typeof prepare>;
type StaticType = ReturnType<typeof instantiate>['types'] extends ReadonlyMap<string, infer T> ? T : never;
type Lowering = Partial<ReturnType<typeof loweringOf>>;
const engine = await createOnnxRuntimeNodeEngine();

/** A model's graphs and values for all that they read: weights as they begin, everything else random. */
function prepare({ model, batch }: Case, lowering: Lowering) {
  const built = buildModel(model);
  const stage = instantiate(built.graph, batch);
  const reverse = differentiate(stage, { inputs: [], ...lowering });
  const tangent = tangentGraph(stage, { inputs: [], ...lowering });
  const random = createRandom(1);
  const draw = (name: string, valueType: StaticType | undefined): [string, Tensor] => {
    const { type, shape } = defined(valueType, name);
    const next = type === 'int64' ? () => random.integer(built.input.valueCount ?? 2) : () => random.normal();
    return [name, tensor(type, shape, Array.from({ length: elementCount(shape) }, next))];
  };
  const output = defined(stage.graph.outputs[0], 'an output').name;
  const values = new Map<string, Tensor>([
    ...stage.graph.inputs.map((input) => draw(input.name, stage.types.get(input.name))),
    ...stage.graph.initializers,
    ...reverse.dropouts.map((mask) => draw(mask.name, mask)),
    ...tangent.tangentParameters.map((name) => draw(tangentName(name), stage.types.get(name))),
    draw(outputGradientName(output), stage.types.get(output)),
  ]);
  return { reverse, tangent, values };
}

/** Each graph as a function that runs it to its end, given what ran before. */
async function compile({ reverse, tangent, values }: Prepared) {
  const held = new Map([...values].map(([name, value]) => [name, engine.upload(value)]));
  const graphs = { forward: reverse.forward, backward: reverse.backward, tangent: tangent.graph };
  const runs: (readonly [Part, () => Promise<void>])[] = [];
  for (const part of parts) {
    const executable = await engine.compile(graphs[part]);
    const run = async () => {
      const results = executable.run(
        Object.fromEntries(executable.inputs.map((name) => [name, defined(held.get(name), name)])),
      );
      await engine.settled();
      for (const [name, value] of Object.entries(results)) {
        if (part !== 'forward') engine.release(value);
        else {
          const before = held.get(name);
          if (before !== undefined) engine.release(before);
          held.set(name, value);
        }
      }
    };
    runs.push([part, run]);
  }
  return runs;
}

async function times(prepared: Prepared) {
  const runs = await compile(prepared);
  const taken: Record<Part, number[]> = { forward: [], backward: [], tangent: [] };
  for (let index = 0; index <= runCount; index++) {
    for (const [part, run] of runs) {
      const ms = await cpuMsOf(run);
      if (index > 0) taken[part].push(ms);
    }
  }
  return { forward: median(taken.forward), backward: median(taken.backward), tangent: median(taken.tangent) };
}

/**
 * MiB that runs take in addition to inputs and constants, by the engine's memory model: with tangents; forward, then
 * backward while what is saved is held.
 */
function memory({ reverse, tangent }: Prepared) {
  const mib = (bytes: number) => bytes / 2 ** 20;
  const saved = sum(reverse.saved.map(({ bytes }) => bytes));
  const bytes = (graph: Graph) => runMemory(graph, engine.blockSize).runBytes;
  const reverseBytes = Math.max(bytes(reverse.forward), saved + bytes(reverse.backward));
  return { reverseMiB: mib(reverseBytes), forwardModeMiB: mib(bytes(tangent.graph)) };
}

const rows = [];
for (const { model, batch } of cases) {
  for (const form of ['plain', 'lowered']) {
    const prepared = prepare({ model, batch }, form === 'plain' ? {} : loweringOf(engine));
    const { forward, backward, tangent } = await times(prepared);
    rows.push({
      model,
      batch,
      form,
      forward,
      backward,
      tangent,
      ratio: tangent / (forward + backward),
      ...memory(prepared),
    });
  }
  if (!flags.json) console.error(`${model}: done`);
}
if (flags.json) console.log(JSON.stringify(rows));
else {
  const head = ['model', 'batch', 'graphs', 'forward ms', 'backward ms', 'with tangents ms', 'ratio'];
  const cells = rows.map((row) => [
    ...[row.model, row.batch, row.form, row.forward.toFixed(1), row.backward.toFixed(1), row.tangent.toFixed(1)],
    ...[row.ratio.toFixed(2), row.reverseMiB.toFixed(0), row.forwardModeMiB.toFixed(0)],
  ]);
  console.log(table([...head, 'forward + backward MiB', 'with tangents MiB'], cells));
}
await engine.close();
