// Weight aggregation of asynchronous pipelines (FTPipeHD, section III-C): a stage that trains with n versions of its
// weights at once makes one of them from time to time, their mean, which the next update is applied to. Trained
// parameters only: the optimizer's state and running statistics are not averaged.

import { Emitter } from '../graph/emitter.ts';
import type { Graph } from '../graph/graph.ts';
import { tensor } from '../graph/tensor.ts';
import type { Parameter } from './names.ts';

/** How a stage aggregates. */
export interface Aggregation {
  /** K of `--aggregate K`: every K·n updates; 0: never. */
  readonly every: number;
  /** n: the versions that the stage trains with at once, which is P − p in stage p of P. */
  readonly versionCount: number;
  /** The version that the stream began with: those before it are not to be had. */
  readonly firstVersion: number;
}

/**
 * The versions whose mean update number `update` (from 0) is applied to, in ascending order: update − n + 1 … update
 * every K·n updates, but at update 0 and where the stream has not so many versions yet; else only version `update`.
 * Version v is the state after v updates.
 */
export function aggregatedVersions(
  update: number,
  { every, versionCount, firstVersion }: Aggregation,
): readonly number[] {
  const first = update - versionCount + 1;
  const isDue = every > 0 && update > 0 && update % (every * versionCount) === 0 && first >= firstVersion;
  return isDue ? Array.from({ length: versionCount }, (_, index) => first + index) : [update];
}

/** The versions before version `update` that an update may need: what a stage keeps for aggregation. */
export function aggregatedSpan({ every, versionCount }: Pick<Aggregation, 'every' | 'versionCount'>): number {
  return every > 0 ? versionCount - 1 : 0;
}

/**
 * The mean of versions of parameters. Inputs: `versionName` of each parameter for 0 … count−1. Outputs: the parameters'
 * names.
 */
export function meanGraph(parameters: readonly Parameter[], count: number): Graph {
  const emitter = new Emitter();
  for (let version = 0; version < count; version++)
    for (const { name, type = 'float32', shape } of parameters) emitter.input(versionName(name, version), type, shape);
  for (const { name, type = 'float32' } of parameters) {
    let sum = versionName(name, 0);
    for (let version = 1; version < count; version++) sum = emitter.emit('Add', [sum, versionName(name, version)]);
    const share = emitter.constant(tensor(type, [], [1 / count]));
    emitter.append({ operator: 'Mul', domain: '', name, inputs: [sum, share], outputs: [name], attributes: {} });
  }
  return emitter.build(
    'mean',
    parameters.map(({ name }) => name),
  );
}

/** The name of a parameter's value in the index-th of the versions that are averaged. */
export function versionName(parameter: string, index: number): string {
  return `version(${parameter}, ${index})`;
}
