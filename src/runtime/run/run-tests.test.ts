// The best model is kept and training ends early, against the same in a few lines: one weight w whose loss is w², and a
// momentum that carries it beyond 0 and back.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { resolveSettings } from '../../cli/settings.ts';
import { systemClock } from '../../clock.ts';
import { createReferenceEngine } from '../../engine/reference.ts';
import { InputError } from '../../errors.ts';
import { GraphBuilder } from '../../graph/builder.ts';
import { exportGraph } from '../../graph/onnx/export.ts';
import { importModel } from '../../graph/onnx/import.ts';
import { tensor } from '../../graph/tensor.ts';
import { createMemoryDisk } from '../../storage/memory-disk.ts';
import { createRunFolder, type RunFolder, resumeRunFolder } from '../../storage/run-folder.ts';
import { createDataset, inputField, labelField } from '../../training/data/dataset.ts';
import type { RunEvent } from '../protocol/events.ts';
import { type PreparedRun, prepareRunOn } from './prepare.ts';
import { runPreparedOn, type SessionHost, type SessionResult } from './session.ts';

const [rate, momentum, patience] = [0.05, 0.8, 3];

/** w after each round, until as many as `patience` in a row are no better. */
function oracle(stepCount: number): { readonly weights: readonly number[]; readonly best: number } {
  let [w, velocity, best] = [2, 0, 0];
  const weights: number[] = [];
  for (let round = 1; round <= stepCount; round++) {
    velocity = momentum * velocity + 2 * w;
    w -= rate * velocity;
    weights.push(w);
    if (best === 0 || w ** 2 < (weights[best - 1] as number) ** 2) best = round;
    if (round - best >= patience) break;
  }
  return { weights, best };
}

function prepared(flags: Readonly<Record<string, unknown>>, checkpoint?: PreparedRun['checkpoint']): PreparedRun {
  const b = new GraphBuilder('scale', { seed: 1 });
  const built = b.build([b.linear(b.input('x', 'float32', ['N', 1]), { name: 'w', outFeatures: 1, bias: false })]);
  const graph = { ...built, initializers: new Map([['w.weight', tensor('float32', [1, 1], [2])]]) };
  const data = createDataset(
    'ones',
    [inputField('x', tensor('float32', [2, 1], [1, 1]), 'x')],
    labelField(tensor('float32', [2, 1], [0, 0]), 'y'),
  );
  const fixed = { model: 'scale', data: 'ones', batch: 2, loss: 'mse', lr: rate, momentum, evalEvery: 1 };
  const settings = resolveSettings({ ...fixed, checkpointEvery: 1, ...flags }, {}, 'the flags');
  const model = {
    name: 'scale',
    graph,
    notes: [],
    write: (trained: Parameters<typeof exportGraph>[1]) => exportGraph(graph, trained),
  };
  const resumed = checkpoint === undefined ? {} : { checkpoint };
  return prepareRunOn(() => {}, {
    settings,
    model,
    train: data,
    test: flags['steps'] === 1 ? undefined : data,
    ...resumed,
  });
}

const host: SessionHost = {
  createEngine: async () => createReferenceEngine(),
  memoryMiB: () => 1000,
  runCluster: () => assert.fail('there are no workers'),
};

async function run(
  input: PreparedRun,
  folder: RunFolder,
): Promise<{ readonly result: SessionResult; readonly events: readonly RunEvent[] }> {
  const events: RunEvent[] = [];
  const environment = {
    clock: systemClock,
    observe: (event: RunEvent) => void events.push(event),
    signal: new AbortController().signal,
  };
  const result = await runPreparedOn(host, input, environment, folder);
  await folder.close();
  return { result, events };
}

async function weightOf(folder: RunFolder, name: string): Promise<number> {
  const { graph } = importModel(await folder.disk.read(`${folder.path}/${name}`));
  return Number(graph.initializers.get('w.weight')?.data[0]);
}

function close(found: number, expected: number | undefined): void {
  assert.ok(expected !== undefined && Math.abs(found - expected) < 1e-5, `${found} and ${expected}`);
}

test('training ends after three tests without a better one, and the model is the best of all', async () => {
  const { weights, best } = oracle(40);
  assert.ok(best > 3 && weights.length === best + patience && weights.length < 40, `${best} of ${weights.length}`);
  const disk = createMemoryDisk();
  const folder = await createRunFolder({ date: new Date(0), out: 'run' }, { disk });
  const { result, events } = await run(prepared({ steps: 40, patience }), folder);
  assert.deepEqual([result.rounds, result.stopped, result.modelRound], [weights.length, false, best]);
  close(await weightOf(folder, 'model.onnx'), weights[best - 1]);
  close(Number(result.state.parameter.get('w.weight')?.data[0]), weights.at(-1));
  close(result.evaluation?.loss ?? -1, (weights[best - 1] as number) ** 2);
  assert.equal(events.filter(({ kind }) => kind === 'evaluated').length, weights.length);
  assert.deepEqual(
    events.flatMap((event) => (event.kind === 'early-stop' ? [[event.round, event.bestRound, event.testsSince]] : [])),
    [[weights.length, best, patience]],
  );
});

test('without patience all rounds are done; a resumed run knows the best of those before', async () => {
  const { weights, best } = oracle(40);
  const disk = createMemoryDisk();
  const folder = await createRunFolder({ date: new Date(0), out: 'run' }, { disk });
  const first = await run(prepared({ steps: best + 1, keepBest: 'loss' }), folder);
  assert.deepEqual([first.result.rounds, first.result.modelRound], [best + 1, best]);
  const { parameter, optimizer, buffer } = first.result.state;
  const state = { model: 'scale', batch: 2, seed: 0, optimizer: 'sgd' };
  const checkpoint = { round: best + 1, parameters: parameter, buffers: buffer, optimizerState: optimizer, state };
  const resumed = await resumeRunFolder('run', best + 1, { disk });
  const next = await run(prepared({ steps: best + 2, keepBest: 'loss' }, checkpoint), resumed);
  assert.deepEqual([next.result.rounds, next.result.modelRound], [best + 2, best]);
  close(await weightOf(folder, 'model.onnx'), weights[best - 1]);
  close(next.result.evaluation?.loss ?? -1, (weights[best - 1] as number) ** 2);
});

test('a metric that cannot be had is refused in one sentence', () => {
  const cases: readonly (readonly [Record<string, unknown>, RegExp])[] = [
    [{ steps: 1, patience: 2 }, /^--patience 2 goes by tests, and the data have no test part: give --eval-split/],
    [
      { steps: 2, keepBest: 'accuracy' },
      /^--keep-best accuracy does not go with --loss mse, which learns numbers: use/,
    ],
    [
      { steps: 2, keepBest: 'loss', evalEvery: 0 },
      /^--keep-best loss goes by tests while training, and --eval-every 0/,
    ],
  ];
  for (const [flags, message] of cases)
    assert.throws(
      () => prepared(flags),
      (error: unknown) => error instanceof InputError && message.test(error.message),
    );
});
