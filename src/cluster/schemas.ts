// The zod schemas of Profile, Plan and their parts, once for files (validate.ts) and for messages between devices
// (runtime/protocol/messages.ts), which set their own limits for numbers and names.

import { z } from 'zod';
import type { DeviceTimes, LayerProfile, StagePlan } from './cluster.ts';
import { activationEncodingNames, type Compression, cutEncodingNames, sumEncodingNames } from './compression.ts';
import { overheadSchema } from './overhead.ts';

/** What a reader accepts as a name and as a number. `what` says what is expected, where errors are shown to people. */
export interface Limits {
  text(what: string): z.ZodString;
  /** A whole number of `least` or more. */
  whole(least: 0 | 1, what: string): z.ZodNumber;
  /** Samples or micro-batches of a round. */
  size(what: string): z.ZodNumber;
  /** Bytes or operations: 0 or more. */
  amount(what: string): z.ZodNumber;
  milliseconds(what: string): z.ZodNumber;
}

const list = <Element extends z.ZodType>(element: Element, what: string): z.ZodArray<Element> =>
  z.array(element, `a list of ${what}`);

/** At least one element. */
export function filledList<Element extends z.ZodType>(element: Element, what: string): z.ZodArray<Element> {
  return list(element, what).min(1, `a list of at least one of ${what}`);
}

/** A layer of a profile. */
export function layerSchema({ text, amount }: Limits): z.ZodType<LayerProfile> {
  return z.object(
    {
      name: text("the layer's name"),
      outputBytes: amount('bytes a sample across the cut after this layer'),
      weightBytes: amount('bytes of weights'),
      frozenBytes: amount('bytes of weights that are not trained').exactOptional(),
      savedBytes: amount('bytes a sample kept for the backward pass'),
      workingBytes: amount('bytes a sample that a pass has at once').exactOptional(),
      runtimeBytes: amount('bytes that the runtime keeps beside these').exactOptional(),
      filterBytes: amount('bytes of these, for each round under way').exactOptional(),
      predictedBytes: amount('bytes of weights that are predicted for each version').exactOptional(),
      flops: amount('operations a sample'),
      recomputed: z
        .object(
          {
            savedBytes: amount('bytes a sample kept all the same'),
            flops: amount('operations a sample that run once more'),
          },
          'an object with savedBytes and flops',
        )
        .exactOptional(),
      batchDependent: z.boolean('true or false').exactOptional(),
    },
    'an object with name, outputBytes, weightBytes, savedBytes and flops',
  );
}

/** The times of a device. That tables have the profile's size is checked elsewhere. */
export function deviceTimesSchema({ milliseconds }: Limits): z.ZodType<DeviceTimes> {
  const row = list(milliseconds('milliseconds'), 'milliseconds, one for each layer');
  const table = list(row, 'rows, one for each batch size');
  return z.object(
    {
      forwardMs: table,
      backwardMs: table,
      backwardInputMs: table.exactOptional(),
      backwardWeightMs: table.exactOptional(),
      tangentMs: table.exactOptional(),
      updateMs: row.exactOptional(),
      ...overheadSchema(table, milliseconds),
    },
    'an object with forwardMs and backwardMs',
  );
}

function stageSchema({ text, whole, amount }: Limits): z.ZodType<StagePlan> {
  return z.object(
    {
      layers: z.tuple(
        [whole(0, 'first layer'), whole(1, 'end layer')],
        'a list of two: the first layer and the one after the last',
      ),
      devices: filledList(text("a device's name"), 'device names'),
      samples: filledList(whole(0, "samples of a device's share"), 'samples, one for each device'),
      inFlight: whole(1, 'micro-batches kept at once'),
      savedBytes: list(
        amount('bytes a sample kept for the backward pass'),
        'bytes a sample, one for each device',
      ).exactOptional(),
      buckets: list(whole(1, 'first layer of a bucket'), 'layers at which buckets begin').exactOptional(),
    },
    'an object with layers, devices, samples and inFlight',
  );
}

const oneOf = <Name extends string>(names: readonly Name[]): z.ZodType<Name> =>
  z.enum(names as readonly [Name, ...Name[]], names.map((name) => `"${name}"`).join(' or '));

const compressionSchema: z.ZodType<Compression> = z.strictObject(
  {
    activation: oneOf(activationEncodingNames).exactOptional(),
    gradient: oneOf(cutEncodingNames).exactOptional(),
    allReduce: oneOf(sumEncodingNames).exactOptional(),
    adaptive: z.strictObject({ paceMs: z.number().positive().exactOptional() }).exactOptional(),
    exactEvery: z.int().min(2).exactOptional(),
  },
  'an object with activation, gradient or allReduce',
);

/** All fields of a plan but its prediction and its planner's name. */
export interface LayoutShape {
  readonly schedule: z.ZodString;
  readonly batchSize: z.ZodNumber;
  readonly microBatchSize: z.ZodNumber;
  readonly microBatchCount: z.ZodNumber;
  readonly stages: z.ZodArray<z.ZodType<StagePlan>>;
  readonly forwardOnlyLayers: z.ZodExactOptional<z.ZodNumber>;
  readonly staleness: z.ZodExactOptional<z.ZodArray<z.ZodNumber>>;
  readonly tangentCount: z.ZodExactOptional<z.ZodNumber>;
  readonly lastCopyTo: z.ZodExactOptional<z.ZodType<'first'>>;
  readonly compression: z.ZodExactOptional<z.ZodType<Compression>>;
}

export function layoutShape(limits: Limits): LayoutShape {
  const { text, whole, size } = limits;
  return {
    schedule: text('the name of the schedule, such as 1f1b'),
    batchSize: size('samples of a round'),
    microBatchSize: size('samples of a micro-batch'),
    microBatchCount: size('micro-batches of a round'),
    stages: filledList(stageSchema(limits), 'stages'),
    forwardOnlyLayers: whole(0, 'leading layers that are not trained').exactOptional(),
    staleness: list(whole(0, "rounds by which a stage's weights lag"), 'rounds, one for each stage').exactOptional(),
    tangentCount: size('tangents of a round').exactOptional(),
    lastCopyTo: oneOf(['first']).exactOptional(),
    compression: compressionSchema.exactOptional(),
  };
}
