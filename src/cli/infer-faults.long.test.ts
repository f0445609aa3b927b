// Inference over processes that become slow, come, go and come back: the plan follows, throughput shows it, and every
// request is answered once with what stock ONNX Runtime gives. Workers may use a part of a core each, so that devices
// add up on a machine of two cores.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { createWriteStream } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { InferenceSession, Tensor as RuntimeTensor } from 'onnxruntime-node';
import { defined } from '../assert.ts';
import { GraphBuilder } from '../graph/builder.ts';
import { exportGraph } from '../graph/onnx/export.ts';
import { tensor } from '../graph/tensor.ts';
import { createRandom } from '../random.ts';
import { type RunningCommand, startCommand, temporaryFolder } from '../testing/command.ts';
import { readNpy, writeNpy } from '../training/data/npy.ts';

const cwd = temporaryFolder();
const timeout = 240_000;
const skip = process.platform === 'win32' && 'processes are stopped by signals';
/** Samples of a request and of a round. */
const batch = 4;
const pixels = 784;
/** How long throughput may take to follow. */
const patienceMs = 60_000;
/** Percent of the time in which a worker computes. */
const maxCpu = '20';
/** Milliseconds of a slow worker's life: it runs, then it is stopped. */
const [runsMs, restsMs] = [10, 90];

/** Convolutions that take some milliseconds a sample. */
function net(): Uint8Array {
  const b = new GraphBuilder('convolutions', { seed: 5 });
  let x = b.input('x', 'float32', ['N', 1, 28, 28]);
  for (let layer = 0; layer < 10; layer++)
    x = b.relu(b.conv2d(x, { name: `conv${layer}`, outChannels: 48, kernel: 3, padding: 1 }));
  return exportGraph(b.build([b.linear(b.flatten(b.globalAveragePool(x)), { name: 'head', outFeatures: 10 })]));
}

const model = net();
const random = createRandom(9);

interface Case {
  readonly data: Float32Array;
  readonly wanted: Float32Array;
}

/** Samples, and what stock ONNX Runtime makes of them. */
async function asked(count: number): Promise<Case> {
  const data = Float32Array.from({ length: count * pixels }, () => random.normal());
  const session = await InferenceSession.create(model);
  const found = await session.run({ x: new RuntimeTensor('float32', data, [count, 1, 28, 28]) });
  const wanted = Float32Array.from(defined(Object.values(found)[0], 'an output').data as Float32Array);
  await session.release();
  return { data, wanted };
}

function assertClose(found: ArrayLike<number>, wanted: Float32Array, what: string): void {
  assert.equal(found.length, wanted.length, what);
  const scale = wanted.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  const worst = wanted.reduce((most, value, at) => Math.max(most, Math.abs(Number(found[at]) - value)), 0);
  assert.ok(worst <= 1e-5 * scale, `${what}: ${worst} of ${scale}`);
}

/** A command that workers join, and a way to start these. */
async function startJoined(
  context: TestContext,
  args: readonly string[],
  through: readonly string[] = [],
): Promise<{ readonly run: RunningCommand; start(name: string): RunningCommand }> {
  const own = ['--model', 'net.onnx', '--batch', String(batch), '--micro-batch', String(batch), '--json'];
  await writeFile(join(cwd, 'net.onnx'), model);
  const run = startCommand([...args, ...own, '--workers', '0', '--remote', '2'], { cwd, through });
  const all = [run];
  context.after(() => {
    for (const { process: child } of all) child.kill('SIGKILL');
  });
  const { url, joinCode } = await run.event('listening');
  const start = (name: string): RunningCommand => {
    const environment = { ASTEROID_JOIN_CODE: String(joinCode), ASTEROID_STATE: join(cwd, name) };
    const flags = ['--name', name, '--max-cpu', maxCpu, '--json'];
    all.push(startCommand(['worker', '--join', String(url), ...flags], { cwd, environment }));
    return defined(all.at(-1), name);
  };
  return { run, start };
}

/** Stops a process again and again, until what is returned is called. */
function slowDown({ process: child }: RunningCommand): () => void {
  let timer: NodeJS.Timeout;
  const stop = (): void => {
    child.kill('SIGSTOP');
    timer = setTimeout(go, restsMs);
  };
  const go = (): void => {
    child.kill('SIGCONT');
    timer = setTimeout(stop, runsMs);
  };
  stop();
  return () => {
    clearTimeout(timer);
    child.kill('SIGCONT');
  };
}

/** Requests one after the other, some at a time, each checked; counts the answers. */
class Clients {
  readonly #url: string;
  readonly #cases: readonly Case[];
  readonly #loops: readonly Promise<void>[];
  #isOver = false;
  answered = 0;
  sent = 0;

  constructor(url: string, cases: readonly Case[], atOnce: number) {
    this.#url = url;
    this.#cases = cases;
    this.#loops = Array.from({ length: atOnce }, () => this.#ask());
    for (const loop of this.#loops) loop.catch(() => {}); // seen at the end
  }

  async #ask(): Promise<void> {
    while (!this.#isOver) {
      const id = this.sent++;
      const { data, wanted } = defined(this.#cases[id % this.#cases.length], 'a case');
      const about = { name: 'x', shape: [batch, 1, 28, 28], datatype: 'FP32' };
      const head = JSON.stringify({
        id: String(id),
        inputs: [{ ...about, parameters: { binary_data_size: data.byteLength } }],
      });
      const response = await fetch(`${this.#url}/v2/models/net/infer`, {
        method: 'POST',
        headers: { 'Inference-Header-Content-Length': String(head.length) },
        body: Buffer.concat([Buffer.from(head), Buffer.from(data.buffer)]),
      });
      assert.equal(response.status, 200, await response.clone().text());
      const answer = (await response.json()) as {
        readonly id: string;
        readonly outputs: { readonly data: number[] }[];
      };
      assert.equal(answer.id, String(id));
      assertClose(defined(answer.outputs[0], 'an output').data, wanted, `request ${id}`);
      this.answered++;
    }
  }

  /** Samples a second, from now on for a while. */
  async rate(milliseconds: number): Promise<number> {
    const [before, startMs] = [this.answered, performance.now()];
    await new Promise((resolve) => setTimeout(resolve, milliseconds));
    return (1000 * batch * (this.answered - before)) / (performance.now() - startMs);
  }

  async end(): Promise<void> {
    this.#isOver = true;
    await Promise.all(this.#loops);
  }
}

interface Layout {
  readonly stages: readonly {
    readonly layers: readonly [number, number];
    readonly devices: readonly string[];
    readonly samples: readonly number[];
  }[];
}

const layoutOf = (run: RunningCommand): Layout => run.events('deployment').at(-1)?.['plan'] as Layout;

/** "a: 5 layers x 4 samples, …" of the layout that stands. */
function formOf(run: RunningCommand): string {
  const parts = layoutOf(run).stages.flatMap(({ layers, devices, samples }) =>
    devices.map((device, index) => `${device}: ${layers[1] - layers[0]} x ${samples[index]}`),
  );
  return parts.join(', ');
}

/** Resolves when a layout stands, announced from now on, that fits. */
async function changed(run: RunningCommand, fits: (cause: string, layout: Layout) => boolean): Promise<string> {
  const seen = new Set(run.events('recovered').map(({ cause, round }) => `${cause} ${round}`));
  const { cause } = await run.event('recovered', (event) => {
    return !seen.has(`${event['cause']} ${event['round']}`) && fits(String(event['cause']), layoutOf(run));
  });
  return String(cause);
}

const uses = (name: string, { stages }: Layout): boolean => stages.some(({ devices }) => devices.includes(name));

test('serve: a device becomes slow, a newcomer pays, leaves and returns; throughput follows, all answers are right', {
  timeout,
  skip,
}, async (context) => {
  const cases = await Promise.all(Array.from({ length: 4 }, () => asked(batch)));
  const { run, start } = await startJoined(context, ['serve', '--listen', '127.0.0.1:0', '--timeout', '120']);
  const [, b] = [start('a'), start('b')];
  const { url } = await run.event('serving');
  await run.event('ready');
  const clients = new Clients(String(url), cases, 6);
  const told: string[] = [];
  const rate = async (what: string, milliseconds = 8_000): Promise<number> => {
    const found = await clients.rate(milliseconds);
    told.push(`${what} ${found.toFixed(1)} (${formOf(run)})`);
    return found;
  };
  // Rounds correct the plan step by step.
  const reached = async (what: string, wanted: number): Promise<number> => {
    const endMs = performance.now() + patienceMs;
    for (;;) {
      const found = await rate(what);
      if (found > wanted) return found;
      assert.ok(performance.now() < endMs, `${wanted.toFixed(1)} a second: ${told.join('; ')}`);
    }
  };
  await rate('warm-up', 2_000);
  const usual = await rate('two devices');

  const hurry = slowDown(b);
  context.after(hurry);
  const slow = await rate('one of them slow');
  assert.ok(slow < 0.75 * usual, told.join(', '));
  const { factors } = await run.event('drift', (event) => 'b' in (event['factors'] as object));
  assert.ok(((factors as Record<string, number>)['b'] ?? 0) > 1.25, JSON.stringify(factors));
  await changed(run, () => true);
  const followed = await reached('planned anew', 1.2 * slow);

  let c = start('c');
  await changed(run, (cause, layout) => cause === 'c can help' && uses('c', layout));
  await reached('with a newcomer', 1.2 * followed);

  c.process.kill('SIGKILL');
  await run.event('left', ({ device }) => device === 'c');
  c = start('c');
  const { name } = await c.event('joined');
  await changed(run, (cause, layout) => cause === `${name} can help` && uses(String(name), layout));
  await rate('returned');
  await clients.end();
  context.diagnostic(`samples a second: ${told.join(', ')}`);
  assert.equal(clients.answered, clients.sent);
  run.process.kill('SIGTERM');
  assert.equal((await run.end).code, 0);
});

/**
 * Writes an .npy to a pipe: some samples at a time until `isEnough`, so that the pipeline has work for as long as it
 * takes, then the rest at once.
 */
async function feed(pipe: string, file: Uint8Array, isEnough: () => boolean): Promise<void> {
  // Opened for reading, too: else it would wait for a reader.
  const stream = createWriteStream(pipe, { flags: 'r+' });
  const write = (bytes: Uint8Array): Promise<void> =>
    new Promise((resolve, reject) => {
      stream.write(bytes, (error) => (error ? reject(error) : resolve()));
    });
  const sampleBytes = 4 * pixels;
  const headBytes = file.length % sampleBytes;
  // The last batches wait for what is to happen before.
  const kept = file.length - 8 * batch * sampleBytes;
  let at = headBytes + batch * sampleBytes;
  await write(file.subarray(0, at));
  while (!isEnough() && at < kept) {
    await new Promise((resolve) => setTimeout(resolve, 60));
    await write(file.subarray(at, at + batch * sampleBytes));
    at += batch * sampleBytes;
  }
  assert.ok(isEnough(), 'all happened before the samples were at their end');
  await write(file.subarray(at));
  await new Promise<void>((resolve) => stream.end(resolve));
}

test('infer: a device joins while it runs and gets work, another is killed; outputs are in order, each once', {
  timeout,
  skip,
}, async (context) => {
  const sampleCount = 1200;
  const { data, wanted } = await asked(sampleCount);
  const pipe = join(cwd, 'pipe');
  assert.equal(spawnSync('mkfifo', [pipe]).status, 0);
  const through = ['sh', '-c', 'exec "$@" < pipe', 'sh'];
  let hasHappened = false;
  const fed = feed(pipe, writeNpy(tensor('float32', [sampleCount, 1, 28, 28], data)), () => hasHappened);
  fed.catch(() => {}); // awaited below
  const { run, start } = await startJoined(context, ['infer', '--data', '-', '-o', 'y.npy'], through);
  const a = start('a');
  start('b');
  await run.event('phase', ({ phase }) => phase === 'training');
  const begun = performance.now();
  start('c');
  await changed(run, (cause, layout) => cause === 'c can help' && uses('c', layout));
  a.process.kill('SIGKILL');
  await changed(run, (cause, layout) => cause.startsWith('a left') && !uses('a', layout));
  context.diagnostic(`both after ${((performance.now() - begun) / 1000).toFixed(1)} s`);
  hasHappened = true;
  await fed;
  const { code, stderr } = await run.end;
  assert.equal(code, 0, stderr);
  const found = readNpy({ name: 'y.npy', bytes: await readFile(join(cwd, 'y.npy')) });
  assert.deepEqual(found.shape, [sampleCount, 10]);
  assertClose(found.data as Float32Array, wanted, 'outputs');
});
