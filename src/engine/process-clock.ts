// The work of the process that an engine belongs to, as a clock of it reports: Node's is in engine/node/work-clock.ts.

/** The work of a process so far, as milliseconds of an engine that uses all the cores it may use. */
export interface ProcessWork {
  /** All work: the engine's and everything else. */
  readonly processMs: number;
  /** The part of the main thread, which has the links. Absent if it is not known. */
  readonly mainMs?: number;
  /** The part of the engine's thread. Absent if it is not known. */
  readonly computeMs?: number;
}

/** `threadMs`: the processor time of the engine's thread (`Engine.threadMs`), if it is known. */
export type ProcessClock = (threadMs?: number) => ProcessWork;
