// What will be trained on which data: the first lines of a run.

import { elementCount } from '../graph/tensor.ts';
import type { PreparedRun } from '../runtime/run/prepare.ts';
import { describeDataset } from '../training/data/describe.ts';
import { roundsPerEpoch } from '../training/data/order.ts';
import { counted, grouped, labelWidth, type Terminal } from './terminal.ts';

/** Says what will be trained on which data, before training begins. */
export function describeRun(
  { settings, model, subject, dataset, test, machine, order }: PreparedRun,
  terminal: Terminal,
): void {
  const { parameters, initializers } = subject.sequence.graph;
  const weightCount = parameters.reduce((sum, name) => sum + elementCount(initializers.get(name)?.shape ?? []), 0);
  const frozenCount = subject.training.frozen.length;
  const frozen = frozenCount > 0 ? ` (${frozenCount} of ${parameters.length} tensors frozen)` : '';
  terminal.section(
    'Model',
    `${model.name}: ${counted(subject.sequence.layers.length, 'layer')}, ${grouped(weightCount)} weights${frozen}`,
  );
  const tested = test === undefined ? '' : `, ${grouped(test.sampleCount)} others to test`;
  terminal.section('Data', `${dataset.name}: ${grouped(dataset.sampleCount)} samples to train${tested}`);
  if (dataset.classNames !== undefined || dataset.preparation !== undefined)
    for (const line of describeDataset(dataset)) terminal.section('', line);
  const from = machine.firstRound > 0 ? `, from round ${machine.firstRound}` : '';
  const { restSize = 0 } = order;
  const last =
    restSize > 0 && roundsPerEpoch(order) <= machine.endRound ? ` (${restSize} in the last of an epoch)` : '';
  const rounds = `${counted(machine.endRound, 'round')} of ${counted(settings.batch, 'sample')}${last}${from}`;
  const lrSchedule = settings.lrSchedule === 'constant' ? '' : `, ${settings.lrSchedule}`;
  terminal.section('Settings', `${rounds}; ${settings.optimizer}, learning rate ${settings.lr}${lrSchedule}`);
  if (settings.workers > 0)
    terminal.live([`${'Devices'.padEnd(labelWidth)}starting ${counted(settings.workers, 'worker process')} …`]);
}
