// One acceptance suite for both disks; then what only the one in memory can do: lose power.

import assert from 'node:assert/strict';
import { mkdtemp, rm, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { createRandom } from '../../random.ts';
import { type Disk, errorCode, readError, writeError } from '../disk.ts';
import { createMemoryDisk } from '../memory-disk.ts';
import { nodeDisk } from './disk.ts';

const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);
const text = async (disk: Disk, path: string): Promise<string> => new TextDecoder().decode(await disk.read(path));

async function put(disk: Disk, path: string, contents: string): Promise<void> {
  const file = await disk.create(path);
  await file.write(bytes(contents));
  await file.sync();
  await file.close();
}

async function code(work: Promise<unknown>): Promise<string | undefined> {
  return work.then(() => 'no error', errorCode);
}

const disks: readonly (readonly [string, (use: (disk: Disk, folder: string) => Promise<void>) => Promise<void>])[] = [
  ['the disk in memory', (use) => use(createMemoryDisk({}, ['/work']), '/work')],
  [
    'the real disk',
    async (use) => {
      const folder = await mkdtemp(join(tmpdir(), 'asteroid-disk-'));
      try {
        await use(nodeDisk, folder);
      } finally {
        await rm(folder, { recursive: true });
      }
    },
  ],
];

for (const [name, withDisk] of disks) {
  test(`${name}: a created file holds what was written; a second creation fails`, () =>
    withDisk(async (disk, folder) => {
      await put(disk, join(folder, 'a'), 'one');
      assert.equal(await text(disk, join(folder, 'a')), 'one');
      assert.equal(await code(disk.create(join(folder, 'a'))), 'EEXIST');
      assert.equal(await code(disk.create(join(folder, 'none', 'a'))), 'ENOENT');
    }));

  test(`${name}: appending goes on behind what is there, also after a truncation`, () =>
    withDisk(async (disk, folder) => {
      const path = join(folder, 'log');
      const first = await disk.append(path);
      await first.write(bytes('abc'));
      await first.close();
      const second = await disk.append(path);
      await second.write(bytes('def'));
      await second.truncate(4);
      await second.write(bytes('!'));
      await second.close();
      assert.equal(await text(disk, path), 'abcd!');
    }));

  test(`${name}: renaming replaces, removing removes, listing sorts`, () =>
    withDisk(async (disk, folder) => {
      for (const file of ['b', 'c', 'a']) await put(disk, join(folder, file), file);
      await disk.rename(join(folder, 'c'), join(folder, 'a'));
      assert.deepEqual(await disk.list(folder), ['a', 'b']);
      assert.equal(await text(disk, join(folder, 'a')), 'c');
      await disk.remove(join(folder, 'b'));
      await disk.syncFolder(folder);
      assert.deepEqual(await disk.list(folder), ['a']);
    }));

  test(`${name}: of those who make a folder at once, one succeeds`, () =>
    withDisk(async (disk, folder) => {
      const results = await Promise.all(Array.from({ length: 8 }, () => code(disk.makeFolder(join(folder, 'x')))));
      assert.deepEqual(results.sort(), [...new Array<string>(7).fill('EEXIST'), 'no error']);
      assert.equal(await code(disk.makeFolder(join(folder, 'y', 'z'))), 'ENOENT');
    }));

  test(`${name}: what is absent or no file is told by its code`, () =>
    withDisk(async (disk, folder) => {
      assert.equal(await code(disk.read(join(folder, 'none'))), 'ENOENT');
      assert.equal(await code(disk.list(join(folder, 'none'))), 'ENOENT');
      assert.equal(await code(disk.remove(join(folder, 'none'))), 'ENOENT');
      assert.equal(await code(disk.rename(join(folder, 'none'), join(folder, 'other'))), 'ENOENT');
      assert.equal(await code(disk.read(folder)), 'EISDIR');
      await put(disk, join(folder, 'file'), '');
      assert.equal(await code(disk.list(join(folder, 'file'))), 'ENOTDIR');
      assert.equal(await code(disk.read(join(folder, 'file', 'x'))), 'ENOTDIR');
    }));
}

test('a device without an end is refused, not read', { skip: process.platform === 'win32' }, async () => {
  assert.equal(await code(nodeDisk.read('/dev/zero')), 'ENOTREG');
});

test('a link to a file is that file', { skip: process.platform === 'win32' }, async () => {
  const folder = await mkdtemp(join(tmpdir(), 'asteroid-disk-'));
  await put(nodeDisk, join(folder, 'a'), 'one');
  await symlink(join(folder, 'a'), join(folder, 'b'));
  assert.equal(await text(nodeDisk, join(folder, 'b')), 'one');
  await rm(folder, { recursive: true });
});

test('errors name the path, the cause and the fix', () => {
  const error = Object.assign(new Error('raw'), { code: 'ENOSPC' });
  assert.equal(
    writeError(error, '/a/b').message,
    '/a/b cannot be written: the disk is full; make room or choose another folder.',
  );
  assert.equal(
    readError(Object.assign(new Error('raw'), { code: 'ENOENT' }), 'x').message,
    'x cannot be read: there is no such file or folder; check the path and its permissions.',
  );
  assert.equal(
    writeError(new Error('strange'), 'x').message,
    'x cannot be written: strange; make room or choose another folder.',
  );
});

/** What may be found after the power was cut, over many seeds. */
async function outcomes(
  prepare: (disk: Disk) => Promise<void>,
  look: (disk: Disk) => Promise<string>,
): Promise<string[]> {
  const found = new Set<string>();
  for (let seed = 0; seed < 200; seed++) {
    const disk = createMemoryDisk({}, ['/d']);
    await prepare(disk);
    found.add(await look(disk.restart(createRandom(seed))));
  }
  return [...found].sort();
}

const orAbsent = async (disk: Disk): Promise<string> => text(disk, '/d/a').catch(() => 'absent');

test('a power cut: a synced file in a synced folder stays, in an unsynced folder it may be gone', async () => {
  const synced = async (disk: Disk): Promise<void> => {
    await put(disk, '/d/a', 'xy');
    await disk.syncFolder('/d');
  };
  assert.deepEqual(await outcomes(synced, orAbsent), ['xy']);
  assert.deepEqual(await outcomes((disk) => put(disk, '/d/a', 'xy'), orAbsent), ['absent', 'xy']);
});

test('a power cut: of unsynced bytes any part may be there, or zeros in their place', async () => {
  const unsynced = async (disk: Disk): Promise<void> => {
    await put(disk, '/d/a', 'x');
    await disk.syncFolder('/d');
    const file = await disk.append('/d/a');
    await file.write(bytes('yz'));
  };
  assert.deepEqual(await outcomes(unsynced, orAbsent), ['', '\0\0\0', 'x', 'x\0\0', 'xy', 'xy\0', 'xyz']);
});

test('a power cut: unsynced changes of a folder happen in their order, a rename as a whole', async () => {
  const changes = async (disk: Disk): Promise<void> => {
    await put(disk, '/d/a', '1');
    await put(disk, '/d/b', '2');
    await disk.syncFolder('/d');
    await disk.rename('/d/b', '/d/a');
    await disk.makeFolder('/d/c');
  };
  const look = async (disk: Disk): Promise<string> => `${await text(disk, '/d/a')} ${(await disk.list('/d')).join('')}`;
  assert.deepEqual(await outcomes(changes, look), ['1 ab', '2 a', '2 ac']);
});

test('faults: an error happens once, at half a write; after a crash nothing works', async () => {
  const full = createMemoryDisk({ fault: ({ number }) => (number === 2 ? 'ENOSPC' : undefined) }, ['/d']);
  const file = await full.create('/d/a');
  assert.equal(await code(file.write(bytes('abcd'))), 'ENOSPC');
  await file.write(bytes('!'));
  assert.equal(await text(full, '/d/a'), 'ab!');
  const crashing = createMemoryDisk({ fault: ({ kind }) => (kind === 'list' ? 'crash' : undefined) }, ['/d']);
  await put(crashing, '/d/a', 'x');
  await assert.rejects(crashing.list('/d'), /the power is cut/);
  await assert.rejects(crashing.read('/d/a'), /the power is cut/);
  assert.equal(crashing.operationCount(), 6);
});
