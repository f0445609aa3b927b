// Checkouts as transformers writes them (test/fixtures/checkouts): the same outputs, whatever their files look like;
// broken ones are refused in one sentence.

import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { InputError } from '../../errors.ts';
import { evaluateGraph } from '../../graph/evaluate.ts';
import { inferenceMode } from '../../graph/onnx/modes.ts';
import { instantiate } from '../../graph/static.ts';
import { type Tensor, toNumbers } from '../../graph/tensor.ts';
import { openSafetensors } from '../../storage/node/checkouts/checkout-files.ts';
import { writeSafetensors } from '../../training/safetensors.ts';
import { checkoutSpec, openCheckoutModel } from './checkouts.ts';

const root = 'test/fixtures/checkouts';
const names = readdirSync(root).filter((name) => !name.endsWith('.py'));

for (const name of names)
  test(`${name}: the outputs are transformers'`, () => {
    const folder = join(root, name);
    const expected = openSafetensors(join(folder, 'expected.safetensors'));
    const logits = expected.get('logits') as Tensor;
    const inputs = new Map([...expected].filter(([key]) => key !== 'logits'));
    const [batch = 0, sequence = 0] = [...inputs.values()][0]?.shape ?? [];
    const { graph, newNames } = openCheckoutModel({ folder, options: inputs.has('input_ids') ? { sequence } : {} }, 0);
    assert.deepEqual(newNames, []);
    const fixed = instantiate(inferenceMode(graph), batch).graph;
    const [found] = evaluateGraph(fixed, inputs).values();
    assert.deepEqual(found?.shape, logits.shape);
    const difference = largestDifference(found as Tensor, logits);
    assert.ok(difference < 2e-5, `off by ${difference}`);
  });

function largestDifference(a: Tensor, b: Tensor): number {
  const others = toNumbers(b);
  return Math.max(...toNumbers(a).map((value, index) => Math.abs(value - (others[index] as number))));
}

test('a head of another size is new, and said so', () => {
  const { newNames, graph } = openCheckoutModel({ folder: join(root, 'bert'), options: { classes: 5 } }, 0);
  assert.deepEqual(newNames, ['classifier.weight', 'classifier.bias']);
  assert.deepEqual(graph.outputs[0]?.shape, ['N', 5]);
});

test('files of the net alone have names without its prefix', (t) => {
  const folder = copyOf('bert', t);
  const path = join(folder, 'model.safetensors');
  const tensors = new Map([...openSafetensors(path)].map(([name, value]) => [name.replace(/^bert\./, ''), value]));
  for (const name of ['pooler.dense.weight', 'classifier.weight', 'classifier.bias']) tensors.delete(name);
  writeFileSync(path, Buffer.concat(writeSafetensors(tensors)));
  const { newNames, fileNames } = openCheckoutModel({ folder, options: {} }, 0);
  assert.deepEqual(newNames, ['bert.pooler.dense.weight', 'classifier.weight', 'classifier.bias']);
  assert.equal(fileNames.get('bert.embeddings.LayerNorm.bias'), 'embeddings.LayerNorm.bias');
});

interface Breaking {
  readonly what: string;
  readonly from: string;
  readonly breakIt: (folder: string) => void;
  readonly says: RegExp;
}

const change = (folder: string, name: string, make: (text: string) => string): void =>
  writeFileSync(join(folder, name), make(readFileSync(join(folder, name), 'utf8')));
const config = (fields: object) => (folder: string) =>
  change(folder, 'config.json', (text) => JSON.stringify({ ...JSON.parse(text), ...fields }));
const index = 'model.safetensors.index.json';

const breakings: readonly Breaking[] = [
  { what: 'an unknown family', from: 'bert', breakIt: config({ model_type: 'mamba' }), says: /"mamba".*export it/ },
  { what: 'no family', from: 'bert', breakIt: config({ model_type: 7 }), says: /no "model_type"/ },
  { what: 'a missing field', from: 'bert', breakIt: config({ hidden_size: undefined }), says: /"hidden_size"/ },
  { what: 'sizes that do not fit', from: 'bert', breakIt: config({ num_attention_heads: 3 }), says: /do not fit/ },
  { what: 'an unknown scaling', from: 'llama', breakIt: config({ rope_scaling: { type: 'yarn' } }), says: /rope_sc/ },
  {
    what: 'no config.json',
    from: 'bert',
    breakIt: (folder) => rmSync(join(folder, 'config.json')),
    says: /no config.json/,
  },
  {
    what: 'a config.json that is no JSON',
    from: 'bert',
    breakIt: (folder) => writeFileSync(join(folder, 'config.json'), '{'),
    says: /config.json is not JSON/,
  },
  {
    what: 'no weights',
    from: 'bert',
    breakIt: (folder) => rmSync(join(folder, 'model.safetensors')),
    says: /no model.safetensors/,
  },
  {
    what: "weights as Python's pickle",
    from: 'bert',
    breakIt: (folder) => renameSync(join(folder, 'model.safetensors'), join(folder, 'pytorch_model.bin')),
    says: /pytorch_model.bin.*save_pretrained/,
  },
  {
    what: 'weights that are cut off',
    from: 'bert',
    breakIt: (folder) => writeFileSync(join(folder, 'model.safetensors'), readFileSync(join(folder, 'config.json'))),
    says: /not a valid safetensors file/,
  },
  {
    what: 'a missing tensor',
    from: 'bert',
    breakIt: config({ num_hidden_layers: 3 }),
    says: /have no bert.encoder.layer.2.*do not belong/,
  },
  { what: 'another shape', from: 'bert', breakIt: config({ vocab_size: 50 }), says: /\[48, 16\].*\[50, 16\]/ },
  {
    what: 'a missing shard',
    from: 'qwen2',
    breakIt: (folder) => rmSync(join(folder, 'model-00002-of-00007.safetensors')),
    says: /names model-00002-of-00007.safetensors, which is not in/,
  },
  {
    what: 'an index that leads out of the folder',
    from: 'qwen2',
    breakIt: (folder) => change(folder, index, (text) => text.replace('model-00002', '../model-00002')),
    says: /no safetensors file in its folder/,
  },
  {
    what: 'an index that is wrong',
    from: 'qwen2',
    breakIt: (folder) => change(folder, index, (text) => text.replace('00002-of-00007', '00001-of-00007')),
    says: /says that model-00001-of-00007.safetensors holds/,
  },
  {
    what: 'an index without a map',
    from: 'qwen2',
    breakIt: (folder) => writeFileSync(join(folder, index), '{}'),
    says: /no "weight_map"/,
  },
];

for (const { what, from, breakIt, says } of breakings)
  test(`refused: ${what}`, (t) => {
    const folder = copyOf(from, t);
    breakIt(folder);
    assert.throws(
      () => openCheckoutModel({ folder, options: {} }, 0),
      (error) => error instanceof InputError && says.test(error.message),
    );
  });

test('refused: more tokens than the net has positions for', () => {
  assert.throws(
    () => openCheckoutModel({ folder: join(root, 'gpt2'), options: { sequence: 17 } }, 0),
    /--max-length 16/,
  );
});

test('a spec is a folder, with options', () => {
  const folder = join(root, 'bert');
  assert.deepEqual(checkoutSpec(folder), { folder, options: {} });
  assert.deepEqual(checkoutSpec(`${folder}:classes=4,dropout=0`), { folder, options: { classes: 4, dropout: 0 } });
  assert.equal(checkoutSpec('resnet-18:classes=4'), undefined);
  assert.throws(() => checkoutSpec(`${folder}:classes=0`), /"classes=0" is none/);
});

function copyOf(name: string, t: TestContext): string {
  const folder = mkdtempSync(join(tmpdir(), 'checkout-'));
  t.after(() => rmSync(folder, { recursive: true }));
  cpSync(join(root, name), folder, { recursive: true });
  return folder;
}
