// Pictures from the command line: the same losses over any number of workers, and one sentence for what is wrong.

import assert from 'node:assert/strict';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { temporaryFolder } from '../testing/command.ts';
import { startCommandHost } from '../testing/command-host.ts';
import { writePictures } from '../testing/picture-folders.ts';

const cwd = temporaryFolder();
const host = startCommandHost(cwd);
after(() => host.close());
await writePictures(join(cwd, 'pictures'), ['blue', 'green', 'red'], 8);

const train = ['train', '--model', 'conv-s:input=16,channels=3', '--batch', '8', '--micro-batch', '4', '--epochs', '1'];

/** One device, and a pipeline whose second stage is shared. */
const plans = [
  [{ layers: [0, 4], devices: ['worker-1'], samples: [4], inFlight: 1 }],
  [
    { layers: [0, 2], devices: ['worker-1'], samples: [4], inFlight: 2 },
    { layers: [2, 4], devices: ['worker-2', 'worker-3'], samples: [2, 2], inFlight: 1 },
  ],
];

/** The losses of a run. */
async function losses(...more: readonly string[]): Promise<readonly number[]> {
  const args = [...train, '--data', 'images:pictures', '--eval-split', '0.25', '--lr', '0.05', '--json', ...more];
  const end = await host.run({ args, cwd });
  assert.equal(end.code, 0, end.stderr);
  const events = end.stdout.trimEnd().split('\n');
  return events
    .map((line) => JSON.parse(line) as { event: string; loss: number })
    .filter(({ event }) => event === 'round')
    .map(({ loss }) => loss);
}

test('the same seeds give the same losses in this process, with one worker and with three', async () => {
  const augment = ['--augment', 'random-resized-crop,flip,color-jitter', '--mixup', '0.4', '--label-smoothing', '0.1'];
  const alone = await losses(...augment);
  assert.equal(alone.length, 3);
  for (const [index, stages] of plans.entries()) {
    const [file, workers] = [`plan-${index}.json`, new Set(stages.flatMap(({ devices }) => devices)).size];
    const batches = { batchSize: 8, microBatchSize: 4, microBatchCount: 2 };
    await writeFile(join(cwd, file), JSON.stringify({ planner: 'by hand', schedule: '1f1b', ...batches, stages }));
    const over = await losses(...augment, '--workers', `${workers}`, '--plan', file);
    assert.equal(over.length, alone.length);
    over.forEach((loss, round) => {
      assert.ok(Math.abs(loss - (alone[round] ?? 0)) < 1e-5, `round ${round} with ${workers}: ${loss}`);
    });
  }
});

test('what is wrong with pictures is one sentence and exit code 2', async () => {
  await mkdir(join(cwd, 'empty', 'cat'), { recursive: true });
  await writePictures(join(cwd, 'empty'), ['dog'], 1);
  await writePictures(join(cwd, 'single'), ['dog'], 1);
  await writePictures(join(cwd, 'text'), ['cat', 'dog'], 1);
  await writeFile(join(cwd, 'text', 'cat', 'notes.jpg'), 'no picture');
  const cases: readonly (readonly [args: string, says: RegExp])[] = [
    ['--data images:nowhere', /nowhere cannot be read: there is no such file or folder/],
    ['--data images:empty', /The class folder empty.cat holds no picture .*: add some, or remove it\./],
    ['--data images:single', /single holds one class only \(dog\), and nothing can be told apart: add another/],
    ['--data images:pictures/red', /pictures.red holds no folders; pictures lie in one folder for each class/],
    ['--data images:text', /notes\.jpg cannot be used: it is no picture that can be decoded/],
    ['--data images:pictures --augment flop', /--augment has no "flop": give one or more of random-resized-crop/],
    ['--data images:pictures --image-size 32', /--image-size 32 does not fit the model, whose input is 16x16/],
    [
      '--data images:pictures --loss mse --mixup 0.2',
      /--mixup concerns labels that are classes, and --loss mse has none/,
    ],
    ['--data synthetic:3x16x16 --augment flip', /--augment flip concerns pictures \(images:DIR\), and the data are/],
  ];
  for (const [args, says] of cases) {
    const end = await host.run({ args: [...train, ...args.split(' ')], cwd });
    assert.equal(end.code, 2, `${args}: ${end.stdout}${end.stderr}`);
    assert.match(end.stderr, says);
    assert.equal(end.stderr.trimEnd().split('\n').length, 1, end.stderr);
  }
  await rm(join(cwd, 'empty'), { recursive: true });
});
