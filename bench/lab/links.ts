// Section links: a link that is the bottleneck (activations of early layers over 20 Mbps, many micro-batches), and an
// AllReduce that is most of the round.

import { type CaseGroup, casesOf, grouped } from './cases.ts';
import type { Found, LabBench } from './group.ts';

const groups: readonly CaseGroup[] = [
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

export const links = (bench: LabBench): Promise<Found> => casesOf(bench, groups);
