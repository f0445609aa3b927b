// Compiling the training graphs of whole models for a worker: the first time, from the cache folder in another process,
// and from memory in the same one.
// Usage: npm run bench -- compile [--json] [--rounds 5]. Writes bench/results/. Each time is of a process of its own,
// whose compute thread has started; medians. The bytes are those of the file in the cache.

import { mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { median } from '../dist/statistics.js';
import { runJson } from './common/cases.ts';
import { at, machine } from './common/numbers.ts';
import { table, writeResult } from './common/table.ts';

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

interface Case {
  readonly model: string;
  readonly batch: number;
}

/** In a process of its own: times of compiling with the files in `folder`, then once more in the same process. */
async function compileHere({ model, batch, folder }: Case & { readonly folder: string }) {
  const { createComputeThread } = await import('../dist/engine/node/compute-thread.js');
  const { createStage } = await import('../dist/runtime/device/create-stage.js');
  const { createStageFiles } = await import('../dist/runtime/host/stage-files.js');
  const { stageForBench } = await import('./engine-stage.ts');
  const stage = stageForBench(model, batch, { initialize: false });
  const engine = await createComputeThread();
  // A worker makes these when it starts, and has the hash of its code long before a stage comes.
  const files = createStageFiles({ folder });
  await files.read('none');
  let writing: Promise<void> | undefined;
  const write: typeof files.write = (key, pieces) => (writing = files.write(key, pieces));
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

function measure({ name, model, batch }: Case & { readonly name: string }) {
  const times: Record<'first' | 'files' | 'memory', number[]> = { first: [], files: [], memory: [] };
  let bytes = 0;
  for (let round = 0; round < Number(options.rounds); round++) {
    const folder = mkdtempSync(join(tmpdir(), 'asteroid-compile-'));
    const run = () => {
      const args = [fileURLToPath(import.meta.url), '--case', JSON.stringify({ model, batch, folder })];
      return runJson<number[]>(args);
    };
    times.first.push(at(run(), 0));
    const [files, memory] = run();
    times.files.push(files ?? 0);
    times.memory.push(memory ?? 0);
    bytes = readdirSync(folder).reduce((sum, file) => sum + statSync(join(folder, file)).size, 0);
    rmSync(folder, { recursive: true });
  }
  return { name, firstMs: median(times.first), filesMs: median(times.files), memoryMs: median(times.memory), bytes };
}

function main() {
  const results = cases.map(measure);
  if (options.json) return console.log(JSON.stringify({ cases: results }));
  const rows = results.map(({ name, firstMs, filesMs, memoryMs, bytes }) => [
    ...[name, firstMs.toFixed(0), filesMs.toFixed(0), memoryMs.toFixed(1), (bytes / 2 ** 20).toFixed(1)],
  ]);
  const drawn = table(['model', 'first time, ms', 'from the cache folder, ms', 'from memory, ms', 'file, MiB'], rows);
  console.log(drawn);
  writeResult(
    'compile',
    (date) => `# Compiling a stage, ${date}

A whole model's training step as one stage (forward pass, loss, backward pass, update), one thread, medians of
${options.rounds} processes on ${machine()}, Node ${process.versions.node}. The batches of \`bench/engine.ts\`.
Made by \`npm run bench -- compile\`.

${drawn}
`,
  );
}

if (options.case === undefined) main();
else console.log(JSON.stringify(await compileHere(JSON.parse(options.case))));
