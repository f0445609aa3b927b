import assert from 'node:assert/strict';
import test from 'node:test';
import { RunError } from '../errors.ts';
import type { Disk } from './disk.ts';
import { keepLines, openLineLog, readLines } from './line-log.ts';
import { createMemoryDisk, type MemoryDisk } from './memory-disk.ts';

const path = '/r/metrics.jsonl';
const text = async (disk: Disk): Promise<string> => new TextDecoder().decode(await disk.read(path));

async function put(disk: Disk, contents: string): Promise<void> {
  const file = await disk.create(path);
  await file.write(new TextEncoder().encode(contents));
  await file.close();
}

/** A disk whose operations fail with `code` while `failing()` is true. */
function moody(failing: (kind: string) => boolean, code = 'ENOSPC'): MemoryDisk {
  return createMemoryDisk({ fault: ({ kind }) => (failing(kind) ? code : undefined) }, ['/r']);
}

test('lines arrive in order and whole, without waiting between them', async () => {
  const disk = createMemoryDisk({}, ['/r']);
  const log = await openLineLog(path, { disk });
  const operations = disk.operationCount();
  for (let round = 0; round < 1000; round++) log.append({ round, text: 'a\nb' });
  await log.flush();
  assert.ok(disk.operationCount() - operations <= 2, 'lines that wait are written together');
  log.append({ last: true });
  await log.close();
  const lines = (await text(disk)).split('\n');
  assert.deepEqual(
    [lines.length, lines[0], lines[999], lines[1000], lines[1001]],
    [1002, '{"round":0,"text":"a\\nb"}', '{"round":999,"text":"a\\nb"}', '{"last":true}', ''],
  );
});

test('a log is continued; an incomplete last line is removed first', async () => {
  const disk = createMemoryDisk({}, ['/r']);
  await put(disk, '{"round":0}\n{"rou');
  const log = await openLineLog(path, { disk });
  log.append({ round: 1 });
  await log.close();
  assert.equal(await text(disk), '{"round":0}\n{"round":1}\n');
});

test('closing twice is no error; appending after it is our mistake', async () => {
  const log = await openLineLog(path, { disk: createMemoryDisk({}, ['/r']) });
  await log.close();
  await log.close();
  assert.throws(() => log.append({}), /is closed/);
});

const full = new RunError('/r/metrics.jsonl cannot be written: the disk is full; make room or choose another folder.');

test('a failed write surfaces at the next append, flush and close', async () => {
  const disk = moody((kind) => kind === 'write');
  const log = await openLineLog(path, { disk });
  log.append({ round: 0 });
  await assert.rejects(log.flush(), full);
  assert.throws(() => log.append({ round: 1 }), full);
  await assert.rejects(log.close(), full);
});

test('a log that cannot be opened, or not be synced, is an error', async () => {
  await assert.rejects(
    openLineLog('/none/x', { disk: createMemoryDisk() }),
    new RunError('/none/x cannot be written: there is no such file or folder; make room or choose another folder.'),
  );
  const log = await openLineLog(path, { disk: moody((kind) => kind === 'sync') });
  log.append({});
  await assert.rejects(log.close(), full);
});

test('with warnings, a full disk costs lines, says so once, and lines go on whole when there is room again', async () => {
  let failing = false;
  const warnings: string[] = [];
  const disk = moody((kind) => failing && kind === 'write');
  const log = await openLineLog(path, { disk, onWarning: (warning) => warnings.push(warning) });
  log.append({ round: 0 });
  await log.flush();
  failing = true;
  for (const round of [1, 2, 3]) {
    log.append({ round });
    await log.flush();
  }
  assert.ok(!(await text(disk)).endsWith('\n'), 'half a line is in the file');
  failing = false;
  log.append({ round: 4 });
  await log.close();
  assert.equal(await text(disk), '{"round":0}\n{"round":4}\n');
  assert.deepEqual(warnings, [
    `${full.message} Training goes on; lines are lost until then.`,
    '/r/metrics.jsonl can be written again; 3 lines are missing.',
  ]);
});

test('with warnings, a file that cannot be opened is tried again with each line', async () => {
  let failing = true;
  const warnings: string[] = [];
  const disk = moody((kind) => failing && kind === 'append', 'EROFS');
  const log = await openLineLog(path, { disk, onWarning: (warning) => warnings.push(warning) });
  log.append({ round: 0 });
  await log.flush();
  failing = false;
  log.append({ round: 1 });
  await log.close();
  assert.equal(await text(disk), '{"round":1}\n');
  assert.equal(warnings.length, 2);
  assert.match(warnings[0] ?? '', /the disk is read-only/);
});

test('lines that wait have a limit', async () => {
  let release = (): void => undefined;
  const gate = new Promise<void>((resolve) => {
    release = resolve;
  });
  const disk = createMemoryDisk({}, ['/r']);
  const slow: Disk = {
    ...disk,
    append: async (name) => {
      const file = await disk.append(name);
      return { ...file, write: (bytes) => gate.then(() => file.write(bytes)) };
    },
  };
  const warnings: string[] = [];
  const log = await openLineLog(path, { disk: slow, onWarning: (warning) => warnings.push(warning) });
  const big = 'x'.repeat(1024 * 1024);
  for (let round = 0; round < 20; round++) log.append({ round, big });
  assert.equal(warnings.length, 1);
  assert.match(warnings[0] ?? '', /the disk is too slow/);
  release();
  await log.close();
  const records = (await readLines(path, disk)) ?? [];
  // The first is on its way, 15 fit into 16 MiB, and 4 are lost.
  assert.deepEqual(
    records.map((record) => record.round),
    Array.from({ length: 16 }, (_, round) => round),
  );
  assert.equal(warnings[1], '/r/metrics.jsonl can be written again; 4 lines are missing.');
});

test('keepLines leaves the records asked for, and drops what is no record', async () => {
  const disk = createMemoryDisk({}, ['/r']);
  await keepLines(path, () => true, disk);
  assert.equal(await readLines(path, disk), undefined);
  await put(disk, '{"round":0}\nnull\n[1]\n{"round":1,"x":"ü"}\n\n{"round":2}\n{"rou');
  await keepLines(path, (record) => Number(record.round) < 2, disk);
  assert.equal(await text(disk), '{"round":0}\n{"round":1,"x":"ü"}\n');
});
