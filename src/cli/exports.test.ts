// Models as PyTorch's exporters write them in their default forms: for inference, for one sample, constants folded.
// What the file holds in place of PyTorch's parameters is trained, and every loss is PyTorch's. The nets:
// test/fixtures/exports/make_fixtures.py.

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { InferenceSession, Tensor as OrtTensor } from 'onnxruntime-node';
import { systemClock } from '../clock.ts';
import type { Tensor } from '../graph/tensor.ts';
import { loadModel } from '../runtime/host/models.ts';
import { runSession } from '../runtime/host/session-here.ts';
import { loadDataset } from '../storage/node/datasets.ts';
import { fixtureFolder } from '../testing/pytorch-fixtures.ts';
import { resolveSettings } from './settings.ts';

interface Expected {
  readonly losses: readonly number[];
  readonly models: readonly { readonly file: string; readonly flags: Readonly<Record<string, string>> }[];
}

/** Accepted: 1e-4, relative. Seen: 2e-6. */
const tolerance = 1e-4;
const root = fixtureFolder('exports');

for (const net of readdirSync(root).filter((name) => !name.includes('.'))) {
  const { losses, models } = JSON.parse(readFileSync(join(root, net, 'expected.json'), 'utf8')) as Expected;
  for (const { file, flags } of models) {
    test(`${net}/${file}: PyTorch's losses`, async () => {
      const found = await trained(net, file, flags);
      assert.equal(found.length, losses.length);
      for (const [step, expected] of losses.entries()) {
        const difference = Math.abs((found[step] as number) - expected) / expected;
        assert.ok(difference < tolerance, `step ${step}: ${found[step]}, PyTorch's ${expected}`);
      }
    });
  }
}

test('a file in bfloat16 is written in float32, one in float64 in float64 again; ONNX Runtime runs both', async () => {
  for (const [net, type, array] of [
    ['bfloat16', 'float32', Float32Array],
    ['float64', 'float64', Float64Array],
  ] as const) {
    const file = join(root, net, `${net === 'bfloat16' ? net : 'training'}.onnx`);
    const model = await loadModel(file, 0);
    const weights = new Map(model.graph.parameters.map((name) => [name, model.graph.initializers.get(name) as Tensor]));
    const session = await InferenceSession.create(model.write(weights));
    const { y } = await session.run({ x: new OrtTensor(type, new array(12).fill(0.5), [2, 6]) });
    assert.ok(y !== undefined);
    assert.equal(y.type, type);
    assert.deepEqual(y.dims, [2, 5]);
    assert.ok((y.data as Float32Array).every(Number.isFinite));
  }
});

async function trained(net: string, file: string, flags: Readonly<Record<string, string>>): Promise<readonly number[]> {
  const document = {
    model: join(root, net, file),
    data: `npy:${join(root, net, 'X.npy')},${join(root, net, 'Y.npy')}`,
    batch: 8,
    steps: 6,
    lr: 0.1,
    momentum: 0.9,
    ...flags,
  };
  const settings = resolveSettings({ shuffle: false }, document, 'the flags');
  const { batchNorm } = settings;
  const model = await loadModel(settings.model, settings.seed, batchNorm === undefined ? {} : { batchNorm });
  const { train } = await loadDataset(settings.data);
  const environment = { clock: systemClock, observe: () => {}, signal: new AbortController().signal };
  return (await runSession({ settings, model, train, test: undefined }, environment)).losses;
}
