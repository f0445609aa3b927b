// Schemas of what messages consist of, with the limits that hold for whatever comes from the network.

import { z } from 'zod';
import type { DeviceTimes, LayerProfile, Plan } from '../../cluster/cluster.ts';
import { deviceTimesSchema, type Limits, layerSchema, layoutShape } from '../../cluster/schemas.ts';
import type { Move } from '../../planner/replan/moves.ts';

export const name: z.ZodString = z.string().min(1).max(300);
export const count: z.ZodNumber = z.number().int().min(0).max(1e9);
export const milliseconds: z.ZodNumber = z.number().min(0).max(1e9);
/** Samples or micro-batches: what a device makes room for. */
export const size: z.ZodNumber = z.number().int().positive().max(1e6);

/** Messages are limited more strictly than a person's files. */
const limits: Limits = {
  text: () => name,
  whole: (least) => count.min(least),
  size: () => size,
  amount: () => z.number().min(0),
  milliseconds: () => milliseconds,
};

export const plan: z.ZodType<Plan> = z.object({
  planner: name,
  ...layoutShape(limits),
  predicted: z.object({
    roundMs: z.number(),
    samplesPerS: z.number(),
    peakMemoryMiB: z.record(z.string(), z.number()),
  }),
});

export const range: z.ZodType<readonly [number, number]> = z.tuple([count, count]);

export const moves: z.ZodType<readonly Move[]> = z
  .array(z.object({ layers: range, from: name.nullable(), to: name }))
  .max(100_000);

export const deviceTimes: z.ZodType<DeviceTimes> = deviceTimesSchema(limits);
export const layerProfiles: z.ZodType<readonly LayerProfile[]> = z.array(layerSchema(limits));
