// Section forms: plans of different form in the environments A, C and D.

import { type CaseGroup, casesOf, grouped, planned } from './cases.ts';
import type { Found, LabBench } from './group.ts';

/** Environment A's devices, one a stage. */
const line = ['nano-1', 'nano-2', 'nano-3', 'nano-4', 'nano-5'].map((name) => [name]);
const nanos = line.flat();

const slowest = ['nano-1', 'nano-2', 'nano-3'];
const unequal = [['nx-1'], ['tx2-1', 'tx2-2'], slowest];

const groups: readonly CaseGroup[] = [
  {
    name: 'A-1000',
    environment: ['A', 1000],
    model: 'mobilenet',
    microBatch: 10,
    count: 8,
    cases: {
      'pure DP': grouped([nanos], '1f1b'),
      straight: grouped(line, '1f1b'),
      'straight, GPipe': grouped(line, 'gpipe'),
      'straight, zb-h1': grouped(line, 'zb-h1'),
      best: planned('best'),
    },
  },
  // A batch like the paper's (2048; section 5.1). One device has micro-batches of the sizes with which it is fastest on
  // one machine or another, before the cluster and after it.
  {
    name: 'A-1000-batch-2000',
    environment: ['A', 1000],
    model: 'mobilenet',
    microBatch: 40,
    count: 50,
    microBatchOfOne: 8,
    cases: {
      'pure DP': grouped([nanos], '1f1b'),
      best: planned('best'),
      'pure DP, 10 samples a device': grouped([nanos], '1f1b', { microBatch: 50 }),
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
      'pure DP': grouped([nanos], '1f1b'),
      'hybrid 3 + 2': grouped([nanos.slice(0, 3), nanos.slice(3)], '1f1b'),
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
      'DP, unequal shares': grouped([['tx2-1', ...slowest]], '1f1b'),
      'hybrid 3 + 1': grouped([slowest, ['tx2-1']], '1f1b'),
      'hybrid 3 + 1, GPipe': grouped([slowest, ['tx2-1']], 'gpipe'),
    },
  },
  {
    name: 'C-1000',
    environment: ['C', 1000],
    model: 'mobilenet',
    microBatch: 16,
    count: 6,
    cases: {
      'hybrid 1 + 2 + 3, unequal': grouped(unequal, '1f1b'),
      'hybrid 1 + 2 + 3, zb-h1': grouped(unequal, 'zb-h1'),
    },
  },
];

export const forms = (bench: LabBench): Promise<Found> => casesOf(bench, groups);
