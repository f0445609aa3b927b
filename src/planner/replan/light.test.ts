import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, Plan, PlanLayout, Profile, StagePlan } from '../../cluster/cluster.ts';
import { bytesInMiB } from '../../cluster/memory.ts';
import { checkTogether, parsePlan } from '../../cluster/validate.ts';
import { createRandom, permutation } from '../../random.ts';
import { checkProgram } from '../../schedule/check.ts';
import { program } from '../../schedule/generate.ts';
import { scheduleNames, scheduleOf } from '../../schedule/schedules.ts';
import { simulate } from '../../simulator/simulate.ts';
import { randomInstance } from '../../testing/random-plans.ts';
import { everyCut, withRecomputed } from '../../testing/random-problems.ts';
import { lightReplan } from './light.ts';
import type { ReplanInput } from './survivors.ts';

/** A random pipeline on a random instance, whether or not it fits, and the devices that are lost. */
function randomLoss(seed: number): ReplanInput & { readonly profile: Profile } {
  const random = createRandom(seed, 61);
  const deviceCount = 2 + random.integer(6);
  const layerCount = 2 + random.integer(14);
  const { profile, cluster } = randomInstance(seed, { deviceCount, layerCount });
  const order = [...permutation(deviceCount, random)].map((place) => cluster.devices[place]?.name ?? '');
  const stageCount = 1 + random.integer(Math.min(deviceCount, layerCount));
  const microBatchSize = 4 * (1 + random.integer(4));
  const microBatchCount = 1 + random.integer(8);
  const schedule = random.uniform() < 0.4 ? '1f1b' : (scheduleNames[random.integer(scheduleNames.length)] ?? '1f1b');
  const part = (total: number, index: number): number => Math.floor((index * total) / stageCount);
  const stages = Array.from({ length: stageCount }, (_, stage): StagePlan => {
    const devices = order.slice(part(deviceCount, stage), part(deviceCount, stage + 1));
    const share = Math.floor(microBatchSize / devices.length);
    return {
      layers: [part(layerCount, stage), part(layerCount, stage + 1)],
      devices,
      samples: devices.map((_, index) => (index === 0 ? microBatchSize - share * (devices.length - 1) : share)),
      inFlight: scheduleOf(schedule).inFlight(stage, stageCount, microBatchCount),
    };
  });
  const plan = {
    planner: 'random',
    schedule,
    batchSize: microBatchSize * microBatchCount,
    microBatchSize,
    microBatchCount,
    stages,
  };
  const lostCount = 1 + random.integer(random.uniform() < 0.6 ? 1 : deviceCount - 1);
  const lost = [...permutation(deviceCount, random)].slice(0, lostCount).map((place) => `d${place}`);
  return { plan, profile, cluster, lost, optimizerState: random.integer(3) as 0 | 1 | 2 };
}

/** The plan, or the message of the error if there is none. */
function attempt(input: ReplanInput): Plan | string {
  try {
    return lightReplan(input);
  } catch (error) {
    assert.equal((error as Error).name, 'InputError', String(error));
    return (error as Error).message;
  }
}

test('after 500 random losses: a sound plan within memory on the remaining devices, in their order', () => {
  let [refusedCount, keptCount, movedCount] = [0, 0, 0];
  for (let seed = 0; seed < 500; seed++) {
    const input = randomLoss(seed);
    const { plan, profile, cluster, lost, optimizerState = 0 } = input;
    const found = attempt(input);
    if (typeof found === 'string') {
      assert.match(found, /lacks \d+ MiB|Every device of the plan is lost/, `seed ${seed}`);
      refusedCount++;
      continue;
    }
    checkProgram(program(found), found);
    checkTogether(parsePlan(found), profile, cluster);
    const used = found.stages.flatMap(({ devices }) => devices);
    const order = plan.stages.flatMap(({ devices }) => devices).filter((device) => !lost.includes(device));
    assert.deepEqual(
      used,
      order.filter((device) => used.includes(device)),
      `seed ${seed}: the order`,
    );
    const { devices, roundMs } = simulate(program(found), found, profile, withoutLostData(cluster, lost), {
      optimizerState,
      events: false,
    });
    for (const { name, memoryMiB } of cluster.devices)
      assert.ok(
        (devices[name]?.peakMemoryMiB ?? 0) <= memoryMiB * (1 + 1e-9),
        `seed ${seed}: ${name} needs ${devices[name]?.peakMemoryMiB} MiB`,
      );
    assert.equal(found.predicted.roundMs, roundMs, `seed ${seed}`);
    const isWhole = plan.stages.every((stage) => stage.devices.some((device) => !lost.includes(device)));
    if (isWhole && found.stages.every(({ layers }, index) => `${layers}` === `${plan.stages[index]?.layers}`))
      keptCount++;
    else movedCount++;
  }
  assert.ok(
    refusedCount > 20 && keptCount > 60 && movedCount > 150,
    `${refusedCount} refused, ${keptCount} kept, ${movedCount} moved`,
  );
});

test('recomputation after 200 random losses: within memory, and often a plan where there was none', () => {
  let [savedCount, usedCount] = [0, 0];
  for (let seed = 0; seed < 200; seed++) {
    const input = randomLoss(seed);
    const layers = input.profile.layers.map((layer) => ({ ...layer, savedBytes: 20 * layer.savedBytes }));
    const profile = withRecomputed(seed, { ...input.profile, layers });
    const { cluster, lost, optimizerState = 0 } = input;
    const found = attempt({ ...input, profile, mayRecompute: true });
    const without = attempt({ ...input, profile });
    if (typeof found === 'string') {
      assert.equal(typeof without, 'string', `seed ${seed}: ${found}`);
      continue;
    }
    if (typeof without === 'string') savedCount++;
    checkProgram(program(found), found);
    checkTogether(parsePlan(found), profile, cluster);
    const left = withoutLostData(cluster, lost);
    const { devices, roundMs } = simulate(program(found), found, profile, left, { optimizerState, events: false });
    assert.equal(found.predicted.roundMs, roundMs, `seed ${seed}`);
    for (const { name, memoryMiB } of cluster.devices)
      assert.ok((devices[name]?.peakMemoryMiB ?? 0) <= memoryMiB * (1 + 1e-9), `seed ${seed}: ${name}`);
    if (!found.stages.some(({ savedBytes }) => savedBytes !== undefined)) continue;
    usedCount++;
    // A plan that recomputes already may continue to, whatever the options say: as much as the new shares need, not as
    // much as the old ones did.
    const spare = found.stages.flatMap((stage) => stage.devices.slice(stage.devices.length > 1 ? 0 : 1)).at(-1);
    if (spare === undefined) continue;
    const again = attempt({ ...input, profile, plan: found, lost: [...lost, spare] });
    if (typeof again === 'string') continue;
    for (const stage of again.stages)
      assert.equal(stage.savedBytes?.length ?? stage.devices.length, stage.devices.length, `seed ${seed}`);
    const peaks = simulate(program(again), again, profile, withoutLostData(cluster, [...lost, spare]), {
      optimizerState,
      events: false,
    });
    for (const { name, memoryMiB } of cluster.devices)
      assert.ok((peaks.devices[name]?.peakMemoryMiB ?? 0) <= memoryMiB * (1 + 1e-9), `seed ${seed}: ${name}, again`);
  }
  assert.ok(
    savedCount >= 10 && usedCount >= 40,
    `${savedCount} plans where there was none, ${usedCount} compute again`,
  );
});

/** The cluster without its data holder if that is lost; that case is tested elsewhere. */
function withoutLostData({ dataDevice, ...cluster }: Cluster, lost: readonly string[]): Cluster {
  return dataDevice === undefined || lost.includes(dataDevice) ? cluster : { ...cluster, dataDevice };
}

test('if one device lacks memory, what the refusal recommends is enough', () => {
  let fixedCount = 0;
  for (let seed = 0; seed < 250; seed++) {
    const input = randomLoss(seed);
    let cluster = input.cluster;
    let found = attempt(input);
    for (let round = 0; typeof found === 'string' && !found.startsWith('Every'); round++) {
      assert.ok(round < 8, `seed ${seed}: each device is named once at most: ${found}`);
      const [, name, mib] = /device "(\w+)" .* raise its memoryMiB to (\d+)/.exec(found) ?? [];
      const devices = cluster.devices.map((device) =>
        device.name === name ? { ...device, memoryMiB: Number(mib) } : device,
      );
      cluster = { ...cluster, devices };
      found = attempt({ ...input, cluster });
      if (typeof found !== 'string') fixedCount++;
    }
  }
  assert.ok(fixedCount > 10, `${fixedCount}`);
});

const oneKind = (layerCount: number, names: readonly string[]): { profile: Profile; cluster: Cluster } => ({
  profile: {
    model: 'even',
    inputBytes: 0,
    labelBytes: 0,
    layers: Array.from({ length: layerCount }, (_, layer) => ({
      ...{ name: `l${layer}`, outputBytes: 1000, weightBytes: bytesInMiB, savedBytes: 0, flops: 1 },
    })),
    batchSizes: [1],
    devices: { board: { forwardMs: [Array(layerCount).fill(1)], backwardMs: [Array(layerCount).fill(2)] } },
  },
  cluster: {
    devices: names.map((name) => ({ name, kind: 'board', memoryMiB: 100 })),
    links: { default: { bandwidthMbps: 1000 } },
  },
});

function layout(
  stages: readonly (readonly [first: number, end: number, devices: readonly string[], samples: readonly number[]])[],
): PlanLayout {
  return {
    ...{ planner: 'manual', schedule: '1f1b', batchSize: 32, microBatchSize: 4, microBatchCount: 8 },
    stages: stages.map(([first, end, devices, samples], stage) => ({
      ...{ layers: [first, end], devices, samples, inFlight: scheduleOf('1f1b').inFlight(stage, stages.length, 8) },
    })),
  };
}

test('a lost replica: its samples go to its peers, by capacity; the other stages and all cuts stay', () => {
  const { profile, cluster } = oneKind(6, ['a', 'b', 'c', 'd', 'e']);
  const plan = layout([
    [0, 3, ['a', 'b', 'c'], [2, 1, 1]],
    [3, 6, ['d', 'e'], [2, 2]],
  ]);
  const found = lightReplan({ plan, profile, cluster, lost: ['a'] });
  assert.deepEqual(found.stages, [{ ...plan.stages[0], devices: ['b', 'c'], samples: [2, 2] }, plan.stages[1]]);
  const fast = { forwardMs: [Array(6).fill(0.25)], backwardMs: [Array(6).fill(0.75)] };
  const unequal = { ...profile, devices: { ...profile.devices, b: fast } };
  assert.deepEqual(lightReplan({ plan, profile: unequal, cluster, lost: ['a'] }).stages[0]?.samples, [3, 1]);
});

test('a lost stage: its layers go to the remaining stages by capacity, in order; K_p is set anew', () => {
  const { profile, cluster } = oneKind(12, ['a', 'b', 'c', 'd']);
  const plan = layout([
    [0, 3, ['a'], [4]],
    [3, 6, ['b'], [4]],
    [6, 9, ['c'], [4]],
    [9, 12, ['d'], [4]],
  ]);
  for (const lost of ['a', 'b', 'c', 'd']) {
    const found = lightReplan({ plan, profile, cluster, lost: [lost] });
    assert.deepEqual(
      found.stages.map(({ layers, inFlight: ahead }) => [...layers, ahead]),
      [
        [0, 4, 5],
        [4, 8, 3],
        [8, 12, 1],
      ],
      lost,
    );
  }
  const two = lightReplan({ plan, profile, cluster, lost: ['b', 'c'] });
  assert.deepEqual(
    two.stages.map(({ layers, devices }) => [...layers, ...devices]),
    [
      [0, 6, 'a'],
      [6, 12, 'd'],
    ],
  );
  const noProfile = lightReplan({ plan, profile: undefined, cluster, lost: ['c'] });
  assert.deepEqual(
    noProfile.stages.map(({ layers }) => layers),
    [
      [0, 4],
      [4, 8],
      [8, 12],
    ],
  );
  assert.equal(noProfile.predicted.roundMs, 0);
});

test('no cut of the remaining stages is much faster in simulation: at most 1.1 times, on average 1.005', () => {
  const ratios: number[] = [];
  for (let seed = 0; seed < 60; seed++) {
    const random = createRandom(seed, 65);
    const [deviceCount, layerCount] = [3 + random.integer(2), 5 + random.integer(5)];
    const instance = randomInstance(seed, { deviceCount, layerCount });
    const { profile } = instance;
    const cluster = {
      ...instance.cluster,
      devices: instance.cluster.devices.map((device) => ({ ...device, memoryMiB: 10_000 })),
    };
    const plan = layout(
      cluster.devices.map(({ name }, index) => [
        index,
        index + 1 === deviceCount ? layerCount : index + 1,
        [name],
        [4],
      ]),
    );
    const lost = `d${1 + random.integer(deviceCount - 1)}`;
    const left = cluster.devices.filter(({ name }) => name !== lost);
    let least = Number.POSITIVE_INFINITY;
    for (const ends of everyCut(layerCount, left.length)) {
      const cut = layout(ends.map((end, index) => [ends[index - 1] ?? 0, end, [left[index]?.name ?? ''], [4]]));
      least = Math.min(least, simulate(program(cut), cut, profile, cluster, { events: false }).roundMs);
    }
    const { roundMs } = lightReplan({ plan, profile, cluster, lost: [lost] }).predicted;
    ratios.push(roundMs / least);
  }
  const worst = Math.max(...ratios);
  const mean = ratios.reduce((sum, ratio) => sum + ratio, 0) / ratios.length;
  assert.ok(Math.min(...ratios) >= 1 - 1e-9, 'no cut is faster than the fastest of all');
  assert.ok(worst <= 1.1 && mean <= 1.005, `worst ${worst}, mean ${mean}`);
});

test('a lost stage is refused exactly if no cut fits with one micro-batch in flight, by eq. 3 over all cuts', () => {
  let [foundCount, refusedCount] = [0, 0];
  for (let seed = 0; seed < 300; seed++) {
    const random = createRandom(seed, 67);
    const [deviceCount, layerCount] = [3 + random.integer(2), 4 + random.integer(5)];
    const { profile, cluster } = randomInstance(seed, { deviceCount, layerCount });
    const plan = layout(
      cluster.devices.map(({ name }, index) => [
        index,
        index + 1 === deviceCount ? layerCount : index + 1,
        [name],
        [4],
      ]),
    );
    const lost = `d${1 + random.integer(deviceCount - 1)}`;
    const left = cluster.devices
      .filter(({ name }) => name !== lost)
      .map((device) => ({ ...device, memoryMiB: device.memoryMiB / (1 + 2 * random.uniform()) }));
    const fits = (ends: readonly number[]): boolean =>
      ends.every((end, index) => {
        const range = profile.layers.slice(ends[index - 1] ?? 0, end);
        // Weights, gradients, and the activations of one micro-batch of four.
        const bytes = range.reduce((sum, layer) => sum + 2 * layer.weightBytes + 4 * layer.savedBytes, 0);
        return bytes <= (left[index]?.memoryMiB ?? 0) * bytesInMiB;
      });
    const found = attempt({
      plan,
      profile,
      cluster: { ...cluster, devices: left, ...dataOn(cluster, left) },
      lost: [lost],
    });
    assert.equal(
      typeof found === 'string',
      ![...everyCut(layerCount, left.length)].some(fits),
      `seed ${seed}: ${JSON.stringify(found)}`,
    );
    if (typeof found === 'string') refusedCount++;
    else foundCount++;
  }
  assert.ok(foundCount > 100 && refusedCount > 20, `${foundCount} found, ${refusedCount} refused`);
});

/** The links and the data holder restricted to the remaining devices. */
function dataOn({ links }: Cluster, left: Cluster['devices']): Pick<Cluster, 'links'> {
  const names = left.map(({ name }) => name);
  return {
    links: {
      ...links,
      pairs: links.pairs?.filter(({ between }) => between.every((name) => names.includes(name))) ?? [],
    },
  };
}

test('ten devices, 213 layers: milliseconds of CPU for a plan at least as fast as even cuts', () => {
  const names = Array.from({ length: 10 }, (_, index) => `d${index}`);
  const { profile, cluster: small } = oneKind(213, names);
  const cluster = { ...small, devices: small.devices.map((device) => ({ ...device, memoryMiB: 1000 })) };
  const evenly = (devices: readonly string[]): PlanLayout =>
    layout(
      devices.map((name, index, { length }) => [
        Math.round((213 * index) / length),
        Math.round((213 * (index + 1)) / length),
        [name],
        [4],
      ]),
    );
  const plan = evenly(names);
  const times = names.map((lost) => {
    const before = process.cpuUsage();
    const { predicted } = lightReplan({ plan, profile, cluster, lost: [lost] });
    const { user, system } = process.cpuUsage(before);
    const even = evenly(names.filter((name) => name !== lost));
    const { roundMs } = simulate(program(even), even, profile, cluster, { events: false });
    assert.ok(predicted.roundMs <= roundMs, `${lost}: ${predicted.roundMs} ms, even cuts ${roundMs} ms`);
    return (user + system) / 1000;
  });
  // 10 ms when the code is warm and the machine idle; the limit for the fastest of ten allows for neither.
  assert.ok(Math.min(...times) < 100, `${times} ms`);
});
