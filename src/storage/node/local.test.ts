import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { tensor } from '../../graph/tensor.ts';
import { createRunFolder, loadLatestCheckpoint, resumeRunFolder, saveCheckpoint } from '../../node.ts';
import { temporaryFolder } from '../../testing/command.ts';

test('the library keeps runs and checkpoints on this disk unless it is given another', async () => {
  const out = join(temporaryFolder(), 'run');
  const folder = await createRunFolder({ date: new Date(0), out });
  const weights = tensor('float32', [2], [1, 2]);
  const state = { round: 3, parameters: new Map([['w', weights]]), buffers: new Map(), optimizerState: new Map() };
  const path = await saveCheckpoint(folder.checkpointsPath, { ...state, state: { model: 'm' } });
  await folder.close();
  const { checkpoint, path: found } = await loadLatestCheckpoint(join(out, 'checkpoints'));
  assert.equal(found, path);
  assert.deepEqual([checkpoint?.round, checkpoint?.parameters.get('w')?.data], [3, weights.data]);
  const resumed = await resumeRunFolder(out, 3);
  assert.equal(resumed.path, out);
  await resumed.close();
});
