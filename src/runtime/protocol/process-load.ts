// What a device's process takes of its machine, as heartbeats tell it.

import { z } from 'zod';

/** Of one process. */
export interface ProcessLoad {
  /** Processor time a second, since it was last asked. */
  readonly usedCores: number;
  readonly residentMiB: number;
}

export const processLoad: z.ZodType<ProcessLoad> = z.object({
  usedCores: z.number().min(0).max(1e5),
  residentMiB: z.number().min(0).max(1e9),
});
