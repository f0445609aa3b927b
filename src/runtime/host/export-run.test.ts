// `export --format safetensors` writes a checkout: opened again it gives transformers' outputs, whatever the run began
// with: float16 or bfloat16, parts, adapters, a head of another size.

import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { resolveSettings } from '../../cli/settings.ts';
import { evaluateGraph } from '../../graph/evaluate.ts';
import { inferenceMode } from '../../graph/onnx/modes.ts';
import { numberToHalf } from '../../graph/operators/numbers.ts';
import { instantiate } from '../../graph/static.ts';
import { elementCount, type Tensor, toNumbers } from '../../graph/tensor.ts';
import { openCheckout, openSafetensors } from '../../storage/node/checkouts/checkout-files.ts';
import { loadDataset } from '../../storage/node/datasets.ts';
import { gather } from '../../training/data/dataset.ts';
import { writeSafetensors } from '../../training/safetensors.ts';
import { openCheckoutModel } from './checkouts.ts';
import { asSafetensors, type ExportedFiles } from './export-run.ts';
import { loadModel } from './models.ts';

const checkouts = 'test/fixtures/checkouts';
const adapters = 'test/fixtures/adapters';
const root = mkdtempSync(join(tmpdir(), 'export-'));
after(() => rmSync(root, { recursive: true }));

/** Writes what a run of `model` exports, and opens it. */
async function exported(model: string, adapter?: string): Promise<ReturnType<typeof openCheckoutModel>> {
  const given = adapter === undefined ? {} : { adapter };
  const settings = resolveSettings({ model, data: 'mnist', batch: '8', ...given }, {}, 'the flags');
  const loaded = await loadModel(model, 0, { lora: [], modulesToSave: [], ...given });
  const files = asSafetensors({ model: loaded, values: new Map(), settings, round: 1 } as never);
  return openCheckoutModel({ folder: written(files), options: {} }, 1);
}

function written(files: ExportedFiles): string {
  const folder = mkdtempSync(join(root, 'net-'));
  for (const [name, pieces] of files) writeFileSync(join(folder, name), Buffer.concat(pieces));
  return folder;
}

function weightNames(folder: string): readonly string[] {
  return [...openCheckout(folder).tensors.keys()].sort();
}

function outputs({ graph }: ReturnType<typeof openCheckoutModel>, inputs: ReadonlyMap<string, Tensor>): number[] {
  const batch = [...inputs.values()][0]?.shape[0] ?? 0;
  return toNumbers([...evaluateGraph(instantiate(inferenceMode(graph), batch).graph, inputs).values()][0] as Tensor);
}

function assertNear(found: readonly number[], expected: readonly number[], tolerance: number): void {
  assert.equal(found.length, expected.length);
  const difference = Math.max(...found.map((value, index) => Math.abs(value - (expected[index] as number))));
  assert.ok(difference < tolerance, `off by ${difference}`);
}

for (const name of ['llama3', 'qwen2', 'resnet', 'deit-teacher'])
  test(`${name}: what is exported has transformers' outputs`, async () => {
    const { logits, ...rest } = Object.fromEntries(openSafetensors(join(checkouts, name, 'expected.safetensors')));
    const inputs = new Map(Object.entries(rest as Record<string, Tensor>));
    const again = await exported(join(checkouts, name) + (inputs.has('input_ids') ? ':sequence=8' : ''));
    assert.deepEqual(again.newNames, []);
    const sequence = inputs.get('input_ids')?.shape[1];
    const sized = openCheckoutModel({ folder: again.folder, options: sequence === undefined ? {} : { sequence } }, 1);
    assertNear(outputs(sized, inputs), toNumbers(logits as Tensor), 2e-5);
    const [given, found] = [join(checkouts, name), again.folder].map((folder) => weightNames(folder));
    assert.deepEqual(found, given, 'the names in the files are the same');
  });

test('adapters are merged: the outputs are those of PEFT', async () => {
  const folder = join(adapters, 'llama');
  const { folder: place } = await exported(`${folder}:sequence=8`, join(folder, 'trained'));
  const { train } = await loadDataset(`npz:${join(folder, 'data.npz')}`);
  const { inputs } = gather(
    train,
    Uint32Array.from({ length: 8 }, (_, row) => row),
  );
  const sized = openCheckoutModel({ folder: place, options: { sequence: 8 } }, 1);
  const expected = openSafetensors(join(folder, 'merged.safetensors')).get('logits') as Tensor;
  const named = new Map(sized.graph.inputs.map(({ name }, index) => [name, inputs[index] as Tensor]));
  assertNear(outputs(sized, named), toNumbers(expected), 1e-4);
});

test('a new head is in the weights, and config.json says how many outputs it has', async () => {
  const again = await exported(`${join(checkouts, 'resnet')}:classes=5`);
  assert.deepEqual(again.newNames, []);
  assert.deepEqual(again.graph.outputs[0]?.shape, ['N', 5]);
  const { id2label, architectures } = again.config as { id2label: object; architectures: unknown };
  assert.deepEqual([Object.keys(id2label).length, architectures], [5, ['ResNetForImageClassification']]);
});

test('weights in float16 are read as the numbers nearest to them', () => {
  const folder = join(root, 'half');
  mkdirSync(folder);
  const given = openSafetensors(join(checkouts, 'bert', 'model.safetensors'));
  const halves = new Map(
    [...given].map(([name, { shape, ...value }]): [string, Tensor] => {
      const data = Uint16Array.from(toNumbers({ shape, ...value } as Tensor), numberToHalf);
      assert.equal(data.length, elementCount(shape));
      return [name, { type: 'float16', shape, data }];
    }),
  );
  writeFileSync(join(folder, 'model.safetensors'), Buffer.concat(writeSafetensors(halves)));
  const name = 'bert.encoder.layer.1.output.dense.weight';
  const found = openSafetensors(join(folder, 'model.safetensors')).get(name) as Tensor;
  const wanted = toNumbers(given.get(name) as Tensor);
  assert.equal(found.type, 'float32');
  for (const [index, value] of toNumbers(found).entries()) {
    const original = wanted[index] as number;
    assert.ok(Math.abs(value - original) <= Math.abs(original) * 2 ** -11 + 2 ** -25, `${value} for ${original}`);
  }
});
