// The curl lines of examples/serve-pictures, as they stand in its README, against the server that its README starts:
// only the port is another one, and the model is not trained.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { copyFile, mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { gunzipSync } from 'node:zlib';
import { InferenceSession, Tensor } from 'onnxruntime-node';
import { defined } from '../assert.ts';
import { exportGraph } from '../graph/onnx/export.ts';
import { inferenceMode } from '../graph/onnx/modes.ts';
import { buildModel } from '../models/zoo.ts';
import { startCommand, temporaryFolder } from '../testing/command.ts';

const cwd = temporaryFolder();
const example = join(import.meta.dirname, '..', '..', 'examples', 'serve-pictures');
const pictures = '/usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz';
const hasCurl = spawnSync('curl', ['--version']).status === 0;
const skip = !existsSync(pictures)
  ? `${pictures} is not there: install Debian's dataset-fashion-mnist`
  : !hasCurl && 'curl is not there: install it';

/** The classes of the first ten pictures, by ONNX Runtime on the whole model. */
async function classesByOnnxRuntime(model: Uint8Array): Promise<string> {
  const pixels = gunzipSync(await readFile(pictures)).subarray(16, 16 + 10 * 784);
  const session = await InferenceSession.create(model);
  const data = Float32Array.from(pixels, (value) => value / 255);
  const found = await session.run({ image: new Tensor('float32', data, [10, 1, 28, 28]) });
  const scores = defined(Object.values(found)[0], 'an output').data as Float32Array;
  await session.release();
  const classes = Array.from({ length: 10 }, (_, sample) => {
    const own = scores.slice(10 * sample, 10 * sample + 10);
    return own.indexOf(Math.max(...own));
  });
  return classes.join(' ');
}

test('serving pictures: the curl lines of the README work as written', { timeout: 120_000, skip }, async (context) => {
  const readme = await readFile(join(example, 'README.md'), 'utf8');
  const lines = readme.split('\n');
  const model = exportGraph(inferenceMode(buildModel('fashion', { seed: 3 }).graph));
  await mkdir(join(cwd, 'runs', 'fashion'), { recursive: true });
  await writeFile(join(cwd, 'runs', 'fashion', 'model.onnx'), model);
  for (const script of ['pictures.mjs', 'classes.mjs']) await copyFile(join(example, script), join(cwd, script));

  const serve = defined(
    lines.find((line) => line.startsWith('npx asteroid serve ')),
    'the line that serves',
  );
  const args = serve.replace(':8000', ':0').split(' ').slice(2);
  const server = startCommand([...args, '--planner', 'unmeasured', '--json'], { cwd });
  context.after(() => server.process.kill('SIGKILL'));
  const { url } = await server.event('serving');
  await server.event('ready');

  const commands = lines.filter((line) => line.startsWith('curl ') || line.startsWith('gzip '));
  assert.equal(commands.length, 4);
  const shown = commands.map((command) => {
    const end = spawnSync('sh', ['-ec', command.replace('http://127.0.0.1:8000', String(url))], {
      cwd,
      encoding: 'utf8',
    });
    assert.equal(end.status, 0, `${command}\n${end.stderr}`);
    return end.stdout.trim();
  });
  const [ready, metadata, , classes] = shown;
  assert.equal(ready, '{"ready":true}');
  const { inputs } = JSON.parse(defined(metadata, 'metadata')) as { readonly inputs: readonly object[] };
  assert.deepEqual(inputs, [{ name: 'image', datatype: 'FP32', shape: [-1, 1, 28, 28] }]);
  assert.equal(classes, await classesByOnnxRuntime(model));
  server.process.kill('SIGTERM');
  assert.equal((await server.end).code, 0);
});
