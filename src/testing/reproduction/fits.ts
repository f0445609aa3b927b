// The numbers that the device kinds were fitted to, against the kinds' own: residuals, not predictions.

import { deviceKinds, kindModel, profileOfKinds } from '../../cluster/device-kinds.ts';
import { layerTimes } from '../../cluster/times.ts';
import { deviation, type Experiment, markdownTable } from './experiment.ts';
import { asteroidModels, gigaflop, modelNotes, type PaperModel, pipeEdgeModels } from './models.ts';

/** Asteroid, Table 1: minutes of an epoch. */
const epochs: Readonly<Record<string, readonly number[]>> = {
  'jetson-tx2': [11.2, 8.5, 1.14 * 60],
  'jetson-nano': [26.7, 22, 3.48 * 60],
};
const epochSamples = 50_000;
const epochBatch = 32;

/**
 * PipeEdge, Fig. 4, from the text: items a second of this many boards: 16-board throughput over speedup; BERT-Large
 * last.
 */
const boards: Readonly<Record<string, readonly (readonly [count: number, perSecond: number])[]>> = {
  'rcc-ve': [
    [1, 2.43 / 10.59],
    [1, 1.01 / 11.88],
    [1, 1.05 / 12.78],
  ],
  minnowboard: [
    [2, 1.95 / 7.48],
    [4, 0.77 / 3.93],
    [2, 0.89 / 7.64],
  ],
};

export const fits: Experiment = async () => {
  const jetson = (await asteroidModels()).slice(0, 3);
  const transformers = await pipeEdgeModels();
  const epochRows = Object.entries(epochs).flatMap(([kind, minutes]) =>
    jetson.map((model, index) => {
      const published = minutes[index] ?? Number.NaN;
      const ours = epochMinutes(model, kind);
      return [kind, model.name, `${published.toFixed(1)} min`, `${ours.toFixed(1)} min`, deviation(ours, published)];
    }),
  );
  const boardRows = Object.entries(boards).flatMap(([kind, numbers]) =>
    transformers.map(({ name, table }, index) => {
      const [count, published] = numbers[index] ?? [1, Number.NaN];
      const ours = (count * (kindModel(kind)?.gigaflops ?? 0) * 1e9) / gigaflop(table) / 1e9;
      return [
        `${count} x ${kind}`,
        name,
        `${published.toFixed(3)} a second`,
        `${ours.toFixed(3)} a second`,
        deviation(ours, published),
      ];
    }),
  );
  const kindRows = Object.entries(deviceKinds).map(([name, { gigaflops, gigabytesPerS, launchMs, source }]) => [
    name,
    gigaflops.toPrecision(3),
    gigabytesPerS?.toPrecision(3) ?? '',
    launchMs === 0 ? '' : launchMs.toPrecision(3),
    source,
  ]);
  const text = `Nothing was measured on the papers' devices here: each is a model with one to three constants \
(\`src/cluster/device-kinds.ts\`), and this section holds all numbers
that went into them. A layer's forward pass over b samples takes launch + max(b · flops / rate, b · bytes / traffic), \
its backward pass twice that; bytes are
all values that the layer's operators write. **All other sections are predictions**: no constant was changed after \
looking at them.

${markdownTable(['kind', 'gigaflops', 'GB/s', 'launch, ms', 'where from'], kindRows)}

${markdownTable(['device', 'model', 'published (Asteroid Table 1)', 'the kind', 'residual'], epochRows)}

An epoch is taken for ${epochSamples.toLocaleString('en-US')} images at batch ${epochBatch}; the paper says neither \
for Mini-ImageNet.
${modelNotes}

${markdownTable(['boards', 'model', 'published (PipeEdge Fig. 4)', 'the kind', 'residual'], boardRows)}

The laptop and the desktop PC of FTPipeHD have one constant each, from one number each (§ FTPipeHD below). No paper \
gives a time of a Raspberry Pi 4.`;
  return { title: 'What was fitted', text, charts: [] };
};

function epochMinutes({ table }: PaperModel, kind: string): number {
  const cluster = { devices: [{ name: 'one', kind, memoryMiB: 1 }], links: { default: { bandwidthMbps: 1 } } };
  const { devices, batchSizes, layers } = profileOfKinds(table, cluster);
  const times = layerTimes(devices[kind] ?? { forwardMs: [], backwardMs: [] }, batchSizes);
  const batchMs = times.forwardMs(0, layers.length, epochBatch) + times.backwardMs(0, layers.length, epochBatch);
  return (batchMs * epochSamples) / epochBatch / 60_000;
}
