// One step's gradients of the models in a folder, in each form of a pass: lowered to the engine's kernels, plain, and
// on the reference engine. For each NAME.onnx (training mode, logits first) with NAME.x.bin (float32 in the shape of
// NAME.x.json) and NAME.y.json (labels) it writes NAME.FORM.json, which lists the parameters, and NAME.FORM.bin with
// their gradients of the mean cross-entropy. bench/digits_pytorch.py makes such folders and compares with float64.
// Usage: npm run bench -- digits FOLDER [--dist FOLDER] [--forms lowered,plain,reference]

import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { defined } from '../dist/assert.js';
import type { Engine } from '../dist/engine/engine.js';
import type { Tensor } from '../dist/graph/tensor.js';
import { loadFrom } from './common/build.ts';

const { values: flags, positionals } = parseArgs({
  options: {
    dist: { type: 'string', default: 'dist' },
    forms: { type: 'string', default: 'lowered,plain,reference' },
  },
  allowPositionals: true,
});
const load = loadFrom(flags.dist);
const { differentiate, outputGradientName } = await load('autodiff/differentiate.js');
const { gradientName } = await load('graph/gradient-name.js');
const { loweringOf } = await load('engine/lowering.js');
const { createOnnxRuntimeNodeEngine } = await load('engine/node/onnxruntime-node.js');
const { createReferenceEngine } = await load('engine/reference.js');
const { importModel } = await load('graph/onnx/import.js');
const { trainingMode } = await load('graph/onnx/modes.js');
const { instantiate } = await load('graph/static.js');
const { runGraph } = await load('testing/run-graph.js');

type Values = Record<string, Tensor>;

/** Softmax minus one-hot, over the number of samples: the gradient of the mean cross-entropy. */
function lossGradient({ shape, data }: Tensor, labels: readonly number[]): Tensor {
  const [samples = 1, classes = 1] = shape;
  const gradient = new Float32Array(samples * classes);
  for (let sample = 0; sample < samples; sample++) {
    const logits = Array.from((data as Float32Array).subarray(sample * classes, (sample + 1) * classes));
    const largest = Math.max(...logits);
    const powers = logits.map((logit) => Math.exp(logit - largest));
    const sum = powers.reduce((a, b) => a + b, 0);
    powers.forEach((power, index) => {
      gradient[sample * classes + index] = (power / sum - (index === labels[sample] ? 1 : 0)) / samples;
    });
  }
  return { type: 'float32', shape, data: gradient };
}

async function gradients(name: string, engine: Engine, lowered: boolean) {
  const { graph } = importModel(readFileSync(`${name}.onnx`));
  const shape = JSON.parse(readFileSync(`${name}.x.json`, 'utf8')) as number[];
  const labels = JSON.parse(readFileSync(`${name}.y.json`, 'utf8')) as number[];
  const data = new Float32Array(new Uint8Array(readFileSync(`${name}.x.bin`)).buffer);
  const stage = instantiate(trainingMode(graph), defined(shape[0], 'a batch'));
  const graphs = differentiate(stage, { inputs: [], ...(lowered ? loweringOf(engine) : {}) });
  const values: Values = Object.fromEntries(stage.graph.initializers);
  values[defined(stage.graph.inputs[0], 'an input').name] = { type: 'float32', shape, data };
  Object.assign(values, await runGraph(engine, graphs.forward, values));
  const output = defined(stage.graph.outputs[0], 'an output').name;
  values[outputGradientName(output)] = lossGradient(defined(values[output], output), labels);
  const found = await runGraph(engine, graphs.backward, values);
  return graphs.parameterGradients.map((parameter: string) => ({
    parameter,
    gradient: defined(found[gradientName(parameter)], parameter),
  }));
}

const [folder] = positionals;
if (folder === undefined) throw new Error('Name a folder that bench/digits_pytorch.py made.');
const onnxruntime = await createOnnxRuntimeNodeEngine();
const reference = createReferenceEngine();
for (const file of readdirSync(folder).filter((each) => each.endsWith('.onnx'))) {
  const name = join(folder, file.slice(0, -5));
  for (const form of flags.forms.split(',')) {
    const found = await gradients(name, form === 'reference' ? reference : onnxruntime, form === 'lowered');
    const index = found.map(({ parameter, gradient }) => ({ name: parameter, shape: gradient.shape }));
    writeFileSync(`${name}.${form}.json`, JSON.stringify(index));
    writeFileSync(
      `${name}.${form}.bin`,
      Buffer.concat(
        found.map(({ gradient }) => {
          const { buffer, byteOffset, byteLength } = gradient.data as Float32Array;
          return Buffer.from(buffer, byteOffset, byteLength);
        }),
      ),
    );
  }
}
await onnxruntime.close();
await reference.close();
