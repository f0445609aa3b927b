// The report of a run whose names are hostile: one page that asks for nothing and lets nothing in.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';
import { inflateSync } from 'node:zlib';
import { InputError } from '../../errors.ts';
import { tensor } from '../../graph/tensor.ts';
import { writeFileAtomically } from '../../storage/atomic.ts';
import { createMemoryDisk, type MemoryDisk } from '../../storage/memory-disk.ts';
import { createDataset, inputField, labelField } from '../../training/data/dataset.ts';
import { readRunFacts } from './read-run.ts';
import { reportPage } from './report-page.ts';
import { parseTestResults, type TestResults, testResults } from './test-results.ts';

const hostile = '<script>alert("1")</script>';

/** Two pictures of 8 × 8 that are dark and bright, of which the model takes the bright one for a dark one. */
function results(): Promise<TestResults> {
  const pixels = Array.from({ length: 128 }, (_, index) => (index < 64 ? 0 : 255));
  const test = createDataset(
    'data',
    [inputField('x', tensor('uint8', [2, 1, 8, 8], pixels), 'x')],
    labelField(tensor('int64', [2], [0, 1]), 'y'),
  );
  const worst = [
    { sample: 1, loss: 2.5, label: [1], predicted: [0], probability: 0.9 },
    { sample: 0, loss: 0.1, label: [0], predicted: [0], probability: 0.8 },
  ];
  const details = {
    confusion: [
      [1, 0],
      [1, 0],
    ],
    worst,
  };
  const evaluation = { accuracy: 0.5, loss: 1.3, sampleCount: 2, details };
  const use = { loss: 'cross-entropy', tokenizer: undefined, classNames: ['dark', hostile] } as const;
  return testResults({ round: 3, evaluation, test, ...use });
}

async function folder(): Promise<MemoryDisk> {
  const disk = createMemoryDisk({}, ['run']);
  const write = (name: string, text: string): Promise<void> =>
    writeFileAtomically(`run/${name}`, [new TextEncoder().encode(text)], disk);
  const rounds = [0, 1, 2].map((round) => ({
    round,
    epoch: 0,
    loss: 3 - round,
    samplesPerS: 10 + round,
    accuracy: 0.5,
  }));
  await write('metrics.jsonl', rounds.map((line) => `${JSON.stringify(line)}\n`).join(''));
  const events = [
    { event: 'joined', atMs: 0, device: hostile, cores: 2, memoryMiB: 100, engine: 'e' },
    { event: 'phase', atMs: 10, phase: 'profiling' },
    { event: 'phase', atMs: 1010, phase: 'training' },
    { event: 'left', atMs: 2000, device: hostile, reason: '<b>' },
    { event: 'evaluated', atMs: 3010, round: 3, loss: 1.3, accuracy: 0.5, sampleCount: 2 },
  ];
  await write('events.jsonl', events.map((line) => `${JSON.stringify(line)}\n`).join(''));
  await write('config.yaml', `model: ${JSON.stringify(hostile)}\ndata: "a & b"\n`);
  await write('evaluation.json', JSON.stringify(await results()));
  return disk;
}

test('a page has no scripts, allows one style by its hash and pictures in itself, and escapes every name', async () => {
  const page = reportPage(await readRunFacts('run', await folder()));
  assert.ok(!page.includes('<script') && !page.includes('<b>1') && !/ style=| on[a-z]+=|https?:/.test(page), page);
  const [, style = ''] = /<style>([\s\S]*)<\/style>/.exec(page) ?? [];
  const hash = createHash('sha256').update(style).digest('base64');
  assert.ok(page.includes(`content="default-src 'none'; img-src data:; style-src 'sha256-${hash}';`), 'policy');
  assert.ok(page.includes('&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt; on a &amp; b'));
  for (const part of ['50.00 %', 'after 3 rounds', 'measuring layers', '1.0 s', '2.0 s', 'left: &lt;b&gt;'])
    assert.ok(page.includes(part), part);
});

test('a worst sample is a PNG of its pixels', async () => {
  const [worst] = (await results()).worst;
  assert.equal(worst?.name, 'sample 1');
  assert.deepEqual([worst?.label, worst?.predicted], [hostile, 'dark']);
  const png = Buffer.from(worst?.picture?.split(',')[1] ?? '', 'base64');
  assert.equal(png.subarray(1, 4).toString(), 'PNG');
  assert.deepEqual([png.readUInt32BE(16), png.readUInt32BE(20)], [8, 8]);
  const rows = inflateSync(png.subarray(png.indexOf('IDAT') + 4, png.indexOf('IEND') - 8));
  assert.deepEqual([...rows.subarray(0, 10)], [0, 255, 255, 255, 255, 255, 255, 255, 255, 0]);
});

test('a damaged evaluation.json is refused in one sentence', async () => {
  const disk = await folder();
  await writeFileAtomically('run/evaluation.json', [new TextEncoder().encode('{"round": -1}')], disk);
  await assert.rejects(
    () => readRunFacts('run', disk),
    (error: unknown) => error instanceof InputError && /evaluation\.json is not what a run writes/.test(error.message),
  );
  const good = await results();
  assert.throws(() => parseTestResults({ ...good, confusion: [[1]] }), /square/);
  const [sample] = good.worst;
  assert.throws(() => parseTestResults({ ...good, worst: [{ ...sample, picture: 'data:text/html,x' }] }));
});
