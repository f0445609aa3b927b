// The part of the check that looks at forward gradients: before a device that trains updates, it has the derivatives of
// each micro-batch from every device of the last stage that has samples of it, each once; its own it has by its pass.
// Matching sends and cycles of waits are checked with all other transfers.

import { assert } from '../assert.ts';
import { type Checked, isIdleAt, microBatchName, samplesAt, title } from './check-shared.ts';
import type { DeviceProgram } from './program.ts';

export function checkDerivatives(device: DeviceProgram, checked: Checked): void {
  const name = title(device);
  const isTrained = checked.gradients === 'tangent' && device.layers[1] > checked.forwardOnlyLayers;
  const known = new Set<string>();
  const perRound = checked.microBatchCount / checked.roundCount;
  const last = checked.devices.filter(({ stage }) => stage === checked.stageCount - 1);
  for (const step of device.instructions) {
    if (step.kind === 'tangent') known.add(`${step.microBatch} ${device.device}`);
    if (step.kind === 'receive' && step.payload === 'derivative') {
      const what = `the derivatives of ${microBatchName(checked, step.microBatch)} from "${step.from}"`;
      const giver = last.find((other) => other.device === step.from);
      assert(isTrained, `${name} waits for ${what}, and has no use for them`);
      assert(giver !== undefined && giver !== device, `${name} waits for ${what}, which has none to give`);
      const own = samplesAt(giver, checked, step.microBatch);
      const isWhole = own[0] === step.samples[0] && own[1] === step.samples[1];
      assert(isWhole, `${name} waits for ${what} of other samples than it has`);
      const key = `${step.microBatch} ${step.from}`;
      assert(!known.has(key), `${name} waits for ${what} twice`);
      known.add(key);
    }
    if (step.kind !== 'update' || !isTrained) continue;
    const round = step.round ?? 0;
    for (let at = round * perRound; at < (round + 1) * perRound; at++) {
      for (const giver of last) {
        if (isIdleAt(giver, checked, at)) continue;
        const what = `the derivatives of ${microBatchName(checked, at)} from "${giver.device}"`;
        assert(known.has(`${at} ${giver.device}`), `${name} updates without ${what}`);
      }
    }
  }
}
