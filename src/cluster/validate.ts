// Reads Cluster, Profile and Plan (architecture.md, "Contracts") from JSON or YAML text, or from a value, and refuses
// what is not one with a single InputError sentence: what, where, the fix. Unknown keys are tolerated and dropped.
// After this, nobody checks them again. What two documents must agree on (a plan's devices are in the cluster, ...) is
// checked by checkTogether.

import { z } from 'zod';
import type { Cluster, Plan, PlanLayout, Profile, StagePlan } from './cluster.ts';
import { applySchema, documentValue, refuse, type Source, sourceOf } from './document.ts';
import { deviceTimes } from './times.ts';

const aboveZero = (unit: string): z.ZodNumber =>
  z.number(`a number above 0 (${unit})`).positive(`a number above 0 (${unit})`);
const zeroOrMore = (unit: string): z.ZodNumber =>
  z.number(`a number of 0 or more (${unit})`).min(0, `a number of 0 or more (${unit})`);
const wholeFrom = (least: number, what: string): z.ZodNumber => {
  const text = `a whole number of ${least} or more (${what})`;
  return z.number(text).int(text).min(least, text);
};
const text = (what: string): z.ZodString => z.string(`a text: ${what}`).min(1, `a text: ${what}`);
const list = <Element extends z.ZodType>(element: Element, what: string): z.ZodArray<Element> =>
  z.array(element, `a list of ${what}`);
const filled = <Element extends z.ZodType>(element: Element, what: string): z.ZodArray<Element> =>
  list(element, what).min(1, `a list of at least one of ${what}`);

const linkShape = {
  bandwidthMbps: aboveZero('megabits a second'),
  latencyMs: zeroOrMore('milliseconds').exactOptional(),
};

const clusterSchema = z.object(
  {
    devices: filled(
      z.object(
        {
          name: text("the device's name"),
          kind: text("the device's kind").exactOptional(),
          memoryMiB: aboveZero('MiB of memory for training'),
          powerW: zeroOrMore('watts').exactOptional(),
          cores: aboveZero('cores of this machine, in a lab').exactOptional(),
        },
        'an object with name and memoryMiB',
      ),
      'devices',
    ),
    links: z.object(
      {
        default: z.object(linkShape, 'an object with bandwidthMbps'),
        pairs: list(
          z.object(
            {
              ...linkShape,
              between: z.tuple([text("a device's name"), text("a device's name")], 'a list of two device names'),
            },
            'an object with between and bandwidthMbps',
          ),
          'links between two devices',
        ).exactOptional(),
      },
      'an object with default: { bandwidthMbps }',
    ),
    dataDevice: text('the name of the device that holds the data').exactOptional(),
  },
  'an object with devices and links',
);

/** Documents that have passed: they are not looked at again. */
const passedClusters = new WeakSet<Cluster>();
const passedProfiles = new WeakSet<Profile>();

/** A cluster from JSON or YAML text, or from a value; `where` names the source in errors. Throws InputError. */
export function parseCluster(document: unknown, where = 'cluster'): Cluster {
  if (passedClusters.has(document as Cluster)) return document as Cluster;
  const source = sourceOf(document, where);
  const cluster: Cluster = applySchema(clusterSchema, documentValue(document, where), source);
  const names = new Set<string>();
  for (const [index, device] of cluster.devices.entries()) {
    if (names.has(device.name))
      refuse(source, ['devices', index, 'name'], `repeats "${device.name}"`, 'give each device a name of its own');
    names.add(device.name);
  }
  const pairs = new Set<string>();
  for (const [index, { between }] of (cluster.links.pairs ?? []).entries()) {
    const path = ['links', 'pairs', index, 'between'];
    for (const name of between)
      if (!names.has(name)) refuse(source, path, `names "${name}", which is no device`, `use one of ${some(names)}`);
    if (between[0] === between[1])
      refuse(source, path, `joins "${between[0]}" to itself`, 'name two different devices');
    const key = JSON.stringify([...between].sort());
    if (pairs.has(key))
      refuse(
        source,
        path,
        `repeats the link between "${between[0]}" and "${between[1]}"`,
        'keep one of them (a pair counts for both directions)',
      );
    pairs.add(key);
  }
  const holder = cluster.dataDevice;
  if (holder !== undefined && !names.has(holder))
    refuse(source, ['dataDevice'], `names "${holder}", which is no device`, `use one of ${some(names)}`);
  passedClusters.add(cluster);
  return cluster;
}

const milliseconds = zeroOrMore('milliseconds');
const table = list(list(milliseconds, 'milliseconds, one for each layer'), 'rows, one for each batch size');

const profileSchema = z.object(
  {
    model: z.string('a text: the name of the model'),
    inputBytes: zeroOrMore('bytes of one sample'),
    labelBytes: zeroOrMore('bytes of one label'),
    layers: filled(
      z.object(
        {
          name: text("the layer's name"),
          outputBytes: zeroOrMore('bytes a sample across the cut after this layer'),
          weightBytes: zeroOrMore('bytes of weights'),
          frozenBytes: zeroOrMore('bytes of weights that are not trained').exactOptional(),
          savedBytes: zeroOrMore('bytes a sample kept for the backward pass'),
          runtimeBytes: zeroOrMore('bytes that the runtime keeps beside these').exactOptional(),
          flops: zeroOrMore('operations a sample'),
          recomputed: z
            .object(
              {
                savedBytes: zeroOrMore('bytes a sample kept all the same'),
                flops: zeroOrMore('operations a sample that run once more'),
              },
              'an object with savedBytes and flops',
            )
            .exactOptional(),
          batchDependent: z.boolean('true or false').exactOptional(),
        },
        'an object with name, outputBytes, weightBytes, savedBytes and flops',
      ),
      'layers',
    ),
    batchSizes: filled(wholeFrom(1, 'a measured batch size'), 'measured batch sizes'),
    devices: z.record(
      z.string(),
      z.object(
        {
          forwardMs: table,
          backwardMs: table,
          backwardInputMs: table.exactOptional(),
          backwardWeightMs: table.exactOptional(),
          stepMs: table.exactOptional(),
          updateMs: list(milliseconds, 'milliseconds, one for each layer').exactOptional(),
          callMs: zeroOrMore('milliseconds that a pass takes besides its layers').exactOptional(),
          handlingMsPerMiB: zeroOrMore('milliseconds of computing that a MiB costs').exactOptional(),
          reducingMsPerMiB: zeroOrMore('milliseconds of computing that a MiB of an AllReduce costs').exactOptional(),
          frameMs: zeroOrMore('milliseconds of computing that a frame costs besides its bytes').exactOptional(),
          passMs: zeroOrMore('milliseconds of computing that a pass costs besides').exactOptional(),
        },
        'an object with forwardMs and backwardMs',
      ),
      'an object from device name or kind to its times',
    ),
  },
  'an object with model, layers, batchSizes and devices',
);

/** A profile from JSON or YAML text, or from a value; `where` names the source in errors. Throws InputError. */
export function parseProfile(document: unknown, where = 'profile'): Profile {
  if (passedProfiles.has(document as Profile)) return document as Profile;
  const source = sourceOf(document, where);
  const profile: Profile = applySchema(profileSchema, documentValue(document, where), source);
  for (const [index, size] of profile.batchSizes.entries()) {
    if (index > 0 && size <= (profile.batchSizes[index - 1] as number)) {
      refuse(
        source,
        ['batchSizes', index],
        `is ${size}, not above the one before it`,
        'list the batch sizes in ascending order',
      );
    }
  }
  for (const [name, times] of Object.entries(profile.devices)) {
    for (const key of ['forwardMs', 'backwardMs', 'backwardInputMs', 'backwardWeightMs', 'stepMs'] as const) {
      const rows = times[key];
      if (rows === undefined) continue;
      checkLength(source, ['devices', name, key], rows, profile.batchSizes.length, 'batchSizes');
      for (const [index, row] of rows.entries())
        checkLength(source, ['devices', name, key, index], row, profile.layers.length, 'layers');
    }
    if (times.updateMs !== undefined)
      checkLength(source, ['devices', name, 'updateMs'], times.updateMs, profile.layers.length, 'layers');
  }
  passedProfiles.add(profile);
  return profile;
}

function checkLength(
  source: Source,
  path: readonly PropertyKey[],
  values: readonly unknown[],
  length: number,
  of: string,
): void {
  if (values.length === length) return;
  refuse(source, path, `has ${values.length} entries`, `give ${length}, one for each entry of ${of}`);
}

/** Of a round: a Program has a few instructions for each on every device. */
const maxMicroBatchCount = 16_384;
const microBatchCountText = `a whole number from 1 to ${maxMicroBatchCount} (micro-batches of a round)`;

const planSchema = z.object(
  {
    planner: text('the name of the planner').default('manual'),
    schedule: text('the name of the schedule, such as 1f1b'),
    batchSize: wholeFrom(1, 'samples of a round'),
    microBatchSize: wholeFrom(1, 'samples of a micro-batch'),
    microBatchCount: z
      .number(microBatchCountText)
      .int(microBatchCountText)
      .min(1, microBatchCountText)
      .max(maxMicroBatchCount, microBatchCountText),
    stages: filled(
      z.object(
        {
          layers: z.tuple(
            [wholeFrom(0, 'first layer'), wholeFrom(1, 'end layer')],
            'a list of two: the first layer and the one after the last',
          ),
          devices: filled(text("a device's name"), 'device names'),
          samples: filled(wholeFrom(0, "samples of a device's share"), 'samples, one for each device'),
          inFlight: wholeFrom(1, 'micro-batches kept at once'),
          savedBytes: list(
            zeroOrMore('bytes a sample kept for the backward pass'),
            'bytes a sample, one for each device',
          ).exactOptional(),
          buckets: list(wholeFrom(1, 'first layer of a bucket'), 'layers at which buckets begin').exactOptional(),
        },
        'an object with layers, devices, samples and inFlight',
      ),
      'stages',
    ),
    forwardOnlyLayers: wholeFrom(0, 'leading layers that are not trained').exactOptional(),
    compression: z
      .strictObject(
        {
          activation: z.literal('float16', '"float16"').exactOptional(),
          gradient: z.literal('float16', '"float16"').exactOptional(),
          allReduce: z.enum(['float16', 'int8'], '"float16" or "int8"').exactOptional(),
        },
        'an object with activation, gradient or allReduce',
      )
      .exactOptional(),
    predicted: z
      .object({
        roundMs: z.number(),
        samplesPerS: z.number(),
        lowerBoundMs: z.number().exactOptional(),
        peakMemoryMiB: z.record(z.string(), z.number()),
      })
      .optional()
      .catch(undefined), // What a file claims is only shown, never relied on: a claim that cannot be read is no claim.
  },
  'an object with schedule, batchSize, microBatchSize, microBatchCount and stages',
);

/** A plan as a file holds it: with or without its prediction. */
export type WrittenPlan = PlanLayout & { readonly predicted?: Plan['predicted'] };

/**
 * A plan from JSON or YAML text, or from a value: a Plan, or the document `{ plan, ... }` that `asteroid plan` prints.
 * `planner` may be absent ('manual') and so may `predicted`. Each device stands in one stage. Throws InputError.
 */
export function parsePlan(document: unknown, where = 'plan'): WrittenPlan {
  const outer = documentValue(document, where);
  const isPrinted = typeof outer === 'object' && outer !== null && 'plan' in outer;
  const source: Source = { ...sourceOf(document, where), within: isPrinted ? ['plan'] : [] };
  const { predicted, ...plan } = applySchema(planSchema, isPrinted ? outer.plan : outer, source);
  if (plan.microBatchSize * plan.microBatchCount !== plan.batchSize) {
    const what = `is ${plan.batchSize}, not microBatchSize × microBatchCount = ${plan.microBatchSize} × ${plan.microBatchCount}`;
    refuse(source, ['batchSize'], what, 'make the three agree');
  }
  let end = 0;
  const devices = new Set<string>();
  for (const [index, stage] of plan.stages.entries()) {
    checkStage(stage, plan.microBatchSize, end, source, ['stages', index]);
    for (const [place, device] of stage.devices.entries()) {
      if (devices.has(device))
        refuse(
          source,
          ['stages', index, 'devices', place],
          `repeats "${device}"`,
          'let each device stand in one stage, once',
        );
      devices.add(device);
    }
    end = stage.layers[1];
  }
  return predicted === undefined ? plan : { ...plan, predicted };
}

function checkStage(
  stage: StagePlan,
  microBatchSize: number,
  start: number,
  source: Source,
  path: readonly PropertyKey[],
): void {
  const [first, end] = stage.layers;
  if (first !== start)
    refuse(
      source,
      [...path, 'layers'],
      `starts at layer ${first}`,
      `start it at ${start}, so that each layer is in exactly one stage`,
    );
  if (end <= first)
    refuse(source, [...path, 'layers'], `is [${first}, ${end}], which holds no layer`, 'end it after its first layer');
  if (stage.samples.length !== stage.devices.length) {
    const what = `has ${stage.samples.length} entries for ${stage.devices.length} devices`;
    refuse(source, [...path, 'samples'], what, 'give one for each device');
  }
  if (stage.savedBytes !== undefined && stage.savedBytes.length !== stage.devices.length) {
    const what = `has ${stage.savedBytes.length} entries for ${stage.devices.length} devices`;
    refuse(source, [...path, 'savedBytes'], what, 'give one for each device, or leave it out');
  }
  const sum = stage.samples.reduce((total, share) => total + share, 0);
  if (sum !== microBatchSize)
    refuse(source, [...path, 'samples'], `adds up to ${sum}`, `make it add up to microBatchSize, ${microBatchSize}`);
  for (const [index, border] of (stage.buckets ?? []).entries()) {
    const above = stage.buckets?.[index - 1] ?? first;
    if (border <= above || border >= end)
      refuse(
        source,
        [...path, 'buckets', index],
        `is ${border}`,
        `list layers above ${first} and below ${end}, in ascending order`,
      );
  }
}

/**
 * Checks what the three documents must agree on: the plan's devices, the model's layers, times for every device. Throws
 * InputError.
 */
export function checkTogether(plan: PlanLayout, profile: Profile, cluster: Cluster): void {
  const specs = new Map(cluster.devices.map((device) => [device.name, device]));
  for (const [index, stage] of plan.stages.entries()) {
    for (const [place, name] of stage.devices.entries()) {
      const device = specs.get(name);
      if (device === undefined) {
        refuse(
          { name: 'plan' },
          ['stages', index, 'devices', place],
          `names "${name}", which the cluster does not have`,
          `use one of ${some(specs.keys())}`,
        );
      }
      deviceTimes(profile, device);
    }
  }
  const end = plan.stages.at(-1)?.layers[1] ?? 0;
  if (end !== profile.layers.length) {
    refuse(
      { name: 'plan' },
      ['stages', plan.stages.length - 1, 'layers', 1],
      `is ${end}`,
      `end the last stage at ${profile.layers.length}, the number of the profile's layers`,
    );
  }
}

function some(names: Iterable<string>): string {
  const all = [...names].map((name) => `"${name}"`);
  return all.length <= 6 ? all.join(', ') : `${all.slice(0, 5).join(', ')} or ${all.length - 5} others`;
}
