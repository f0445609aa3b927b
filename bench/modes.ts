// What overlapping rounds should gain: the period of the best stream over the best synchronous round, predicted for the
// lab's clusters A, C and D at 100 and 1000 Mbps, with the devices' models (cluster/device-kinds.ts). Deterministic:
// the search is limited by counted work alone. Batch statistics are not replicated unless asked for: then stages are
// single devices, and rounds have bubbles. Usage: npm run bench -- modes [--batch N] [--replicate-batch-norm]
// [--planner NAME] [--max-staleness N]

import { parseArgs } from 'node:util';
import type { Cluster } from '../dist/cluster/cluster.js';
import { profileOfKinds } from '../dist/cluster/device-kinds.js';
import { compareModes, type ModeCost } from '../dist/planner/modes.js';
import { modelTable } from '../dist/runtime/host/models.js';
import { readTestbeds, withBandwidth } from '../dist/testing/reproduction/experiment.js';
import { percent } from './common/numbers.ts';
import { table } from './common/table.ts';

const { values: flags } = parseArgs({
  options: {
    batch: { type: 'string', default: '64' },
    planner: { type: 'string', default: 'best' },
    'max-staleness': { type: 'string' },
    'replicate-batch-norm': { type: 'boolean', default: false },
  },
});
const testbeds = readTestbeds(process.cwd());
const models = { MobileNetV2: 'mobilenet-v2-cifar', 'EfficientNet-B1': 'efficientnet-b1:input=64,classes=10' };

function form({ plan }: ModeCost): string {
  const stages = plan.stages.map(({ devices, inFlight }) => `${devices.length}(${inFlight})`).join(' ');
  return `${plan.schedule} ${plan.microBatchCount} x ${plan.microBatchSize}: ${stages}`;
}

async function rowOf(letter: string, mbps: number, name: keyof typeof models): Promise<(string | number)[]> {
  const cluster: Cluster = withBandwidth(testbeds(`asteroid-${letter}`), mbps);
  const { modes } = compareModes({
    profile: profileOfKinds(await modelTable(models[name]), cluster),
    cluster,
    batchSize: Number(flags.batch),
    planner: flags.planner,
    optimizerState: 1,
    replicateBatchDependent: flags['replicate-batch-norm'],
    ...(flags['max-staleness'] === undefined ? {} : { maxStaleness: Number(flags['max-staleness']) }),
  });
  const [sync, stale] = modes;
  if (sync === undefined || stale === undefined || 'refusal' in sync || 'refusal' in stale)
    return [letter, mbps, name, 'no plan', '', '', '', '', ''];
  return [
    ...[letter, mbps, name, sync.roundMs.toFixed(0), form(sync), percent(sync.bubbleShare)],
    ...[stale.roundMs.toFixed(0), form(stale), stale.staleness, `${(sync.roundMs / stale.roundMs).toFixed(2)}x`],
  ];
}

const rows: (string | number)[][] = [];
for (const name of ['MobileNetV2', 'EfficientNet-B1'] as const)
  for (const letter of ['a', 'c', 'd'])
    for (const mbps of [100, 1000]) {
      rows.push(await rowOf(letter, mbps, name));
      console.error(rows.at(-1)?.join(' | '));
    }
const head = ['cluster', 'Mbps', 'model', 'sync ms', 'plan', 'bubbles', 'async ms', 'plan, (in flight)', 'staleness'];
console.log(table([...head, 'async over sync'], rows));
