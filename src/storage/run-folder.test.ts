import assert from 'node:assert/strict';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { InputError, RunError } from '../errors.ts';
import { createRandom } from '../random.ts';
import type { Disk } from './disk.ts';
import { createMemoryDisk } from './memory-disk.ts';
import { nodeDisk } from './node/disk.ts';
import { createRunFolder, type MetricsLine, resumeRunFolder } from './run-folder.ts';

const date = new Date(2026, 10, 5, 23, 59);
const line = (round: number): MetricsLine => ({ round, epoch: 0, loss: 1 / (round + 1), samplesPerS: 10, lr: 0.1 });

async function inTemporaryFolder(use: (folder: string) => Promise<void>): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), 'asteroid-runs-'));
  try {
    await use(folder);
  } finally {
    await rm(folder, { recursive: true });
  }
}

test('a run gets the date and the next number, its documents and its logs', () =>
  inTemporaryFolder(async (folder) => {
    const parent = join(folder, 'runs');
    const first = await createRunFolder({ date, parent }, { disk: nodeDisk });
    assert.equal(first.path, join(parent, '2026-11-05-1'));
    await first.write('config.yaml', 'seed: 1\n');
    await first.write('plan.json', '{}');
    await first.write('model.onnx', Uint8Array.of(8, 9));
    first.metrics.append(line(0));
    first.events.append({ kind: 'join', device: 'a' });
    await first.close();
    const read = (name: string): Promise<string> => readFile(join(first.path, name), 'utf8');
    assert.equal(await read('metrics.jsonl'), '{"round":0,"epoch":0,"loss":1,"samplesPerS":10,"lr":0.1}\n');
    assert.equal(await read('events.jsonl'), '{"kind":"join","device":"a"}\n');
    assert.deepEqual([await read('config.yaml'), await read('model.onnx')], ['seed: 1\n', '\b\t']);
    assert.equal(first.checkpointsPath, join(first.path, 'checkpoints'));
    await mkdir(join(parent, '2026-11-05-41'));
    const next = await createRunFolder({ date, parent }, { disk: nodeDisk });
    assert.equal(next.path, join(parent, '2026-11-05-42'));
    await next.close();
  }));

test('of runs that start together each has a folder of its own', () =>
  inTemporaryFolder(async (parent) => {
    const runs = await Promise.all(
      Array.from({ length: 20 }, () => createRunFolder({ date, parent }, { disk: nodeDisk })),
    );
    const numbers = runs.map((run) => Number(run.path.split('-').at(-1))).sort((a, b) => a - b);
    assert.deepEqual(
      numbers,
      Array.from({ length: 20 }, (_, index) => index + 1),
    );
    await Promise.all(runs.map((run) => run.close()));
  }));

test('--out: an absent or empty folder is taken, by one run only', () =>
  inTemporaryFolder(async (folder) => {
    const out = join(folder, 'a', 'b');
    const results = await Promise.allSettled(
      Array.from({ length: 5 }, () => createRunFolder({ date, out }, { disk: nodeDisk })),
    );
    assert.equal(results.filter((result) => result.status === 'fulfilled').length, 1);
    for (const result of results) {
      if (result.status === 'rejected') assert.ok(result.reason instanceof InputError);
      else await result.value.close();
    }
  }));

test('--out: a run, any other contents, and a file are refused, each with its fix', () =>
  inTemporaryFolder(async (folder) => {
    const out = join(folder, 'run');
    await (await createRunFolder({ date, out }, { disk: nodeDisk })).close();
    await assert.rejects(
      createRunFolder({ date, out }, { disk: nodeDisk }),
      new InputError(`${out} holds a run already; go on with it by --resume ${out}, or choose another --out.`),
    );
    await writeFile(join(folder, 'notes'), '');
    await assert.rejects(
      createRunFolder({ date, out: folder }, { disk: nodeDisk }),
      new InputError(`${folder} is not empty (it holds notes); choose another --out.`),
    );
    await assert.rejects(
      createRunFolder({ date, out: join(folder, 'notes') }, { disk: nodeDisk }),
      /^InputError: .*notes cannot be read: a part of the path is a file, not a folder/,
    );
  }));

test('a resumed run drops metrics of rounds that come again, and temporary files', () =>
  inTemporaryFolder(async (folder) => {
    const out = join(folder, 'run');
    const run = await createRunFolder({ date, out }, { disk: nodeDisk });
    for (const round of [0, 1, 2, 3]) run.metrics.append(line(round));
    run.events.append({ kind: 'start' });
    await run.close();
    await writeFile(join(out, '.plan.json.0.tmp'), 'half');
    const again = await resumeRunFolder(out, 2, { disk: nodeDisk });
    again.metrics.append({ ...line(2), lr: 0.5 });
    again.events.append({ kind: 'resume' });
    await again.close();
    const lines = (await readFile(join(out, 'metrics.jsonl'), 'utf8'))
      .trim()
      .split('\n')
      .map((text) => JSON.parse(text) as MetricsLine);
    assert.deepEqual(
      lines.map(({ round, lr }) => [round, lr]),
      [
        [0, 0.1],
        [1, 0.1],
        [2, 0.5],
      ],
    );
    assert.equal(await readFile(join(out, 'events.jsonl'), 'utf8'), '{"kind":"start"}\n{"kind":"resume"}\n');
    await assert.rejects(readFile(join(out, '.plan.json.0.tmp')));
  }));

test('only a run can be resumed', () =>
  inTemporaryFolder(async (folder) => {
    await assert.rejects(
      resumeRunFolder(folder, 0, { disk: nodeDisk }),
      new InputError(
        `${folder} is not the folder of a run (it has no checkpoints); name the folder that --out or the run's last lines named.`,
      ),
    );
    await assert.rejects(
      resumeRunFolder(join(folder, 'none'), 0, { disk: nodeDisk }),
      /^InputError: .*none cannot be read: there is no such file or folder/,
    );
  }));

test('a disk that refuses is a RunError with the path', async () => {
  const readOnly = createMemoryDisk({ fault: ({ kind }) => (kind === 'makeFolder' ? 'EROFS' : undefined) }, ['/runs']);
  await assert.rejects(createRunFolder({ date, parent: '/runs' }, { disk: readOnly }), RunError);
  let failing = false;
  const filling = createMemoryDisk({ fault: ({ kind }) => (failing && kind === 'write' ? 'ENOSPC' : undefined) }, [
    '/runs',
  ]);
  const run = await createRunFolder({ date, parent: '/runs' }, { disk: filling });
  failing = true;
  await assert.rejects(
    run.write('trace.json', '[]'),
    new RunError(
      '/runs/2026-11-05-1/trace.json cannot be written: the disk is full; make room or choose another folder.',
    ),
  );
  run.metrics.append(line(0));
  await assert.rejects(
    run.close(),
    new RunError(
      '/runs/2026-11-05-1/metrics.jsonl cannot be written: the disk is full; make room or choose another folder.',
    ),
  );
});

test('with warnings, logs on a full disk do not stop the run', async () => {
  const warnings: string[] = [];
  const disk: Disk = createMemoryDisk({ fault: ({ kind }) => (kind === 'write' ? 'ENOSPC' : undefined) }, ['/runs']);
  const run = await createRunFolder(
    { date, parent: '/runs' },
    { disk, onWarning: (warning) => warnings.push(warning) },
  );
  for (const round of [0, 1]) run.metrics.append(line(round));
  run.events.append({ kind: 'x' });
  await run.close();
  assert.equal(warnings.length, 2);
});

test('a new run survives a power cut', async () => {
  for (let seed = 0; seed < 20; seed++) {
    const disk = createMemoryDisk({}, ['/']);
    const run = await createRunFolder({ date, parent: '/runs' }, { disk });
    await run.write('config.yaml', 'seed: 1\n');
    const after = disk.restart(createRandom(seed));
    await (await resumeRunFolder(run.path, 0, { disk: after })).close();
  }
});
