import assert from 'node:assert/strict';
import test from 'node:test';
import { RunError } from '../errors.ts';
import { createRandom } from '../random.ts';
import { isTemporary, makeFolders, writeFileAtomically } from './atomic.ts';
import type { Disk } from './disk.ts';
import { createMemoryDisk, type MemoryDisk, type MemoryDiskOptions } from './memory-disk.ts';

const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);
const text = async (disk: Disk, path: string): Promise<string> => new TextDecoder().decode(await disk.read(path));

/** A disk on which /d/f holds "old", with faults from here on. */
async function withOld(options: MemoryDiskOptions = {}): Promise<MemoryDisk> {
  const disk = createMemoryDisk({}, ['/d']);
  await writeFileAtomically('/d/f', [bytes('old')], disk);
  return disk.restart(createRandom(0), options);
}

test('the pieces replace the file; nothing else is left', async () => {
  const disk = await withOld();
  await writeFileAtomically('/d/f', [bytes('ne'), bytes(''), bytes('w')], disk);
  assert.equal(await text(disk, '/d/f'), 'new');
  assert.deepEqual(await disk.list('/d'), ['f']);
});

test('a crash at any operation leaves the old or the new file; after success it is the new one', async () => {
  const whole = await withOld();
  const operationCount = await writeFileAtomically('/d/f', [bytes('ne'), bytes('w')], whole).then(() =>
    whole.operationCount(),
  );
  assert.equal(operationCount, 7); // create, write, write, sync, close, rename, syncFolder
  const found = new Set<string>();
  for (let crash = 1; crash <= operationCount + 1; crash++) {
    for (let seed = 0; seed < 50; seed++) {
      const disk = await withOld({ fault: ({ number }) => (number === crash ? 'crash' : undefined) });
      const succeeded = await writeFileAtomically('/d/f', [bytes('ne'), bytes('w')], disk).then(
        () => true,
        () => false,
      );
      const contents = await text(disk.restart(createRandom(seed)), '/d/f');
      assert.ok(
        succeeded ? contents === 'new' : contents === 'old' || contents === 'new',
        `crash ${crash}, seed ${seed}: ${JSON.stringify(contents)}`,
      );
      found.add(`${crash} ${contents}`);
    }
  }
  // Up to the rename it is the old one; from then on the journal decides, until the folder is synced.
  assert.deepEqual([...found].sort(), [
    '1 old',
    '2 old',
    '3 old',
    '4 old',
    '5 old',
    '6 old',
    '7 new',
    '7 old',
    '8 new',
  ]);
});

test('the test above would notice a missing sync', async () => {
  for (const [kind, bad] of [
    ['sync', /^(|ne?|\0+|n\0\0|ne\0)$/],
    ['syncFolder', /^old$/],
  ] as const) {
    const found: string[] = [];
    for (let seed = 0; seed < 50; seed++) {
      const disk = await withOld();
      const lazy: Disk =
        kind === 'syncFolder'
          ? { ...disk, syncFolder: async () => undefined }
          : { ...disk, create: async (path) => ({ ...(await disk.create(path)), sync: async () => undefined }) };
      await writeFileAtomically('/d/f', [bytes('new')], lazy);
      found.push(await text(disk.restart(createRandom(seed)), '/d/f'));
    }
    assert.ok(
      found.some((contents) => bad.test(contents)),
      `${kind}: ${found.join()}`,
    );
  }
});

test('an error at any operation is a RunError with the path; the old file stands and the room is given back', async () => {
  for (let at = 1; at <= 6; at++) {
    const disk = await withOld({ fault: ({ number }) => (number === at ? 'ENOSPC' : undefined) });
    await assert.rejects(
      writeFileAtomically('/d/f', [bytes('ne'), bytes('w')], disk),
      new RunError('/d/f cannot be written: the disk is full; make room or choose another folder.'),
    );
    assert.deepEqual([await text(disk, '/d/f'), await disk.list('/d')], ['old', ['f']], `operation ${at}`);
  }
});

test('two writers of one file do not disturb each other', async () => {
  const disk = await withOld();
  await Promise.all(['one', 'two', 'six'].map((contents) => writeFileAtomically('/d/f', [bytes(contents)], disk)));
  assert.ok(['one', 'two', 'six'].includes(await text(disk, '/d/f')));
  assert.deepEqual(await disk.list('/d'), ['f']);
});

test('a temporary file that a dead writer left is no obstacle, and known by its name', async () => {
  const disk = await withOld();
  await disk.create('/d/.f.0.tmp');
  await writeFileAtomically('/d/f', [bytes('new')], disk);
  assert.equal(await text(disk, '/d/f'), 'new');
  assert.deepEqual(
    (await disk.list('/d')).map((name) => [name, isTemporary(name)]),
    [
      ['.f.0.tmp', true],
      ['f', false],
    ],
  );
});

test('folders are made with those they lie in, and survive a crash', async () => {
  const disk = createMemoryDisk();
  await makeFolders('/a/b/c', disk);
  await makeFolders('/a/b/c', disk);
  assert.deepEqual(await disk.restart(createRandom(1)).list('/a/b'), ['c']);
  await writeFileAtomically('/a/f', [], disk);
  await assert.rejects(
    makeFolders('/a/f/x', disk),
    new RunError(
      '/a/f/x cannot be written: a part of the path is a file, not a folder; make room or choose another folder.',
    ),
  );
  const stubborn: Disk = {
    ...disk,
    makeFolder: async (path) =>
      Promise.reject(Object.assign(new Error('raw'), { code: path === '/proc' ? 'EEXIST' : 'ENOENT' })),
  };
  await assert.rejects(makeFolders('/proc/x', stubborn), RunError);
});
