// What can be known of this machine without measuring: for people, for caches of measurements, and for defaults. Node
// only.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { availableParallelism, cpus, totalmem } from 'node:os';
import { setFlagsFromString } from 'node:v8';
import { type LinuxFacts, linuxFacts } from './host-linux.ts';

/**
 * Facts about the machine that this process runs on. Quota, battery and temperature are known on Linux, where it has
 * them.
 */
export interface DeviceFacts extends LinuxFacts {
  /** Threads that can run at once. */
  readonly coreCount: number;
  readonly cpuModel: string;
  /** What this process may use: the machine's memory, or the limit of its container. */
  readonly memoryMiB: number;
  /** Such as "linux". */
  readonly platform: string;
  /** Such as "x64". */
  readonly arch: string;
  readonly nodeVersion: string;
  /** Such as "onnxruntime-node 1.30.0", or null where it is not installed. */
  readonly engineVersion: string | null;
}

/** Looks at the machine. Starts no engine. */
export function deviceFacts(): DeviceFacts {
  const linux = process.platform === 'linux' ? linuxFacts() : {};
  return {
    coreCount: availableParallelism(),
    cpuModel: cpus()[0]?.model.trim() || 'unknown',
    memoryMiB: memoryOf(linux),
    platform: process.platform,
    arch: process.arch,
    nodeVersion: process.versions.node,
    engineVersion: installedVersion('onnxruntime-node'),
    ...linux,
  };
}

/** MiB that this process may use. */
function memoryOf({ memoryLimitBytes = 0 }: LinuxFacts): number {
  // Node looks at the process's own control group only.
  const limits = [process.constrainedMemory(), memoryLimitBytes].filter((limit) => limit > 0);
  return Math.floor(Math.min(totalmem(), ...limits) / 2 ** 20);
}

/** From here on a process has memory enough for time to matter more: laptops, not boards. */
const ampleMiB = 6 * 2 ** 10;

/**
 * Environment variables for processes that compute, to be set before they start; elsewhere than with the GNU C library
 * they do nothing.
 * - The pages that one run freed are there for the next, however many, and the compute thread shares the main thread's
 *   heap, which is never unmapped whole: a net of 100 layers took 85 ms a run so, and 86 or 107 by chance without. With
 *   more than 128 MiB given back after each micro-batch, MobileNetV2's of 16 samples took 18 to 25% longer, for the
 *   same peak to 2%.
 * - Huge pages, where the kernel leaves them to the program, save most page faults of large tensors: about 15% of
 *   ResNet-50's time.
 * - No caches of small blocks. The runtime asks for aligned blocks, for which the library cuts up to 96 bytes off a
 *   larger one. In a cache these are not joined again, and the hole that a freed tensor leaves is then too small for
 *   the next tensor of its size: a step took a quarter to a half more memory than predicted.
 * - Blocks of 4 MiB and more for which the heap has no room are mappings of their own, which leave no holes at all.
 *   From 32 MiB on only, a step takes 5 to 10% more memory; from 1 MiB on, noticeably longer
 *   (bench/results/2026-11-21-memory.md).
 * - The heap grows by 16 MiB more than it must (a page that nobody writes takes no memory), which leaves room for most
 *   of them. Otherwise it is a matter of chance whether a process has any: every other one mapped its large activations
 *   again, in pages of 4 KiB, in each micro-batch, and took 15% longer than its equals. With 32 MiB and more, steps
 *   that recompute take up to 20% more memory than predicted.
 * - Where a process has ample memory, no block is a mapping of its own: nets on large pictures take 6 to 27% less time,
 *   and as a rule 5% more memory, in one case a third (bench/results/2026-11-29-heap-room.md).
 *
 * `memoryMiB`: what the process may use. Default: the machine's memory, or the limit of its container.
 */
export function allocatorEnvironment(memoryMiB: number = machineMemory()): Readonly<Record<string, string>> {
  return {
    MALLOC_ARENA_MAX: '1',
    MALLOC_TOP_PAD_: String(2 ** 24),
    MALLOC_TRIM_THRESHOLD_: String(2 ** 31),
    MALLOC_MMAP_THRESHOLD_: String(2 ** 22),
    GLIBC_TUNABLES: 'glibc.malloc.hugetlb=1:glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0',
    ...(memoryMiB >= ampleMiB ? { MALLOC_MMAP_MAX_: '0' } : {}),
  };
}

const machineMemory = (): number => memoryOf(process.platform === 'linux' ? linuxFacts() : {});

/** The young generation of V8, in MiB, of which there are three parts in each thread: 2 instead of the usual 16. */
const nursery = { flag: '--max-semi-space-size', mib: 2 } as const;

/**
 * `environment` with what processes that compute want; what it has of its own stays. `memoryMiB`: what the process may
 * use; default: as `allocatorEnvironment` has it.
 * - `allocatorEnvironment`.
 * - A small nursery for young objects of the program. With V8's usual one a worker takes 60 to 70 MiB more, part of
 *   them tensors that garbage holds, and no less processor time (bench/results/2026-11-26-nursery.md).
 */
export function computeEnvironment(environment: NodeJS.ProcessEnv, memoryMiB?: number): NodeJS.ProcessEnv {
  const { flag, mib } = nursery;
  const { NODE_OPTIONS: given = '' } = environment;
  const stays = given.includes(flag) || !process.allowedNodeEnvironmentFlags.has(flag);
  return {
    ...allocatorEnvironment(memoryMiB),
    ...environment,
    ...(stays ? {} : { NODE_OPTIONS: `${given} ${flag}=${mib}`.trim() }),
  };
}

/**
 * Lets the heaps of this process grow to twice their size before they are searched for garbage; to be called before
 * anything large is made. Tensors lie outside the heap and count in full against a limit made for it: a data-parallel
 * round of MobileNetV2 in 8 micro-batches caused six searches, which took a fifth of a device held to a third of a
 * core. Costs some 5 % more memory.
 */
export function searchForGarbageLess(): void {
  setFlagsFromString('--heap-growing-percent=100');
}

function installedVersion(name: string): string | null {
  try {
    const path = createRequire(import.meta.url).resolve(`${name}/package.json`);
    const { version } = JSON.parse(readFileSync(path, 'utf8')) as { version: string };
    return `${name} ${version}`;
  } catch {
    return null; // Not installed: that is the answer.
  }
}
