import assert from 'node:assert/strict';
import { mkdtemp, readdir, readFile, rm, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { createStageFiles } from './stage-files.ts';

const compiler = () => Promise.resolve('one');
const pieces = [new Uint8Array([1, 2, 3]), new Uint8Array([]), new Uint8Array([4, 5])];

async function withFolder(use: (folder: string) => Promise<void>): Promise<void> {
  const parent = await mkdtemp(join(tmpdir(), 'asteroid-stages-'));
  try {
    await use(join(parent, 'stages'));
  } finally {
    await rm(parent, { recursive: true });
  }
}

async function onlyFile(folder: string): Promise<string> {
  const names = await readdir(folder);
  assert.equal(names.length, 1);
  return join(folder, names[0] as string);
}

test('bytes written under a key are read under it, by another process too, and under no other', () =>
  withFolder(async (folder) => {
    const files = createStageFiles({ folder });
    assert.equal(await files.read('a'), undefined);
    await files.write('a', pieces);
    assert.deepEqual([...((await createStageFiles({ folder }).read('a')) ?? [])], [1, 2, 3, 4, 5]);
    assert.equal(await files.read('b'), undefined);
    await files.write('a', [new Uint8Array([9])]);
    assert.deepEqual([...((await files.read('a')) ?? [])], [9]);
  }));

test('another compiler’s stages are not read', () =>
  withFolder(async (folder) => {
    await createStageFiles({ folder, compiler }).write('a', pieces);
    assert.equal(await createStageFiles({ folder, compiler: () => Promise.resolve('two') }).read('a'), undefined);
    assert.equal(
      await createStageFiles({ folder, compiler: () => Promise.reject(new Error('not known')) }).read('a'),
      undefined,
    );
    assert.notEqual(await createStageFiles({ folder, compiler }).read('a'), undefined);
  }));

test('a file with any byte changed, cut anywhere or longer counts as absent, and is replaced', () =>
  withFolder(async (folder) => {
    const files = createStageFiles({ folder, compiler });
    await files.write('a', pieces);
    const path = await onlyFile(folder);
    const whole = await readFile(path);
    for (let index = 0; index < whole.length; index++) {
      const damaged = Buffer.from(whole);
      damaged.writeUInt8((damaged.readUInt8(index) + 1) % 256, index);
      await writeFile(path, damaged);
      assert.equal(await files.read('a'), undefined, `byte ${index}`);
      await writeFile(path, whole.subarray(0, index));
      assert.equal(await files.read('a'), undefined, `${index} bytes`);
    }
    await writeFile(path, Buffer.concat([whole, Buffer.from([0])]));
    assert.equal(await files.read('a'), undefined);
    await files.write('a', pieces);
    assert.deepEqual([...((await files.read('a')) ?? [])], [1, 2, 3, 4, 5]);
  }));

test('the least recently used make room; a stage that is too large alone is not kept', () =>
  withFolder(async (folder) => {
    const files = createStageFiles({ folder, compiler, maxBytes: 3 * (32 + 5) });
    const paths = new Map<string, string>();
    for (const [index, key] of ['a', 'b', 'c'].entries()) {
      const before = new Set(await readdir(folder).catch(() => []));
      await files.write(key, pieces);
      const added = (await readdir(folder)).find((name) => !before.has(name)) as string;
      paths.set(key, join(folder, added));
      await utimes(join(folder, added), index + 1, index + 1);
    }
    assert.notEqual(await files.read('a'), undefined); // used again: b is the oldest now
    await files.write('d', pieces);
    const found = await Promise.all(['a', 'b', 'c', 'd'].map(async (key) => (await files.read(key)) !== undefined));
    assert.deepEqual(found, [true, false, true, true]);
    await files.write('e', [new Uint8Array(200)]);
    assert.equal(await files.read('e'), undefined);
    assert.equal((await readdir(folder)).length, 3);
  }));

test('an old file of a dead writer is removed; other files stay', () =>
  withFolder(async (folder) => {
    const files = createStageFiles({ folder, compiler });
    await files.write('a', pieces);
    const [old, young, other] = ['.x.stage.0.tmp', '.y.stage.0.tmp', 'notes.txt'].map((name) => join(folder, name)) as [
      string,
      string,
      string,
    ];
    for (const path of [old, young, other]) await writeFile(path, 'x');
    await utimes(old, 1, 1);
    await utimes(other, 1, 1);
    await files.write('b', pieces);
    const names = new Set(await readdir(folder));
    assert.deepEqual(
      [names.has('.x.stage.0.tmp'), names.has('.y.stage.0.tmp'), names.has('notes.txt')],
      [false, true, true],
    );
    assert.equal(names.size, 4);
  }));

test('if nothing can be written, there is a warning and nothing fails', () =>
  withFolder(async (folder) => {
    await writeFile(folder, 'a file where the folder should be');
    const warnings: string[] = [];
    const files = createStageFiles({ folder, compiler, onWarning: (warning) => warnings.push(warning) });
    await files.write('a', pieces);
    assert.equal(await files.read('a'), undefined);
    assert.equal(warnings.length, 1);
    assert.match(warnings[0] as string, /^A compiled stage is not kept: .*stages/);
  }));
