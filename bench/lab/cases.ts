// @ts-nocheck
// The clusters, models and plans of bench/lab. A group is one lab with one model; its devices are profiled once, and every case of it runs there.

import { readFileSync } from 'node:fs';
import { parseCluster } from '../../dist/cluster/validate.js';

const clusterFile = (letter) => new URL(`../../clusters/asteroid-${letter.toLowerCase()}.yaml`, import.meta.url);

/** An environment of the paper with another bandwidth between all. 'pair', 'tight': two equal devices; 'small': three slow ones, for a machine that does other work too. */
export function environment(letter, bandwidthMbps, memoryMiB = 2048) {
  const own = {
    small: [0.3, 0.15, 0.15],
    pair: [0.6, 0.6],
    tight: [0.6, 0.6],
    mixed: [1, 0.35, 0.35],
    laptops: [0.8, 0.8, 0.12],
  }[letter];
  if (own !== undefined) {
    const devices = own.map((cores, index) => ({ name: 'abc'[index], memoryMiB, cores }));
    return { devices, links: { default: { bandwidthMbps } } };
  }
  const cluster = parseCluster(readFileSync(clusterFile(letter), 'utf8'));
  return { ...cluster, links: { default: { bandwidthMbps } } };
}

const image = (size, classes) => `synthetic:3x${size}x${size}:${classes}:2000`;

export const models = {
  mobilenet: { model: 'mobilenet-v2-cifar', data: image(32, 10) },
  efficientnet: { model: 'efficientnet-b1:input=32,classes=10,dropout=0', data: image(32, 10) },
  // Shares of two samples are normalized by themselves: over maps of one place, as 32 x 32 leave them, gradients become infinite (in PyTorch, 1e14).
  'efficientnet-64': { model: 'efficientnet-b1:input=64,classes=10,dropout=0', data: image(64, 10) },
  resnet: { model: 'resnet-50:input=64,classes=100', data: image(64, 100) },
  bert: { model: 'bert-small:sequence=32,classes=2', data: 'synthetic-tokens:32:30522:2:2000' },
};

/** A form: either a planner's plan or devices in groups (forms.ts). */
const planned = (planner, schedule) => ({ planner, schedule });
const grouped = (groups, schedule, more = {}) => ({ groups, schedule, ...more });

/** Environment A's devices, one a stage. */
const line = ['nano-1', 'nano-2', 'nano-3', 'nano-4', 'nano-5'].map((name) => [name]);

/** The ten plans of different form, and a few more. */
export const forms = [
  {
    name: 'A-1000',
    environment: ['A', 1000],
    model: 'mobilenet',
    microBatch: 10,
    count: 8,
    cases: {
      'pure DP': grouped([line.flat()], '1f1b'),
      straight: grouped(line, '1f1b'),
      'straight, GPipe': grouped(line, 'gpipe'),
      'straight, zb-h1': grouped(line, 'zb-h1'),
      best: planned('best'),
    },
  },
  // A batch like the paper's (2048; section 5.1). One device has micro-batches of the sizes with which it is fastest on one machine or another, before the cluster and after it.
  {
    name: 'A-1000-batch-2000',
    environment: ['A', 1000],
    model: 'mobilenet',
    microBatch: 40,
    count: 50,
    microBatchOfOne: 8,
    cases: {
      'pure DP': grouped([line.flat()], '1f1b'),
      best: planned('best'),
      'pure DP, 10 samples a device': grouped([line.flat()], '1f1b', { microBatch: 50 }),
      'one device, 10 samples': grouped([['nano-1']], '1f1b', { microBatch: 10 }),
      'one device again': grouped([['nano-1']], '1f1b', { microBatch: 8 }),
    },
  },
  {
    name: 'A-100',
    environment: ['A', 100],
    model: 'mobilenet',
    microBatch: 10,
    count: 8,
    cases: {
      'pure DP': grouped([line.flat()], '1f1b'),
      'hybrid 3 + 2': grouped([line.flat().slice(0, 3), line.flat().slice(3)], '1f1b'),
      best: planned('best'),
    },
  },
  {
    name: 'D-100',
    environment: ['D', 100],
    model: 'mobilenet',
    microBatch: 12,
    count: 8,
    cases: {
      'DP, unequal shares': grouped([['tx2-1', 'nano-1', 'nano-2', 'nano-3']], '1f1b'),
      'hybrid 3 + 1': grouped([['nano-1', 'nano-2', 'nano-3'], ['tx2-1']], '1f1b'),
      'hybrid 3 + 1, GPipe': grouped([['nano-1', 'nano-2', 'nano-3'], ['tx2-1']], 'gpipe'),
    },
  },
  {
    name: 'C-1000',
    environment: ['C', 1000],
    model: 'mobilenet',
    microBatch: 16,
    count: 6,
    cases: {
      'hybrid 1 + 2 + 3, unequal': grouped([['nx-1'], ['tx2-1', 'tx2-2'], ['nano-1', 'nano-2', 'nano-3']], '1f1b'),
      'hybrid 1 + 2 + 3, zb-h1': grouped([['nx-1'], ['tx2-1', 'tx2-2'], ['nano-1', 'nano-2', 'nano-3']], 'zb-h1'),
    },
  },
];

/** The lab's versions of Table 4's rows: `best` beside data parallelism and a straight pipeline with 1F1B and the same balancing. Ratios of the paper: over DP, over PP. */
const row = (letter, mbps, model, microBatch, count, paper) => ({
  name: `T4-${model}-${letter}-${mbps}`,
  environment: [letter, mbps],
  model,
  microBatch,
  count,
  paper,
  cases: { best: planned('best'), dp: planned('dp'), gpipe: planned('gpipe', '1f1b') },
});

export const table4 = [
  row('A', 100, 'mobilenet', 10, 8, [1.5, 3.5]),
  row('B', 100, 'mobilenet', 10, 8, [2.3, 11.2]),
  row('B', 1000, 'mobilenet', 10, 8, [1.2, 1.3]),
  row('A', 100, 'efficientnet-64', 10, 8, [2.1, 2.8]),
  row('B', 100, 'efficientnet-64', 10, 8, [4.8, 9.7]),
  row('B', 1000, 'efficientnet-64', 10, 8, [2.1, 1.4]),
  row('A', 100, 'resnet', 5, 8, [3.6, 5.8]),
  row('B', 100, 'resnet', 5, 8, [6.1, 12.2]),
  row('B', 1000, 'resnet', 5, 8, [2.9, 3.1]),
  row('A', 100, 'bert', 5, 8, [6.4, 1.0]),
  row('B', 100, 'bert', 5, 8, [6.8, 1.0]),
  row('B', 1000, 'bert', 5, 8, [4.2, 1.3]),
];

/** A link that is the bottleneck: activations of early layers over 20 Mbps, many micro-batches; and an AllReduce that is most of the round. */
export const links = [
  {
    name: 'links-20',
    environment: ['pair', 20],
    model: 'mobilenet',
    microBatch: 2,
    count: 32,
    cases: {
      pipeline: grouped([['a'], ['b']], '1f1b', { cuts: [2] }),
      'AllReduce of 2': grouped([['a', 'b']], '1f1b'),
    },
  },
];

/** Each device lost in turn: the paper's figures 16 and 17. And FTPipeHD's Table III: two processes on a laptop, and a desktop PC a seventh as fast, which ResPipe lets do the work of the second. */
export const recovery = [
  { name: 'recovery-D-100', environment: ['D', 100], model: 'efficientnet', microBatch: 10, count: 8, planner: 'best' },
  {
    name: 'recovery-ftpipehd-100',
    environment: ['laptops', 100],
    model: 'mobilenet',
    microBatch: 8,
    count: 4,
    planner: 'ftpipehd',
    lost: ['b'],
  },
];

/** A link of 100 Mbps that falls to 5, and a device of one core that falls to a quarter. */
export const slowed = [
  { name: 'slowed-100', environment: ['mixed', 100], model: 'mobilenet', microBatch: 8, count: 6 },
];

/** Devices whose limits a plan fills as far as it can. With an AllReduce beside the last backward pass, the last micro-batch comes in several graphs, the others in one. */
export const memory = [
  {
    name: 'memory-288',
    environment: ['tight', 100, 288],
    model: 'mobilenet',
    microBatch: 32,
    count: 8,
    schedule: '1f1b',
  },
  {
    name: 'memory-320-overlap',
    environment: ['tight', 100, 320],
    model: 'mobilenet',
    microBatch: 32,
    count: 8,
    schedule: '1f1b-overlap',
  },
  { name: 'memory-512', environment: ['tight', 100, 512], model: 'mobilenet', microBatch: 64, count: 4 },
];

/** Five equal devices, each by itself. */
export const together = [
  { name: 'together-A', environment: ['A', 1000], model: 'mobilenet', microBatch: 10, count: 8 },
];

/** Against PyTorch. */
export const peers = [
  { name: 'peers-A-1000', environment: ['A', 1000], model: 'mobilenet', microBatch: 10, count: 8 },
  { name: 'peers-A-100', environment: ['A', 100], model: 'mobilenet', microBatch: 10, count: 8 },
];
