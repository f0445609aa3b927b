// Reads Cluster, Profile and Plan (architecture.md, "Contracts") from JSON or YAML text, or from a value, and refuses
// what is not one with a single InputError sentence: what, where, the fix. Unknown keys are tolerated and dropped.
// They are not checked again after this. What two documents must agree on (a plan's devices are in the cluster, ...) is
// checked by checkTogether.

import { z } from 'zod';
import type { Cluster, Plan, PlanLayout, Profile, StagePlan } from './cluster.ts';
import { applySchema, documentValue, refuse, type Source, sourceOf } from './document.ts';
import { deviceTimesSchema, filledList, type Limits, layerSchema, layoutShape } from './schemas.ts';
import { deviceTimes, timeTables } from './times.ts';

const aboveZero = (unit: string): z.ZodNumber =>
  z.number(`a number above 0 (${unit})`).positive(`a number above 0 (${unit})`);
const zeroOrMore = (unit: string): z.ZodNumber =>
  z.number(`a number of 0 or more (${unit})`).min(0, `a number of 0 or more (${unit})`);
const wholeFrom = (least: number, what: string): z.ZodNumber => {
  const text = `a whole number of ${least} or more (${what})`;
  return z.number(text).int(text).min(least, text);
};
const text = (what: string): z.ZodString => z.string(`a text: ${what}`).min(1, `a text: ${what}`);
const size = (what: string): z.ZodNumber => wholeFrom(1, what);
const limits: Limits = { text, whole: wholeFrom, size, amount: zeroOrMore, milliseconds: zeroOrMore };

const linkShape = {
  bandwidthMbps: aboveZero('megabits a second'),
  latencyMs: zeroOrMore('milliseconds').exactOptional(),
};

const clusterSchema = z.object(
  {
    devices: filledList(
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
        pairs: z
          .array(
            z.object(
              {
                ...linkShape,
                between: z.tuple([text("a device's name"), text("a device's name")], 'a list of two device names'),
              },
              'an object with between and bandwidthMbps',
            ),
            'a list of links between two devices',
          )
          .exactOptional(),
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
      if (!names.has(name)) refuse(source, path, `names "${name}", which is not a device`, `use one of ${some(names)}`);
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
    refuse(source, ['dataDevice'], `names "${holder}", which is not a device`, `use one of ${some(names)}`);
  passedClusters.add(cluster);
  return cluster;
}

const profileSchema = z.object(
  {
    model: z.string('a text: the name of the model'),
    inputBytes: zeroOrMore('bytes of one sample'),
    labelBytes: zeroOrMore('bytes of one label'),
    layers: filledList(layerSchema(limits), 'layers'),
    fixedBatch: wholeFrom(1, 'the only batch size of the model').exactOptional(),
    batchSizes: filledList(wholeFrom(1, 'a measured batch size'), 'measured batch sizes'),
    devices: z.record(z.string(), deviceTimesSchema(limits), 'an object from device name or kind to its times'),
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
    for (const [key, rows] of timeTables(times)) {
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
    ...layoutShape(limits),
    microBatchCount: z
      .number(microBatchCountText)
      .int(microBatchCountText)
      .min(1, microBatchCountText)
      .max(maxMicroBatchCount, microBatchCountText),
    predicted: z
      .object({
        roundMs: z.number(),
        samplesPerS: z.number(),
        lowerBoundMs: z.number().exactOptional(),
        latencyMs: z.number().exactOptional(),
        latencyBoundMs: z.number().exactOptional(),
        peakMemoryMiB: z.record(z.string(), z.number()),
      })
      .optional()
      .catch(undefined), // Predictions are only shown, never relied on: unreadable ones are dropped.
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
    const what =
      `is ${plan.batchSize}, not microBatchSize × microBatchCount ` +
      `= ${plan.microBatchSize} × ${plan.microBatchCount}`;
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
  if (plan.staleness !== undefined && plan.staleness.length !== plan.stages.length) {
    const what = `has ${plan.staleness.length} entries for ${plan.stages.length} stages`;
    refuse(source, ['staleness'], what, 'give one for each stage, or leave it out');
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
