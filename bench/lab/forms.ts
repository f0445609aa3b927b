// @ts-nocheck
// Plans of a given form for a measured profile: devices in groups, shares by speed, and layers cut so that the slowest stage or link is as fast as can be.

import { inFlight } from '../../dist/schedule/generate.js';

/** Milliseconds of forward and backward of layers [first, end) on a device with so many samples, and of what it is given and hands on; in a last stage both are one graph, with its own times. */
function timesOf(profile, device) {
  const { forwardMs, backwardMs, stepMs, handlingMsPerMiB = 0 } = profile.devices[device];
  const passedBytes = (first, end) =>
    (first === 0 ? 0 : profile.layers[first - 1].outputBytes) +
    (end === profile.layers.length ? 0 : profile.layers[end - 1].outputBytes);
  const inner = forwardMs.map((row, size) => runningSums(row.map((ms, layer) => ms + backwardMs[size][layer])));
  const last = stepMs === undefined ? inner : stepMs.map(runningSums);
  return (first, end, samples) => {
    if (samples === 0) return 0;
    const sums = end === profile.layers.length ? last : inner;
    const { low, high, fraction } = place(profile.batchSizes, samples);
    const of = (size) => sums[size][end] - sums[size][first];
    const handlingMs = (handlingMsPerMiB * 2 * samples * passedBytes(first, end)) / 2 ** 20;
    return of(low) + fraction * (of(high) - of(low)) + handlingMs;
  };
}

function runningSums(row) {
  let sum = 0;
  return [0, ...row.map((ms) => (sum += ms))];
}

/** Between which measured points a share lies; the last two beyond them. */
function place(batchSizes, samples) {
  if (batchSizes.length === 1) return { low: 0, high: 0, fraction: 0 };
  let high = batchSizes.findIndex((size) => size >= samples);
  if (high <= 0) high = high === 0 ? 1 : batchSizes.length - 1;
  const [a, b] = [batchSizes[high - 1], batchSizes[high]];
  return { low: high - 1, high, fraction: (samples - a) / (b - a) };
}

/** Whole shares in proportion to speeds, by largest remainders. */
export function sharesOf(speeds, total) {
  const sum = speeds.reduce((a, b) => a + b, 0);
  const exact = speeds.map((speed) => (total * speed) / sum);
  const shares = exact.map(Math.floor);
  const order = exact.map((value, index) => [value - shares[index], index]).sort((a, b) => b[0] - a[0]);
  for (let left = total - shares.reduce((a, b) => a + b, 0), next = 0; left > 0; left--, next++)
    shares[order[next][1]]++;
  return shares;
}

/** The plan with these groups of devices as stages; `cuts`: the first layer of each stage but the first, where they are not to be found. */
export function layoutOf(profile, cluster, { groups, schedule, microBatchSize, microBatchCount, cuts }) {
  const layerCount = profile.layers.length;
  const largest = profile.batchSizes.at(-1);
  const times = Object.fromEntries(groups.flat().map((name) => [name, timesOf(profile, name)]));
  const shares = groups.map((names) =>
    sharesOf(
      names.map((name) => 1 / times[name](0, layerCount, largest)),
      microBatchSize,
    ),
  );
  const borders =
    cuts === undefined
      ? bestBorders(profile, cluster, { groups, shares, times, microBatchSize })
      : [0, ...cuts, layerCount];
  return {
    planner: 'by hand',
    schedule,
    batchSize: microBatchSize * microBatchCount,
    microBatchSize,
    microBatchCount,
    stages: groups.map((devices, stage) => ({
      layers: [borders[stage], borders[stage + 1]],
      devices,
      samples: shares[stage],
      inFlight: inFlight(schedule, stage, groups.length, microBatchCount),
    })),
  };
}

/** Cuts that make the slowest stage or link as fast as can be. */
function bestBorders(profile, cluster, { groups, shares, times, microBatchSize }) {
  const layerCount = profile.layers.length;
  const mbps = cluster.links.default.bandwidthMbps;
  const stageMs = (stage, first, end) =>
    Math.max(...groups[stage].map((name, index) => times[name](first, end, shares[stage][index])));
  // A sender's part of the cut at most: its group shares the bytes.
  const linkMs = (stage, cut) =>
    cut === layerCount
      ? 0
      : (profile.layers[cut - 1].outputBytes * microBatchSize * 8) /
        (mbps * 1000) /
        Math.max(groups[stage].length, groups[stage + 1].length);
  // best[stage][end]: the least possible maximum with stages 0..stage over layers 0..end, and where the last begins.
  const best = groups.map(() => Array(layerCount + 1).fill({ ms: Number.POSITIVE_INFINITY, first: 0 }));
  for (let stage = 0; stage < groups.length; stage++) {
    for (let end = stage + 1; end <= layerCount; end++) {
      for (let first = stage; first < end; first++) {
        if (stage === 0 && first > 0) break;
        const before = stage === 0 ? 0 : Math.max(best[stage - 1][first].ms, linkMs(stage - 1, first));
        const ms = Math.max(before, stageMs(stage, first, end));
        if (ms < best[stage][end].ms) best[stage][end] = { ms, first };
      }
    }
  }
  const borders = [layerCount];
  for (let stage = groups.length - 1; stage >= 0; stage--) borders.unshift(best[stage][borders[0]].first);
  return borders;
}

/** A plan in a few characters: "nx-1:4+tx2-1:2 | nano-1:6". */
export function formOf({ stages, schedule, microBatchSize, microBatchCount }) {
  const drawn = stages.map(
    ({ devices, samples, layers }) =>
      `${devices.map((name, index) => (devices.length > 1 ? `${name}:${samples[index]}` : name)).join('+')} [${layers.join('–')}]`,
  );
  return `${drawn.join(' → ')}, ${schedule}, ${microBatchCount} x ${microBatchSize}`;
}
