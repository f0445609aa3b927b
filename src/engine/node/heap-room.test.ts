import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import { promisify } from 'node:util';
import type { OnnxRuntime } from '../onnxruntime-module.ts';
import { withHeapRoom } from './heap-room.ts';
import { allocatorEnvironment } from './host-node.ts';

/**
 * A runtime whose runs take as many new pages as `faultsOf` says of each run of a session, and `runMs`; and what the
 * heap grew by.
 */
async function watched(faultsOf: (run: number) => number, runMs = 10) {
  let [pages, nowMs] = [0, 0];
  let run = 0;
  const grown: { run: number; bytes: number }[] = [];
  const plain = {
    run: async () => {
      pages += faultsOf(run++);
      nowMs += runMs;
      return {};
    },
    release: async () => {},
  };
  const runtime = { Tensor: class {}, InferenceSession: { create: async () => plain } } as unknown as OnnxRuntime;
  const roomy = withHeapRoom(runtime, {
    pageFaults: () => pages,
    now: () => nowMs,
    grow: (bytes) => grown.push({ run, bytes }),
  });
  const session = await roomy.InferenceSession.create(new Uint8Array(), {});
  return {
    grown,
    runMany: async (count: number) => {
      for (let index = 0; index < count; index++) await session.run({}, []);
    },
  };
}

test('the heap grows when a session has mapped large blocks again for 24 runs, and then once more', async () => {
  const { grown, runMany } = await watched(() => 1000);
  await runMany(23);
  assert.deepEqual(grown, []);
  await runMany(100);
  assert.deepEqual(grown, [
    { run: 24, bytes: 2 ** 25 },
    { run: 48, bytes: 2 ** 25 },
  ]);
});

test('it does not grow for the first runs of a round, for a few pages, or for a small part of a long run', async () => {
  const rounds = await watched((run) => (run % 16 < 15 ? 1000 : 0));
  await rounds.runMany(200);
  assert.deepEqual(rounds.grown, []);
  const small = await watched(() => 255);
  await small.runMany(200);
  assert.deepEqual(small.grown, []);
  const long = await watched(() => 999, 100);
  await long.runMany(200);
  assert.deepEqual(long.grown, []);
});

test('a run that fails is a run: its error passes', async () => {
  const runtime = {
    Tensor: class {},
    InferenceSession: {
      create: async () => ({ run: async () => Promise.reject(new Error('no')), release: async () => {} }),
    },
  } as unknown as OnnxRuntime;
  let growths = 0;
  let pages = 0;
  const roomy = withHeapRoom(runtime, { pageFaults: () => (pages += 500), grow: () => growths++ });
  const session = await roomy.InferenceSession.create(new Uint8Array(), {});
  for (let run = 0; run < 24; run++) await assert.rejects(session.run({}, []), /^Error: no$/);
  assert.equal(growths, 1);
});

/**
 * In a process with the settings of those that compute, but for huge pages, which make few faults of many pages: a
 * session whose runs take and leave 24 MiB. Garbage is searched for behind each, since what lies beside a buffer's
 * bytes in the heap keeps free pieces apart until then.
 */
const script = `
import { readFileSync } from 'node:fs';
import { withHeapRoom } from ${JSON.stringify(new URL('./heap-room.js', import.meta.url).href)};
import { discardBuffer } from ${JSON.stringify(new URL('../buffers.js', import.meta.url).href)};
const faults = [];
const run = async () => {
  const before = process.resourceUsage().minorPageFault;
  const bytes = Buffer.allocUnsafeSlow(24 * 2 ** 20);
  for (let place = 0; place < bytes.length; place += 4096) bytes[place] = 1;
  discardBuffer(bytes.buffer);
  faults.push(process.resourceUsage().minorPageFault - before);
};
const runtime = { InferenceSession: { create: async () => ({ run }) } };
const session = await withHeapRoom(runtime).InferenceSession.create();
for (let count = 0; count < 40; count++) {
  await session.run();
  gc();
  await new Promise((resolve) => setImmediate(resolve));
}
const [, heapEnd, next] = /-(\\w+) .*\\[heap\\]\\n(\\w+)-/.exec(readFileSync('/proc/self/maps', 'utf8'));
console.log(JSON.stringify({ faults, canGrow: parseInt(next, 16) - parseInt(heapEnd, 16) >= 2 ** 26 }));
`;

/**
 * What the script reports of its process: pages that each run took, and whether the heap's addresses go on behind its
 * end.
 */
interface Watched {
  readonly faults: readonly number[];
  readonly canGrow: boolean;
}

/**
 * Of a process whose heap can grow. In one of a hundred it cannot: V8 has put its code right behind it, where the
 * system chose to begin the heap.
 */
async function watchedProcess(): Promise<Watched> {
  const { GLIBC_TUNABLES: _, ...settings } = allocatorEnvironment(0);
  for (let tries = 0; tries < 5; tries++) {
    const { stdout } = await promisify(execFile)(
      process.execPath,
      ['--expose-gc', '--input-type=module', '-e', script],
      {
        env: { ...process.env, ...settings },
      },
    );
    const watched = JSON.parse(stdout) as Watched;
    if (watched.canGrow) return watched;
  }
  assert.fail('the heap of none of five processes can grow');
}

/** Why pages of a process cannot be counted one by one; undefined where they can. */
function uncountable(): string | undefined {
  if (process.platform !== 'linux') return 'only Linux counts page faults';
  const file = '/sys/kernel/mm/transparent_hugepage/enabled';
  return existsSync(file) && readFileSync(file, 'utf8').includes('[always]')
    ? 'this system gives huge pages to all'
    : undefined;
}

test('on Linux, runs that mapped their blocks again find them in the heap', {
  skip: uncountable() ?? false,
}, async () => {
  const { faults } = await watchedProcess();
  const pages = (24 * 2 ** 20) / 4096;
  assert.ok(
    faults.slice(0, 24).every((count) => count >= pages),
    `each a mapping of its own: ${faults.slice(0, 24)}`,
  );
  // The first that lies in the heap meets its pages for the first time.
  assert.ok(
    faults.slice(26).every((count) => count < 256),
    `in the heap: ${faults.slice(24)}`,
  );
});
