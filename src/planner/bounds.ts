// What no plan can beat in the simulated world. It proves that a micro-batch size need not be tried, and how far a plan is from the best.

import type { Problem } from './problem.ts';
import { StageTable } from './stages.ts';

/**
 * A lower bound of the round of any plan with the problem's micro-batch size: some device is busy for at least the weighted mean of all
 * busy times, and each sample of each layer costs at least the cheapest device's weighted time at its best share. The weights are the
 * devices' speeds over the whole model, with which the bound is exact for devices that differ by a factor. Ignores memory and links.
 */
export function lowerBoundMs(problem: Problem): number {
  const table = new StageTable(problem);
  const layerCount = problem.profile.layers.length;
  const counts = problem.classes.map((_, classIndex) => problem.devices.filter((device) => device.classIndex === classIndex).length);
  const costs: number[][] = [];
  for (let layer = 0; layer < layerCount; layer++) {
    table.setLayers(layer, layer + 1);
    costs.push(problem.classes.map((_, classIndex) => table.leastPerSampleMs(classIndex)));
  }
  const speeds = counts.map((_, classIndex) => 1 / costs.reduce((sum, row) => sum + (row[classIndex] ?? 0), 0));
  if (!speeds.every(Number.isFinite)) return 0;
  const totalSpeed = speeds.reduce((sum, speed, classIndex) => sum + speed * (counts[classIndex] ?? 0), 0);
  const perSampleMs = costs.reduce((sum, row) => sum + Math.min(...row.map((ms, classIndex) => ms * (speeds[classIndex] ?? 0))), 0) / totalSpeed;
  return problem.microBatchSize * problem.microBatchCount * perSampleMs * (1 - 1e-9);
}
