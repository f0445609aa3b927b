// The report's parts about the plan, the devices and the time.

import type { StagePlan } from '../../cluster/cluster.ts';
import { processMiBOf } from '../../cluster/memory.ts';
import { bandwidth, counted, duration, grouped, memory } from '../terminal.ts';
import { bar, element, table, text } from './html.ts';
import type { DeviceFacts, RunFacts } from './read-run.ts';

const shownLinkCount = 30;

/** Stages in a row, with their layers, devices and shares. */
export function planPart({ plan, layerNames }: RunFacts): string {
  if (plan === undefined) return '';
  const { planner, schedule, batchSize, microBatchSize, microBatchCount, predicted } = plan;
  const how =
    `by planner "${planner}", schedule ${schedule}: ${counted(batchSize, 'sample')} a round in ` +
    `${counted(microBatchCount, 'micro-batch')} of ${microBatchSize}` +
    (predicted === undefined || predicted.roundMs === 0
      ? ''
      : `; predicted ${duration(predicted.roundMs / 1000)} a round, ` +
        `${grouped(Math.round(predicted.samplesPerS))} samples/s`);
  const stages = plan.stages.map((stage, index) => stageBox(stage, index, layerNames, microBatchSize));
  return (
    element('p', { class: 'note' }, text(how)) +
    element('ol', { class: 'plan' }, ...stages.map((box) => element('li', {}, box)))
  );
}

function stageBox(
  { layers: [first, end], devices, samples }: StagePlan,
  index: number,
  layerNames: readonly string[],
  microBatchSize: number,
): string {
  const nameOf = (layer: number): string => layerNames[layer] ?? `layer ${layer}`;
  const range = end - first === 1 ? nameOf(first) : `${nameOf(first)} … ${nameOf(end - 1)}`;
  const shares = devices.map((device, place) =>
    element(
      'li',
      {},
      element('b', {}, text(device)),
      text(` ${samples[place]} of ${counted(microBatchSize, 'sample')}`),
    ),
  );
  return [
    element('h3', {}, text(`Stage ${index}`)),
    element('p', { class: 'note' }, text(`${counted(end - first, 'layer')}: ${range}`)),
    element('ul', {}, ...shares),
  ].join('');
}

/** What joined, and what each did. */
export function devicesPart({ devices, plan, cluster }: RunFacts): string {
  if (devices.length === 0) return element('p', { class: 'note' }, text('Trained in one process, without workers.'));
  const stageOf = (name: string): string => {
    const found = plan?.stages.findIndex((stage) => stage.devices.includes(name)) ?? -1;
    return found < 0 ? '–' : String(found);
  };
  const order = plan?.stages.flatMap((stage) => stage.devices) ?? [];
  const placeOf = ({ name }: DeviceFacts): number => (order.includes(name) ? order.indexOf(name) : order.length);
  const rows = devices
    .toSorted((a, b) => placeOf(a) - placeOf(b))
    .map((device) => [
      text(device.name),
      stageOf(device.name),
      device.cores === undefined ? '–' : String(device.cores),
      memoryCell(device, plan?.predicted?.peakMemoryMiB[device.name]),
      device.aloneSamplesPerS === undefined ? '–' : grouped(Math.round(device.aloneSamplesPerS)),
      text([device.engine, device.cpuModel].filter((part) => part !== undefined).join(', ')),
    ]);
  const head = ['device', 'stage', 'cores', 'peak memory (predicted)', 'samples/s alone', 'engine and processor'];
  return table('devices', head, rows) + linkTable(cluster);
}

function memoryCell({ peakMemoryMiB, engine = '' }: DeviceFacts, stageMiB: number | undefined): string {
  const predicted = stageMiB === undefined ? '' : ` (${memory(processMiBOf(engine) + stageMiB)})`;
  return text(`${peakMemoryMiB === undefined ? '–' : memory(peakMemoryMiB)}${predicted}`);
}

function linkTable(cluster: RunFacts['cluster']): string {
  const pairs = cluster?.links.pairs ?? [];
  if (pairs.length === 0) return '';
  const rows = pairs
    .slice(0, shownLinkCount)
    .map(({ between, bandwidthMbps, latencyMs = 0 }) => [
      text(between.join(' – ')),
      text(bandwidth(bandwidthMbps)),
      text(`${latencyMs.toFixed(2)} ms`),
    ]);
  const rest =
    pairs.length > shownLinkCount
      ? element('p', { class: 'note' }, text(`and ${pairs.length - shownLinkCount} more links`))
      : '';
  return table('links', ['link', 'bandwidth', 'latency'], rows) + rest;
}

/** Where the time went, and what happened. */
export function timesPart({ spans, happenings }: RunFacts): string {
  const total = spans.reduce((sum, { seconds }) => sum + seconds, 0);
  const rows = spans.map(({ name, seconds }) => [text(name), text(duration(seconds)), bar(seconds / total)]);
  const told = happenings.map(({ atS, text: what }) => [text(duration(atS)), text(what)]);
  return [
    ...(rows.length === 0 ? [] : [table('times', ['phase', 'time', ''], rows)]),
    ...(told.length === 0 ? [] : [table('happenings', ['after', 'what happened'], told)]),
  ].join('');
}
