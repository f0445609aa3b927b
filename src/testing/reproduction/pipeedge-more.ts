// PipeEdge's Fig. 7 and 8 (micro-batches), Fig. 9 (distilled models), and what bits chosen by the bandwidth add to Fig.
// 6.

import {
  type ActivationBits,
  activationBits,
  bitsForLink,
  encodingOfBits,
  paceOfLinks,
} from '../../cluster/activation-bits.ts';
import type { Cluster, Plan } from '../../cluster/cluster.ts';
import { encodedFraction } from '../../cluster/compression.ts';
import type { ModelTable } from '../../cluster/device-kinds.ts';
import { deviceTimes, layerTimes } from '../../cluster/times.ts';
import { program } from '../../schedule/generate.ts';
import { inferenceSchedule } from '../../schedule/schedules.ts';
import { simulate } from '../../simulator/simulate.ts';
import { lineChart } from './charts.ts';
import { deviation, type Experiment, markdownTable, times } from './experiment.ts';
import { deitModels, pipeEdgeModels, vitBase } from './models.ts';
import { boardPlan, boardProfile, homogeneous, perSecond } from './pipeedge-model.ts';

/** A pipeline at one bandwidth with each link's bits by `bitsForLink`. */
export interface AutoBits {
  readonly perSecond: number;
  readonly bits: readonly ActivationBits[];
}

/**
 * The plan made for as few bits as there are, so that links bind as little as they can; then each link takes the most
 * bits with which it keeps the pace of the slowest board.
 */
export function autoBits(table: ModelTable, cluster: Cluster): AutoBits {
  const plan = boardPlan(table, cluster, { encoding: encodingOfBits(2) }) as Plan;
  const profile = boardProfile(table, cluster);
  const stageMs = plan.stages.map(({ layers, devices }) => {
    const device = cluster.devices.find(({ name }) => name === devices[0]);
    return device === undefined
      ? 0
      : layerTimes(deviceTimes(profile, device), profile.batchSizes).forwardMs(...layers, 1);
  });
  const paceMs = paceOfLinks(stageMs, 1, undefined);
  const { bandwidthMbps } = cluster.links.default;
  let periodMs = paceMs;
  const bits = plan.stages.slice(0, -1).map(({ layers }) => {
    const bytes = profile.layers[layers[1] - 1]?.outputBytes ?? 0;
    const chosen = bitsForLink({ bytes, bandwidthMbps }, paceMs);
    const sentBytes = bytes * encodedFraction(encodingOfBits(chosen));
    periodMs = Math.max(periodMs, (sentBytes * 8) / (bandwidthMbps * 1000));
    return chosen;
  });
  return { perSecond: 1000 / periodMs, bits };
}

/** "4 to 8", of a link that has the fewest and one that has the most. */
export function bitsText(bits: readonly ActivationBits[]): string {
  const used = activationBits.filter((each) => bits.includes(each));
  const [most, fewest] = [used[0], used.at(-1)];
  return most === fewest ? `${most ?? 32}` : `${fewest}–${most}`;
}

/** Items a second of a run of so many items from an empty pipeline to an empty one, in the simulator. */
function runRate(table: ModelTable, cluster: Cluster, plan: Plan, items: number): number {
  const microBatchCount = Math.ceil(items / plan.microBatchSize);
  const batchSize = microBatchCount * plan.microBatchSize;
  const stages = plan.stages.map((stage) => ({ ...stage, inFlight: microBatchCount }));
  const whole = { ...plan, schedule: inferenceSchedule, batchSize, microBatchCount, stages };
  const { roundMs } = simulate(program(whole), whole, boardProfile(table, cluster), cluster, { events: false });
  return (1000 * batchSize) / roundMs;
}

/** Items of the runs of Fig. 7 and 8; the paper does not say how many. */
const itemCount = 128;

export const pipeEdgeFigure7: Experiment = async () => {
  const table = await vitBase();
  const cluster = homogeneous('minnowboard', 1536, 2, 1000);
  const sizes = [1, 2, 4, 8, 12, 14, 16, 20, 24, 32];
  const rates = (planner: string): number[] =>
    sizes.map((microBatchSize) => {
      const plan = boardPlan(table, cluster, { planner, microBatchSize });
      return plan === undefined ? Number.NaN : runRate(table, cluster, plan, itemCount);
    });
  const [even, own] = [rates('even'), rates('pipeedge')];
  const rows = sizes.map((size, index) => [String(size), even[index]?.toFixed(2) ?? '', own[index]?.toFixed(2) ?? '']);
  const text = `ViT-Base on two MinnowBoards at 1 Gbps, images a second of a run of ${itemCount} images, filling and \
draining included. The paper: at most 0.34 (GPipe, even; about 14 at once) and 0.48 (PipeEdge; 12 at once).

${markdownTable(['images at once', 'even', 'pipeedge'], rows)}

![Micro-batches](pipeedge-figure7)

The decline towards larger micro-batches is there: filling and draining take a larger part. The rise towards 12 is \
not: the kinds' boards compute a batch in proportion to its size. The paper's boards did not at small ones, and its \
0.48 is half of what their throughput with ViT-Large (0.26 with two, 3.5 times the work) lets one expect of ViT-Base.`;
  const svg = lineChart({
    title: 'ViT-Base on two MinnowBoards',
    ...{ unit: 'images a second', xName: 'images at once', xs: sizes },
    series: [
      { name: 'even', values: even },
      { name: 'pipeedge', values: own },
    ],
  });
  return { title: 'PipeEdge, Fig. 7: micro-batches', text, charts: [{ name: 'pipeedge-figure7', svg }] };
};

export const pipeEdgeFigure8: Experiment = async () => {
  const { table } = (await pipeEdgeModels())[0] as { readonly table: ModelTable };
  const counts = [1, 2, 4, 8, 12, 16];
  const rows = counts.map((count) => {
    const cluster = homogeneous('rcc-ve', 7680, count, 1000);
    const rates = [1, 2, 4, 8].map((microBatchSize) => {
      const plan = boardPlan(table, cluster, { microBatchSize }) as Plan;
      return [microBatchSize, runRate(table, cluster, plan, itemCount)] as const;
    });
    const best = rates.reduce((most, each) => (each[1] > most[1] ? each : most));
    return [count, rates[0]?.[1] ?? Number.NaN, best[1], best[0]] as const;
  });
  const [first, last] = [rows[0], rows.at(-1)];
  const ours = (last?.[1] ?? Number.NaN) / (first?.[1] ?? Number.NaN);
  const text = `ViT-Large on RCC-VEs at 1 Gbps, one image at a time and the best of 1, 2, 4 and 8: images a second of \
a run of ${itemCount} images. The paper: 9.34 times one board's throughput with 16 boards and one image at a time, \
10.59 with its best; ours, one image at a time: ${times(ours)} (${deviation(ours, 9.34)}).

${markdownTable(
  ['boards', 'one at a time', 'best', 'images at once'],
  rows.map(([count, one, best, size]) => [String(count), one.toFixed(2), best.toFixed(2), String(size)]),
)}

With times in proportion to the batch, one image at a time is the best here: it fills the pipeline soonest. What the \
paper's boards gain from more at once, one eighth, is use of the processor in larger products.`;
  return { title: 'PipeEdge, Fig. 8: one image at a time', text, charts: [] };
};

/** Fig. 9, from the text: images a second of one board, and of four. */
const distilled: Readonly<Record<string, readonly [one: number | undefined, four: number | undefined]>> = {
  'ViT-Base': [undefined, 0.82],
  'DeiT-Base': [0.62, 0.95],
  'DeiT-Small': [undefined, 5.55],
  'DeiT-Tiny': [undefined, 17.23],
};

export const pipeEdgeFigure9: Experiment = async () => {
  const models = await deitModels();
  const counts = [1, 2, 3, 4];
  const speeds = models.map(({ table }) =>
    counts.map((count) => perSecond(boardPlan(table, homogeneous('rcc-ve', 7680, count, 1000))) ?? Number.NaN),
  );
  const rows = models.map(({ name }, index) => {
    const [one, four] = distilled[name] ?? [];
    const own = speeds[index] ?? [];
    const cell = (paper: number | undefined): string => paper?.toFixed(2) ?? '';
    return [name, cell(one), ...own.map((value) => value.toFixed(2)), cell(four), times((own[3] ?? 0) / (own[0] ?? 1))];
  });
  const text = `Up to four RCC-VEs at 1 Gbps. DeiT-Base is ViT-Base's network.

${markdownTable(['model', '1 board, paper', '1', '2', '3', '4', '4 boards, paper', 'ours, 4 over 1'], rows)}

![DeiT](pipeedge-figure9)

In proportion to their operations DeiT-Small and DeiT-Tiny are 3.8 and 14 times as fast as DeiT-Base; in the paper 5.8 \
and 18 times with four boards. The kind's speed comes from ViT-Large (Fig. 4), with which DeiT-Base would do 0.8 \
images a second on one board; the paper's 0.62, and 0.95 with four boards, are of boards that lose most of what three \
more could add: neither Fig. 4's losses nor links of 1 Gbps say why.`;
  const svg = lineChart({
    title: 'Distilled models on RCC-VE boards',
    ...{ unit: 'images a second', xName: 'boards', xs: counts },
    series: models.map(({ name }, index) => ({ name, values: speeds[index] ?? [] })),
  });
  return { title: 'PipeEdge, Fig. 9: distilled models', text, charts: [{ name: 'pipeedge-figure9', svg }] };
};
