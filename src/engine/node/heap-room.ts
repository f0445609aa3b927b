// Room in the C library's heap for the large blocks that runs take and leave. With `allocatorEnvironment`
// (host-node.ts) a block of 4 MiB and more for which the heap has no room is, where memory is scarce, a mapping of its
// own, whose pages are made anew in each run: in a stage of MobileNetV2 a quarter of the time of all its runs, or none,
// as earlier blocks happen to lie. Whether a session has such blocks shows in its page faults; if it goes on, the heap
// is made to grow. Huge pages, of which a fault brings 2 MiB, are too few to show. Node only.
//
// In one process of a hundred it cannot: V8 has put the range of its code (128 MiB and more) right behind the heap. The
// C library then adds pieces of 20 MiB that do not join, and larger blocks stay mappings.

import { discardBuffer } from '../buffers.ts';
import type { OnnxRuntime, RuntimeSession } from '../onnxruntime-module.ts';

export interface HeapRoomOptions {
  /** Pages that this process was given, so far. Default: what the operating system says. */
  readonly pageFaults?: () => number;
  /** Milliseconds, monotonic. Default performance.now. */
  readonly now?: () => number;
  /** Makes the heap have this many free bytes at its end. Default: by blocks too small for mappings of their own. */
  readonly grow?: (bytes: number) => void;
}

/**
 * Pages that a run maps again, and in each of its milliseconds: fewer are a small part of its time, and room costs
 * memory.
 */
const [leastFaults, leastFaultsPerMs] = [256, 10];
/** Runs in a row before the heap grows: the first runs of a round take memory for what they keep, which stays. */
const leastRuns = 24;
/** The heap grows by so much at a time, for one session at most so often. */
const growBytes = 2 ** 25;
const mostGrowths = 2;
/** The largest that comes from the heap whether it has room or must grow. */
const blockBytes = 2 ** 22 - 2 ** 13;

/** The runtime with sessions whose runs find room. */
export function withHeapRoom(runtime: OnnxRuntime, options: HeapRoomOptions = {}): OnnxRuntime {
  const {
    pageFaults = () => process.resourceUsage().minorPageFault,
    now = () => performance.now(),
    grow = growHeap,
  } = options;
  const watched = (session: RuntimeSession): RuntimeSession => {
    let [runCount, growthCount] = [0, 0];
    return {
      async run(feeds, fetches) {
        const [before, startMs] = [pageFaults(), now()];
        try {
          return await session.run(feeds, fetches);
        } finally {
          const isDear = pageFaults() - before >= Math.max(leastFaults, leastFaultsPerMs * (now() - startMs));
          runCount = isDear ? runCount + 1 : 0;
          if (runCount >= leastRuns && growthCount < mostGrowths) {
            grow(growBytes);
            growthCount++;
            runCount = 0;
          }
        }
      },
      release: () => session.release(),
    };
  };
  return {
    Tensor: runtime.Tensor,
    InferenceSession: { create: async (model, given) => watched(await runtime.InferenceSession.create(model, given)) },
  };
}

/**
 * Blocks from the end of the heap, never filled, given back to it at once. It keeps them (`MALLOC_TRIM_THRESHOLD_`), in
 * one piece from the next search for garbage on.
 */
function growHeap(bytes: number): void {
  const blocks = Array.from({ length: Math.ceil(bytes / blockBytes) }, () => Buffer.allocUnsafeSlow(blockBytes).buffer);
  for (const block of blocks) discardBuffer(block);
}
