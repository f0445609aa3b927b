import assert from 'node:assert/strict';
import { cpus } from 'node:os';
import { test } from 'node:test';
import { deviceFacts } from './host-node.ts';
import { createOnnxRuntimeNodeEngine } from './onnxruntime-node.ts';

test('deviceFacts says what this machine is', async () => {
  const facts = deviceFacts();
  assert.ok(
    Number.isInteger(facts.coreCount) && facts.coreCount >= 1 && facts.coreCount <= cpus().length,
    `${facts.coreCount} cores`,
  );
  assert.ok(facts.memoryMiB > 64 && facts.memoryMiB < 2 ** 24, `${facts.memoryMiB} MiB`);
  assert.equal(facts.platform, process.platform);
  assert.equal(facts.arch, process.arch);
  assert.equal(`v${facts.nodeVersion}`, process.version);
  assert.notEqual(facts.cpuModel, '');
  const engine = await createOnnxRuntimeNodeEngine();
  assert.ok(engine.name.startsWith(`${facts.engineVersion} `), `${engine.name} is not ${facts.engineVersion}`);
  await engine.close();
});
