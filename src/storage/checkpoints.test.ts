// faults.md: "checkpoint cut at any point, flipped, missing, other version: the previous good one, and it says so";
// "crash at each point of writing a checkpoint: the old or the new, never neither; every point, 20 times".

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { InputError, RunError } from '../errors.ts';
import { tensor } from '../graph/tensor.ts';
import { createRandom } from '../random.ts';
import { mutate } from '../testing/mutations.ts';
import { type Checkpoint, loadCheckpoint, loadLatestCheckpoint, saveCheckpoint } from './checkpoints.ts';
import type { Disk } from './disk.ts';
import { createMemoryDisk, type MemoryDisk, type MemoryDiskOptions } from './memory-disk.ts';
import { nodeDisk } from './node/disk.ts';

const folder = '/run/checkpoints';

/** Different for each round, in every part. */
function checkpoint(round: number): Checkpoint {
  return {
    round,
    parameters: new Map([
      ['conv.weight', tensor('float32', [2, 2], [round, -1, 0.5, 1e-9])],
      ['a/b', tensor('float64', [1], [round / 3])],
    ]),
    buffers: new Map([['conv.weight', tensor('float32', [1], [round])]]),
    optimizerState: new Map([
      ['momentum/conv.weight', tensor('float32', [2, 2], [1, 2, 3, round])],
      ['step', tensor('int64', [], [round])],
    ]),
    state: {
      seed: 7,
      epoch: round / 10,
      losses: [1, 0.25, round],
      settings: { model: 'résnet "x"', lr: 1e-3, none: null },
    },
  };
}

async function diskWith(
  rounds: readonly number[],
  options: MemoryDiskOptions = {},
  keepCount?: number,
): Promise<MemoryDisk> {
  const disk = createMemoryDisk({}, ['/run']);
  for (const round of rounds)
    await saveCheckpoint(folder, checkpoint(round), { disk, ...(keepCount === undefined ? {} : { keepCount }) });
  if (rounds.length > 0) await disk.syncFolder(folder);
  return disk.restart(createRandom(0), options);
}

/** A disk on which one file has other contents, or is absent (undefined). */
function withFile(disk: Disk, path: string, contents: Uint8Array | undefined): Disk {
  return {
    ...disk,
    read: async (asked) => {
      if (asked !== path) return disk.read(asked);
      if (contents === undefined) throw Object.assign(new Error('raw'), { code: 'ENOENT' });
      return contents;
    },
    list: async (asked) =>
      (await disk.list(asked)).filter((name) => contents !== undefined || join(asked, name) !== path),
  };
}

async function filesOf(disk: Disk, round: number): Promise<{ tensors: string; state: string }> {
  const names = (await disk.list(folder)).filter((name) => name.startsWith(`round-${String(round).padStart(8, '0')}`));
  assert.equal(names.length, 2);
  return { tensors: join(folder, names[0] ?? ''), state: join(folder, names[1] ?? '') };
}

test('what is saved is loaded: every tensor bit for bit, the state as it was', async () => {
  const disk = await diskWith([12]);
  const found = await loadLatestCheckpoint(folder, { disk });
  assert.deepEqual(found, { checkpoint: checkpoint(12), path: `${folder}/round-00000012.json`, warnings: [] });
});

test('on the real disk too', async () => {
  const path = await mkdtemp(join(tmpdir(), 'asteroid-checkpoints-'));
  try {
    for (const round of [1, 2, 3, 4, 5])
      await saveCheckpoint(join(path, 'deep', 'checkpoints'), checkpoint(round), { disk: nodeDisk });
    const found = await loadLatestCheckpoint(join(path, 'deep', 'checkpoints'), { disk: nodeDisk });
    assert.deepEqual([found.checkpoint, found.warnings], [checkpoint(5), []]);
  } finally {
    await rm(path, { recursive: true });
  }
});

test('an empty folder, or none, holds no checkpoint', async () => {
  assert.deepEqual(await loadLatestCheckpoint('/run/none', { disk: createMemoryDisk({}, ['/run']) }), { warnings: [] });
  assert.deepEqual(await loadLatestCheckpoint('/run', { disk: createMemoryDisk({}, ['/run']) }), { warnings: [] });
});

test('the newest three are kept, or as many as are asked for; both files of each', async () => {
  const rounds = async (disk: Disk): Promise<string[]> =>
    (await disk.list(folder)).map((name) => name.replace(/-[0-9a-f]{8}\.s/, '.s'));
  const names = (kept: number[]): string[] =>
    kept.flatMap((round) => [`round-0000000${round}.safetensors`, `round-0000000${round}.json`]);
  assert.deepEqual(await rounds(await diskWith([1, 2, 3, 4, 5])), names([3, 4, 5]));
  assert.deepEqual(await rounds(await diskWith([1, 2, 3], {}, 1)), names([3]));
});

test('a run that goes on from an earlier round leaves its old future behind', async () => {
  const disk = await diskWith([10, 20, 30]);
  await saveCheckpoint(folder, checkpoint(21), { disk });
  assert.equal((await loadLatestCheckpoint(folder, { disk })).checkpoint?.round, 21);
  assert.equal((await disk.list(folder)).filter((name) => name.includes('30')).length, 0);
});

test('saving a round again replaces it', async () => {
  const disk = await diskWith([1, 2]);
  const again = { ...checkpoint(2), parameters: new Map([['w', tensor('float32', [1], [42])]]) };
  await saveCheckpoint(folder, again, { disk });
  assert.deepEqual((await loadLatestCheckpoint(folder, { disk })).checkpoint, again);
  await filesOf(disk, 2);
});

test('a crash at every operation, 20 times each: the old or the new checkpoint; after success the new one; and saving goes on', async () => {
  for (const [earlier, keepCount] of [
    [[1, 2], 3],
    [[1, 2], 1],
    [[1, 2, 3, 4], 2],
    [[3], 3],
  ] as const) {
    const latest = earlier.at(-1) ?? 0;
    const measured = await diskWith(earlier, {}, keepCount);
    await saveCheckpoint(folder, checkpoint(latest + 1), { disk: measured, keepCount });
    assert.ok(measured.operationCount() > 12);
    for (let crash = 1; crash <= measured.operationCount() + 1; crash++) {
      for (let seed = 0; seed < 20; seed++) {
        const disk = await diskWith(
          earlier,
          { fault: ({ number }) => (number === crash ? 'crash' : undefined) },
          keepCount,
        );
        const saved = await saveCheckpoint(folder, checkpoint(latest + 1), { disk, keepCount }).then(
          () => true,
          () => false,
        );
        const after = disk.restart(createRandom(seed, crash));
        const found = await loadLatestCheckpoint(folder, { disk: after });
        const round = found.checkpoint?.round;
        const where = `crash ${crash}, seed ${seed}: round ${round}, ${found.warnings.join(' ')}`;
        assert.ok(round === latest + 1 || (!saved && round === latest), where);
        assert.deepEqual(found.checkpoint, checkpoint(round), where);
        await saveCheckpoint(folder, checkpoint(latest + 2), { disk: after, keepCount });
        assert.deepEqual(
          (await loadLatestCheckpoint(folder, { disk: after })).checkpoint,
          checkpoint(latest + 2),
          where,
        );
        assert.ok(!(await after.list(folder)).some((name) => name.endsWith('.tmp')), where);
      }
    }
  }
});

test('a crash while a round is saved again with other contents leaves one of both', async () => {
  const again = { ...checkpoint(2), parameters: new Map([['w', tensor('float32', [1], [42])]]) };
  for (let crash = 1; crash <= 25; crash++) {
    for (let seed = 0; seed < 20; seed++) {
      const disk = await diskWith([2], { fault: ({ number }) => (number === crash ? 'crash' : undefined) });
      await saveCheckpoint(folder, again, { disk }).catch(() => undefined);
      const { checkpoint: found } = await loadLatestCheckpoint(folder, { disk: disk.restart(createRandom(seed)) });
      assert.deepEqual(found, found?.parameters.has('w') ? again : checkpoint(2), `crash ${crash}, seed ${seed}`);
    }
  }
});

test('cut at any length, the newest is passed over by name and the previous one is used', async () => {
  const disk = await diskWith([1, 2]);
  const files = await filesOf(disk, 2);
  for (const path of Object.values(files)) {
    const whole = await disk.read(path);
    for (let length = 0; length < whole.length; length++) {
      const found = await loadLatestCheckpoint(folder, { disk: withFile(disk, path, whole.slice(0, length)) });
      assert.equal(found.checkpoint?.round, 1, `${path} cut to ${length}`);
      assert.equal(found.warnings.length, 1);
      assert.ok(
        found.warnings[0]?.startsWith(`The checkpoint ${files.state} is passed over: ${path} `),
        found.warnings[0],
      );
    }
  }
});

test('with any bit flipped, the newest is passed over and the previous one is used', async () => {
  const disk = await diskWith([1, 2]);
  for (const path of Object.values(await filesOf(disk, 2))) {
    const whole = await disk.read(path);
    for (let bit = 0; bit < whole.length * 8; bit++) {
      const flipped = whole.slice();
      flipped[bit >> 3] = (flipped[bit >> 3] ?? 0) ^ (1 << (bit & 7));
      const found = await loadLatestCheckpoint(folder, { disk: withFile(disk, path, flipped) });
      assert.equal(found.checkpoint?.round, 1, `${path}, bit ${bit}`);
      assert.equal(found.warnings.length, 1);
    }
  }
});

test('with either file missing, the newest is passed over and it says so', async () => {
  const disk = await diskWith([1, 2]);
  const { tensors, state } = await filesOf(disk, 2);
  const withoutTensors = await loadLatestCheckpoint(folder, { disk: withFile(disk, tensors, undefined) });
  assert.equal(withoutTensors.checkpoint?.round, 1);
  assert.deepEqual(withoutTensors.warnings, [
    `The checkpoint ${state} is passed over: ${tensors} cannot be read: there is no such file or folder; check the path and its permissions.`,
  ]);
  const withoutState = await loadLatestCheckpoint(folder, { disk: withFile(disk, state, undefined) });
  assert.equal(withoutState.checkpoint?.round, 1);
  assert.deepEqual(withoutState.warnings, [
    'The checkpoint of round 2 in /run/checkpoints is passed over: its JSON file is missing.',
  ]);
});

/** The file with other text in its state and a right hash. */
function rewritten(bytes: Uint8Array, from: string | RegExp, to: string): Uint8Array {
  const text = new TextDecoder().decode(bytes);
  const rest = text.slice(text.indexOf('\n') + 1).replace(from, to);
  return new TextEncoder().encode(`{"sha256":"${createHash('sha256').update(rest).digest('hex')}",\n${rest}`);
}

test('another version, another round, strange contents behind a right hash: passed over by name', async () => {
  const disk = await diskWith([1, 2]);
  const { state } = await filesOf(disk, 2);
  const original = await disk.read(state);
  const cases: [string | RegExp, string, string][] = [
    ['"version": 1', '"version": 2', `${state} is a checkpoint of version 2, and this program reads version 1.`],
    ['"round": 2', '"round": 3', `${state} is not the checkpoint that its name says.`],
    ['"file": "round', '"file": "../round', `${state} is not the checkpoint that its name says.`],
    [/"tensors": \{[^}]*\}/, '"tensors": null', `${state} is not the checkpoint that its name says.`],
    [/[\s\S]*/, '', `${state} is a checkpoint of version undefined, and this program reads version 1.`],
  ];
  for (const [from, to, problem] of cases) {
    const found = await loadLatestCheckpoint(folder, { disk: withFile(disk, state, rewritten(original, from, to)) });
    assert.equal(found.checkpoint?.round, 1);
    assert.deepEqual(found.warnings, [`The checkpoint ${state} is passed over: ${problem}`]);
  }
});

test('the state file is JSON that a person can read, and names the SHA-256 of the tensors', async () => {
  const disk = await diskWith([2]);
  const { tensors, state } = await filesOf(disk, 2);
  const json = JSON.parse(new TextDecoder().decode(await disk.read(state))) as Record<string, unknown>;
  const bytes = await disk.read(tensors);
  const sha256 = createHash('sha256').update(bytes).digest('hex');
  assert.deepEqual(Object.keys(json), ['sha256', 'version', 'round', 'tensors', 'state']);
  assert.deepEqual(json.tensors, { file: tensors.slice(folder.length + 1), bytes: bytes.length, sha256 });
  assert.ok(tensors.endsWith(`round-00000002-${sha256.slice(0, 8)}.safetensors`));
});

test('when all are damaged, none is loaded and all are named', async () => {
  const disk = await diskWith([1, 2]);
  const broken: Disk = { ...disk, read: async () => new Uint8Array(100) };
  const found = await loadLatestCheckpoint(folder, { disk: broken });
  assert.equal(found.checkpoint, undefined);
  assert.deepEqual(
    found.warnings.map((warning) => warning.slice(0, 51)),
    [2, 1].map((round) => `The checkpoint ${folder}/round-0000000${round}.json`.slice(0, 51)),
  );
});

test('a disk that fails for another reason ends the search: an older round must not be taken for the newest', async () => {
  for (const code of ['EACCES', 'EMFILE']) {
    const disk = await diskWith([1, 2], { fault: ({ kind }) => (kind === 'read' ? code : undefined) });
    await assert.rejects(loadLatestCheckpoint(folder, { disk }), RunError);
  }
  const denied = await diskWith([1], { fault: ({ kind }) => (kind === 'list' ? 'EACCES' : undefined) });
  await assert.rejects(loadLatestCheckpoint(folder, { disk: denied }), RunError);
  const worn = await diskWith([1, 2], {
    fault: ({ number, kind }) => (kind === 'read' && number < 3 ? 'EIO' : undefined),
  });
  assert.equal((await loadLatestCheckpoint(folder, { disk: worn })).checkpoint?.round, 1);
});

test('a full or read-only disk is a RunError; the earlier checkpoint stands', async () => {
  for (const code of ['ENOSPC', 'EROFS']) {
    const disk = await diskWith([1], {
      fault: ({ kind }) => (kind === 'create' || kind === 'write' ? code : undefined),
    });
    await assert.rejects(saveCheckpoint(folder, checkpoint(2), { disk }), RunError);
    assert.deepEqual(await loadLatestCheckpoint(folder, { disk }), {
      checkpoint: checkpoint(1),
      path: `${folder}/round-00000001.json`,
      warnings: [],
    });
  }
});

test('old checkpoints that cannot be removed cost nothing', async () => {
  for (const failing of ['remove', 'list', 'read']) {
    let saving = true;
    const disk = await diskWith([1, 2, 3], {
      fault: ({ kind }) => (saving && kind === failing ? 'EACCES' : undefined),
    });
    await saveCheckpoint(folder, checkpoint(4), { disk });
    saving = false;
    assert.equal((await loadLatestCheckpoint(folder, { disk })).checkpoint?.round, 4);
    await saveCheckpoint(folder, checkpoint(5), { disk });
    assert.equal((await disk.list(folder)).length, 6, failing);
  }
});

test('the tensors of a checkpoint whose JSON file was damaged stay as long as it would', async () => {
  const disk = await diskWith([1, 2]);
  const { tensors, state } = await filesOf(disk, 2);
  await saveCheckpoint(folder, checkpoint(3), { disk: withFile(disk, state, new Uint8Array(10)) });
  assert.ok((await disk.list(folder)).includes(tensors.slice(folder.length + 1)));
});

test('a state that JSON cannot hold is our mistake, not a silent null', async () => {
  const disk = createMemoryDisk({}, ['/run']);
  await assert.rejects(
    saveCheckpoint(folder, { ...checkpoint(1), state: { loss: Number.NaN } }, { disk }),
    /the checkpoint's loss is not finite/,
  );
});

test('one checkpoint by its path; damage is an InputError', async () => {
  const disk = await diskWith([1, 2]);
  const { state } = await filesOf(disk, 1);
  assert.deepEqual(await loadCheckpoint(state, { disk }), checkpoint(1));
  await assert.rejects(loadCheckpoint(`${folder}/round-00000009.json`, { disk }), InputError);
});

test('2,000 mutations of either file: the checkpoint as it was, or InputError', async () => {
  const disk = await diskWith([2]);
  const files = await filesOf(disk, 2);
  for (const path of Object.values(files)) {
    const original = await disk.read(path);
    for (let seed = 0; seed < 1000; seed++) {
      const mutated = mutate(original, createRandom(seed));
      try {
        assert.deepEqual(await loadCheckpoint(files.state, { disk: withFile(disk, path, mutated) }), checkpoint(2));
        assert.deepEqual(mutated, original);
      } catch (error) {
        assert.ok(error instanceof InputError, `seed ${seed}: ${(error as Error).stack}`);
      }
    }
  }
});
