// What forward mode costs beside reverse mode: CPU time of a stage's outputs with their tangents, of forward and of backward, in alternation, and the
// memory of a run. Whole models, one thread; graphs in plain forms, and lowered to the engine's kernels as training has them.
// Usage, after `npm run build`: node bench/forward-mode.mjs [--dist FOLDER] [--json]

import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';

const { values: flags } = parseArgs({
  options: { dist: { type: 'string', default: 'dist' }, json: { type: 'boolean', default: false } },
});
const load = (path) => import(pathToFileURL(resolve(flags.dist, path)).href);
const { differentiate, outputGradientName } = await load('autodiff/differentiate.js');
const { tangentGraph, tangentName } = await load('autodiff/forward-mode.js');
const { runMemory } = await load('engine/onnxruntime-memory.js');
const { loweringOf } = await load('engine/lowering.js');
const { createOnnxRuntimeNodeEngine } = await load('engine/onnxruntime-node.js');
const { instantiate } = await load('graph/static.js');
const { elementCount, tensor } = await load('graph/tensor.js');
const { buildModel } = await load('models/zoo.js');
const { createRandom } = await load('random.js');

const cases = [
  { model: 'conv-s', batch: 64 },
  { model: 'conv-l', batch: 64 },
  { model: 'mobilenet-v2:input=32,classes=10', batch: 32 },
  { model: 'resnet-18:input=32,classes=10', batch: 32 },
  { model: 'efficientnet-b0:input=32,classes=10,dropout=0', batch: 32 },
  { model: 'bert-small:sequence=128,dropout=0', batch: 4 },
];
const runCount = 7;
const engine = await createOnnxRuntimeNodeEngine();

/** A model's graphs and values for all that they read: weights as they begin, everything else random. */
function prepare({ model, batch }, lowering) {
  const built = buildModel(model);
  const stage = instantiate(built.graph, batch);
  const reverse = differentiate(stage, { inputs: [], ...lowering });
  const tangent = tangentGraph(stage, { inputs: [], ...lowering });
  const random = createRandom(1);
  const draw = (name, { type, shape }) => {
    const next = type === 'int64' ? () => random.integer(built.input.valueCount ?? 2) : () => random.normal();
    return [name, tensor(type, shape, Array.from({ length: elementCount(shape) }, next))];
  };
  const [{ name: output }] = stage.graph.outputs;
  const values = new Map([
    ...stage.graph.inputs.map((input) => draw(input.name, input)),
    ...stage.graph.initializers,
    ...reverse.dropouts.map((mask) => draw(mask.name, mask)),
    ...tangent.tangentParameters.map((name) => draw(tangentName(name), stage.types.get(name))),
    draw(outputGradientName(output), stage.types.get(output)),
  ]);
  return { reverse, tangent, values };
}

/** Each graph as a function that runs it to its end, given what ran before. */
async function compile({ reverse, tangent, values }, parts) {
  const held = new Map([...values].map(([name, value]) => [name, engine.upload(value)]));
  const graphs = { forward: reverse.forward, backward: reverse.backward, tangent: tangent.graph };
  const runs = {};
  for (const part of parts) {
    const executable = await engine.compile(graphs[part]);
    runs[part] = async () => {
      const results = executable.run(Object.fromEntries(executable.inputs.map((name) => [name, held.get(name)])));
      await engine.settled();
      for (const [name, value] of Object.entries(results)) {
        if (part !== 'forward') engine.release(value);
        else {
          if (held.has(name)) engine.release(held.get(name));
          held.set(name, value);
        }
      }
    };
  }
  return runs;
}

const cpuMs = async (action) => {
  const before = process.cpuUsage();
  await action();
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1000;
};
const median = (values) => values.toSorted((a, b) => a - b)[values.length >> 1];

async function times(prepared) {
  const runs = await compile(prepared, ['forward', 'backward', 'tangent']);
  const taken = { forward: [], backward: [], tangent: [] };
  for (let index = 0; index <= runCount; index++) {
    for (const [part, run] of Object.entries(runs)) {
      const ms = await cpuMs(run);
      if (index > 0) taken[part].push(ms);
    }
  }
  return Object.fromEntries(Object.entries(taken).map(([part, list]) => [part, median(list)]));
}

/** MiB that runs take beside inputs and constants, as the engine's memory model counts them: with tangents; forward, then backward beside what is saved. */
function memory({ reverse, tangent }, { blockSize }) {
  const mib = (bytes) => bytes / 2 ** 20;
  const saved = reverse.saved.reduce((sum, { bytes }) => sum + bytes, 0);
  const [forward, backward, moving] = [reverse.forward, reverse.backward, tangent.graph].map(
    (graph) => runMemory(graph, blockSize).runBytes,
  );
  return { reverseMiB: mib(Math.max(forward, saved + backward)), forwardModeMiB: mib(moving) };
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
      ...memory(prepared, engine),
    });
  }
  if (!flags.json) console.error(`${model}: done`);
}
if (flags.json) console.log(JSON.stringify(rows));
else {
  console.log(
    '| model | batch | graphs | forward ms | backward ms | with tangents ms | ratio | forward + backward MiB | with tangents MiB |',
  );
  console.log('| --- | --- | --- | --- | --- | --- | --- | --- | --- |');
  for (const { model, batch, form, forward, backward, tangent, ratio, reverseMiB, forwardModeMiB } of rows) {
    const numbers = [forward, backward, tangent].map((ms) => ms.toFixed(1));
    console.log(
      `| ${[model, batch, form, ...numbers, ratio.toFixed(2), reverseMiB.toFixed(0), forwardModeMiB.toFixed(0)].join(' | ')} |`,
    );
  }
}
await engine.close();
