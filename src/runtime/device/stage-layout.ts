// What a stage holds: its parameters and buffers, small ones in packs, trained ones by the buckets in which their
// gradients are reduced, and its optimizer's state.

import { defined } from '../../assert.ts';
import { replacedBuffers } from '../../graph/freeze.ts';
import type { LayerRange } from '../../schedule/program.ts';
import { type OptimizerGraph, optimizerGraph } from '../../training/optimizers.ts';
import { correctionOf } from '../../training/staleness.ts';
import type { TensorSpec } from '../protocol/model-message.ts';
import { type Packing, packedSpecs, packOf } from './packs.ts';
import type { StageLayout, StageOptions } from './stage-graphs.ts';
import type { StatePack } from './stage-state.ts';

/** What layers [first, end) hold. */
export function stageLayout(options: StageOptions): StageLayout {
  const { optimizer, packs, buffers, parameters, statistics, trained, buckets } = layOut(options);
  return {
    parameters,
    buffers,
    statistics: packedSpecs(statistics, packs.buffers),
    trained,
    buckets,
    packs: statePacks(packs, optimizer),
    optimizer,
  };
}

/** The packs by the roles of what is in them. */
export type Packs = Omit<Packing, 'replacements'>;

/** `StageLayout` before packing. */
export interface Layout extends Omit<StageLayout, 'packs'> {
  /** The trained parameters one by one, by bucket. */
  readonly unpacked: readonly (readonly TensorSpec[])[];
  readonly packs: Packs;
}

/** All that a design needs of a layout. */
export function layOut(options: StageOptions): Layout {
  const { sequence, layers, training, staleness = 0 } = options;
  const own = sequence.layers.slice(...layers);
  const replaced = new Set(replacedBuffers(sequence.graph));
  const buffers = own.flatMap((layer) => layer.buffers);
  const specs = (names: readonly string[]): TensorSpec[] =>
    names.map((name) => ({ name, shape: defined(sequence.graph.initializers.get(name), name).shape }));
  const parameters = specs(own.flatMap((layer) => layer.parameters));
  const frozen = new Set(training.frozen);
  const statistics = specs(buffers.filter((name) => replaced.has(name)));
  const unpacked = inBuckets(
    parameters.filter(({ name }) => !frozen.has(name)),
    options,
  );
  const packOfBucket = unpacked.map((bucket, index) =>
    packOf(unpacked.length === 1 ? 'packed parameters' : `packed parameters ${index}`, bucket),
  );
  const packs: Packs = {
    parameters: packOfBucket.flatMap((pack) => pack ?? []),
    buffers: packOf('packed statistics', statistics),
  };
  const buckets = unpacked.map((bucket, index) => packedSpecs(bucket, packOfBucket[index]));
  const trained = buckets.flat();
  const correction = correctionOf(training.stalenessCorrection ?? 'none', staleness);
  const optimizer = optimizerGraph(training.optimizer.kind, trained, { ...training.optimizer, correction });
  return { parameters, buffers: specs(buffers), statistics, unpacked, packs, trained, buckets, optimizer };
}

function inBuckets(
  trained: readonly TensorSpec[],
  { sequence, layers, form }: StageOptions,
): readonly (readonly TensorSpec[])[] {
  const ranges: readonly LayerRange[] = form.pieces?.buckets ?? [layers];
  return ranges.map((range) => {
    const own = new Set(sequence.layers.slice(...range).flatMap((layer) => layer.parameters));
    return trained.filter(({ name }) => own.has(name));
  });
}

/** The packs by the roles of what is in them; optimizer state is packed as its parameters are. */
function statePacks({ parameters, buffers }: Packs, optimizer: OptimizerGraph): readonly StatePack[] {
  const packs: StatePack[] = [];
  if (buffers !== undefined) packs.push({ role: 'buffer', pack: buffers });
  for (const pack of parameters) {
    packs.push({ role: 'parameter', pack });
    for (const { name, parameter, kind } of optimizer.state) {
      if (parameter !== pack.name) continue;
      const members = pack.members.map((member) => ({ ...member, name: `${member.name}/${kind}` }));
      packs.push({ role: 'optimizer', pack: { ...pack, name, members } });
    }
  }
  return packs;
}
