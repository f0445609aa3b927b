// What a device is, in its own words: a worker says it once, when it joins.

import { z } from 'zod';

/** What a worker says of its device when it joins. */
export interface DeviceFacts {
  /** What its process may take: its machine's, or less where its owner gave it a limit. */
  readonly memoryMiB: number;
  /** All of its machine's, where the device has a limit of its own. */
  readonly machineMemoryMiB?: number;
  readonly cores: number;
  readonly engine: string;
  /** One sentence where the device has a far slower engine than it could: why, and the fix. */
  readonly engineWarning?: string;
  /** Devices with the same machine share its memory: each has its limit, but no more than its share. */
  readonly machine: string;
  readonly cpuModel?: string;
  readonly cpuQuotaCores?: number;
  readonly batteryPercent?: number;
  readonly isDischarging?: boolean;
  readonly temperatureC?: number;
  /**
   * Processes of its control group that its system had killed for want of memory, when the device's own process began.
   */
  readonly oomKillCount?: number;
}

/** As they come over a link. */
export const factsSchema: z.ZodType<DeviceFacts> = z.object({
  memoryMiB: z.number().int().positive().max(1e9),
  machineMemoryMiB: z.number().int().positive().max(1e9).exactOptional(),
  cores: z.number().int().positive().max(1e5),
  engine: z.string().max(200),
  engineWarning: z.string().max(600).exactOptional(),
  machine: z.string().max(200),
  cpuModel: z.string().max(200).exactOptional(),
  cpuQuotaCores: z.number().positive().max(1e5).exactOptional(),
  batteryPercent: z.number().min(0).max(100).exactOptional(),
  isDischarging: z.boolean().exactOptional(),
  temperatureC: z.number().min(-100).max(200).exactOptional(),
  oomKillCount: z.number().int().min(0).max(1e9).exactOptional(),
});
