// Models that PyTorch exported, trained over the same batches: every loss and the final weights are PyTorch's own, in
// this process and by the real command over one and three worker processes; the file that comes out is the user's own
// but for the weights.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { InferenceSession, Tensor as OrtTensor } from 'onnxruntime-node';
import { defined } from '../assert.ts';
import { opsetOf, parseModel } from '../graph/onnx/decode.ts';
import { loadDataset } from '../storage/node/datasets.ts';
import { jsonLines, runCommand, temporaryFolder } from '../testing/command.ts';
import { type PytorchFixture, pytorchFixtures } from '../testing/pytorch-fixtures.ts';
import { checkLosses, checkWeights, flagsOf, trainInProcess, writePlan } from '../testing/pytorch-training.ts';

const cwd = temporaryFolder();
const fixtures = pytorchFixtures();
/** Accepted: 1e-3. Seen: 3e-7. */
const tolerance = 1e-4;

for (const fixture of fixtures) {
  test(`${fixture.name} in this process: PyTorch's losses and weights`, async () => {
    const { losses, file } = await trainInProcess(fixture);
    const comparison = { how: 'in this process', tolerance };
    checkLosses(losses, fixture, comparison);
    checkWeights(file, fixture, comparison);
  });
}

/**
 * One file of each net, of another opset where there is one, for each number of workers. Each stage's shares of a
 * batch, so that nothing need be profiled; `null`: by the planner. A file with a fixed batch and a net with batch
 * normalization cannot share a batch out.
 */
const overWorkers: Readonly<Record<number, Readonly<Record<string, readonly (readonly number[])[] | null>>>> = {
  0: { 'residual/opset13-fixed': null, 'transformer/opset17-dynamic-eval': null },
  1: {
    'depthwise/opset16-fixed': [[16]],
    'gpt-tied/opset17-dynamic': [[16]],
    'residual/opset14-dynamic': [[16]],
    'vit/opset18-dynamic-dynamo': [[16]],
  },
  3: {
    'depthwise/opset14-dynamic': [[16], [16], [16]],
    'gpt/opset18-dynamic-dynamo': [[5, 11], [16]],
    'grouped/opset13-fixed': [[16], [16], [16]],
    'residual/opset15-dynamic': [[16], [16], [16]],
    'transformer/opset14-dynamic': [[4, 7, 5]],
    'vit/opset13-dynamic': [[16], [9, 7]],
  },
};

for (const [workers, forms] of Object.entries(overWorkers)) {
  for (const [name, shares] of Object.entries(forms)) {
    test(`asteroid train --workers ${workers}, ${name}: PyTorch's losses and weights`, async () => {
      const fixture = defined(
        fixtures.find((candidate) => candidate.name === name),
        name,
      );
      const out = join(cwd, `${workers}-${name.replace('/', '-')}`);
      const flags = Object.entries(flagsOf(fixture)).flatMap(([flag, value]) => [`--${flag}`, value]);
      if (shares !== null) flags.push('--plan', await writePlan(fixture, shares, cwd));
      const end = await runCommand(
        ['train', ...flags, '--no-shuffle', '--use-all', '--workers', workers, '--out', out],
        { cwd },
      );
      assert.equal(end.code, 0, end.stderr);
      const metrics = await jsonLines(join(out, 'metrics.jsonl'));
      assert.deepEqual(
        metrics.map(({ round }) => round),
        [0, 1, 2, 3, 4, 5],
      );
      const comparison = { how: `over ${workers} workers`, tolerance };
      checkLosses(
        metrics.map(({ loss }) => loss),
        fixture,
        comparison,
      );
      const written = await readFile(join(out, 'model.onnx'));
      checkWeights(written, fixture, comparison);
      await checkFile(written, fixture);
      if (Number(workers) > 0) {
        const { stages } = JSON.parse(await readFile(join(out, 'plan.json'), 'utf8')) as {
          stages: { devices: string[] }[];
        };
        const devices = new Set(stages.flatMap((stage) => stage.devices));
        assert.equal(devices.size, Number(workers), 'every worker has a part in it');
      }
    });
  }
}

/**
 * The written file is the user's own: opset, inputs, outputs and tensors keep their names; stock ONNX Runtime runs it.
 */
async function checkFile(
  written: Uint8Array,
  { name, modelPath, inputsPath, labelsPath }: PytorchFixture,
): Promise<void> {
  const [before, after] = [parseModel(await readFile(modelPath)), parseModel(written)];
  assert.equal(opsetOf(after), opsetOf(before), name);
  const namesOf = (values: readonly { readonly name: string }[] | undefined): string[] =>
    (values ?? []).map((value) => value.name);
  assert.deepEqual(namesOf(after.graph?.input), namesOf(before.graph?.input), name);
  assert.deepEqual(namesOf(after.graph?.output), namesOf(before.graph?.output), name);
  assert.deepEqual(namesOf(after.graph?.initializer), namesOf(before.graph?.initializer), name);
  const nodeNames = new Set(namesOf(before.graph?.node));
  for (const node of namesOf(after.graph?.node)) assert.ok(nodeNames.has(node), `${name} has the new node ${node}`);
  const { train } = await loadDataset(`npy:${inputsPath},${labelsPath}`);
  const field = defined(train.inputs[0], 'the inputs');
  const shape = [16, ...field.values.shape.slice(1)];
  const length = shape.reduce((product, size) => product * size, 1);
  const values = field.values.data.slice(0, length);
  const session = await InferenceSession.create(written);
  const input =
    field.values.type === 'int64'
      ? new OrtTensor('int64', values as BigInt64Array, shape)
      : new OrtTensor('float32', values as Float32Array, shape);
  const results = await session.run({ [defined(session.inputNames[0], 'an input')]: input });
  const output = defined(results[defined(session.outputNames[0], 'an output')], 'the output');
  assert.equal(output.dims[0], 16, name);
  for (const value of output.data as Float32Array) assert.ok(Number.isFinite(value), `${name} gives ${value}`);
  await session.release();
}
