// The planners that are one search over different spaces: a name, what it is for, and the spaces. A new one of this kind is a new row.

import { InputError } from '../errors.ts';
import type { Space } from './asteroid.ts';
import type { Problem } from './problem.ts';

/** The spaces that a planner searches; of their best pipelines it takes the one that the simulator prefers. InputError when it cannot plan such a problem. */
export type Spaces = (problem: Problem) => readonly Space[];

const places = (problem: Problem): number[] => problem.devices.map((device) => device.place);

export const planners: Readonly<Record<string, Spaces>> = {
  /** The paper: devices by memory, largest first (earlier stages keep more activations), in stages of any number of them. */
  asteroid: (problem) => {
    const order = [...problem.devices].sort((a, b) => b.memoryBytes - a.memoryBytes || a.place - b.place).map((device) => device.place);
    return [{ order, groupLimit: order.length, stageLimit: order.length }];
  },
  /** The fastest single device that fits. */
  single: (problem) => places(problem).map((place) => ({ order: [place], groupLimit: 1, stageLimit: 1 })),
  /** Data parallelism over all devices, shares by Algorithm 1. */
  dp: (problem) => {
    const dependent = problem.profile.layers.find((layer) => layer.batchDependent === true);
    if (dependent !== undefined && !problem.replicateBatchDependent && problem.devices.length > 1) {
      const what = `Planner "dp" replicates every layer, but the result of layer "${dependent.name}" depends on the whole batch`;
      throw new InputError(
        `${what}; use another planner, such as asteroid, or allow it with replicateBatchDependent (--replicate-batch-norm).`,
      );
    }
    return [{ order: places(problem), groupLimit: problem.devices.length, stageLimit: 1 }];
  },
  /** A pipeline of single devices in the cluster's order, each with at least one layer (with fewer layers than devices: the first ones). */
  straight: (problem) => {
    const order = places(problem).slice(0, problem.profile.layers.length);
    return [{ order, groupLimit: 1, stageLimit: order.length }];
  },
};

/** The names of the planners. */
export const plannerNames: readonly string[] = Object.keys(planners);

/** The row of a planner; InputError listing them when there is none of that name. */
export function plannerSpaces(name: string): Spaces {
  if (Object.hasOwn(planners, name)) return planners[name] as Spaces;
  throw new InputError(`There is no planner "${name}"; use one of ${plannerNames.join(', ')}.`);
}
