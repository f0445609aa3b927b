// Compiling the training graphs of whole models for a worker: the first time, from the cache folder in another process, and from memory in the same one.
// After `npm run build`: node bench/compile.mjs [--json] [--rounds 5]. Writes bench/results/. Each time is of a process of its own, whose compute thread has
// started; medians. The bytes are those of the file in the cache.

import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const cases = [
  { name: 'efficientnet-b1', model: 'efficientnet-b1:input=32,classes=10,dropout=0', batch: 32 },
  { name: 'mobilenet-v2', model: 'mobilenet-v2:input=32,classes=10,dropout=0', batch: 32 },
  { name: 'resnet-50', model: 'resnet-50', batch: 8 },
  { name: 'bert-small', model: 'bert-small:dropout=0', batch: 8 },
];

const { values: options } = parseArgs({
  options: {
    json: { type: 'boolean', default: false },
    rounds: { type: 'string', default: '5' },
    case: { type: 'string' },
  },
});

const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];

/** In a process of its own: times of compiling with the files in `folder`, then once more in the same process. */
async function compileHere({ model, batch, folder }) {
  const { createComputeThread } = await import('../dist/engine/node/compute-thread.js');
  const { createStage } = await import('../dist/runtime/device/create-stage.js');
  const { createStageFiles } = await import('../dist/runtime/host/stage-files.js');
  const { stageForBench } = await import('./engine-stage.ts');
  const stage = stageForBench(model, batch, { initialize: false });
  const engine = await createComputeThread();
  // A worker makes these when it starts, and has the hash of its code long before a stage comes.
  const files = createStageFiles({ folder });
  await files.read('none');
  let writing;
  const write = (key, pieces) => (writing = files.write(key, pieces));
  const timed = async () => {
    const start = performance.now();
    const created = await createStage(engine, stage.options, { read: files.read, write });
    const ms = performance.now() - start;
    created.dispose();
    return ms;
  };
  const times = [await timed(), await timed()];
  await writing;
  await engine.close();
  return times;
}

function measure({ name, model, batch }) {
  const times = { first: [], files: [], memory: [] };
  let bytes = 0;
  for (let round = 0; round < Number(options.rounds); round++) {
    const folder = mkdtempSync(join(tmpdir(), 'asteroid-compile-'));
    const run = () => {
      const args = [fileURLToPath(import.meta.url), '--case', JSON.stringify({ model, batch, folder })];
      const { stdout, status, stderr } = spawnSync(process.execPath, args, { encoding: 'utf8' });
      if (status !== 0) throw new Error(stderr);
      return JSON.parse(stdout);
    };
    times.first.push(run()[0]);
    const [files, memory] = run();
    times.files.push(files);
    times.memory.push(memory);
    bytes = readdirSync(folder).reduce((sum, file) => sum + statSync(join(folder, file)).size, 0);
    rmSync(folder, { recursive: true });
  }
  return { name, firstMs: median(times.first), filesMs: median(times.files), memoryMs: median(times.memory), bytes };
}

function main() {
  const results = cases.map(measure);
  if (options.json) return console.log(JSON.stringify({ cases: results }));
  const rows = results.map(
    ({ name, firstMs, filesMs, memoryMs, bytes }) =>
      `| ${name} | ${firstMs.toFixed(0)} | ${filesMs.toFixed(0)} | ${memoryMs.toFixed(1)} | ${(bytes / 2 ** 20).toFixed(1)} |`,
  );
  const headings =
    '| model | first time, ms | from the cache folder, ms | from memory, ms | file, MiB |\n| --- | --- | --- | --- | --- |';
  const table = [headings, ...rows].join('\n');
  console.log(table);
  const date = new Date().toISOString().slice(0, 10);
  const text = `# Compiling a stage, ${date}

A whole model's training step as one stage (forward pass, loss, backward pass, update), one thread, medians of ${options.rounds} processes on ${cpus().length} cores
(${cpus()[0].model.trim()}), Node ${process.versions.node}. The batches of \`bench/engine.mjs\`. Made by \`node bench/compile.mjs\`.

${table}
`;
  writeFileSync(new URL(`results/${date}-compile.md`, import.meta.url), text);
}

if (options.case === undefined) main();
else console.log(JSON.stringify(await compileHere(JSON.parse(options.case))));
