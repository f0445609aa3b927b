// The nets of test/fixtures/pytorch/labels (made by make_labels.py there) with PyTorch's own losses and weights: every
// kind of labels, 103 samples in batches of 32, the last of 7. Used by tests only.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { resolveSettings } from '../cli/settings.ts';
import { loadModel } from '../runtime/host/models.ts';
import { prepareRun } from '../runtime/host/session-here.ts';
import type { PreparedRun } from '../runtime/run/prepare.ts';
import { loadDataset } from '../storage/node/datasets.ts';
import { gather } from '../training/data/dataset.ts';
import { batchIndices } from '../training/data/order.ts';
import { type HandPlan, handPlan } from './hand-plans.ts';
import type { MemoryRun, Outcome } from './memory-cluster.ts';
import { fixtureFolder } from './pytorch-fixtures.ts';

/** A net that PyTorch has trained. */
export interface LabelCase {
  readonly name: string;
  /** The array of its inputs. */
  readonly inputs: string;
  /** The flags of `asteroid train` that make the task PyTorch's, but for batch, epochs and learning rate. */
  readonly flags: Readonly<Record<string, string>>;
  /** Of each step, before its update. */
  readonly losses: readonly number[];
  /** After the last step, by the initializers' names. */
  readonly weights: Readonly<Record<string, readonly number[]>>;
}

interface CasesFile {
  readonly batch: number;
  readonly epochs: number;
  readonly learningRate: number;
  readonly cases: readonly LabelCase[];
}

const folder = join(fixtureFolder('pytorch'), 'labels');
const { batch, epochs, learningRate, cases } = JSON.parse(
  readFileSync(join(folder, 'cases.json'), 'utf8'),
) as CasesFile;

/** All cases, or the one of this name. Throws where there is none. */
export function labelCases(name?: string): readonly LabelCase[] {
  const found = cases.filter((candidate) => name === undefined || candidate.name === name);
  if (found.length === 0) throw new Error(`No case ${name ?? ''} in ${folder}: run the script there.`);
  return found;
}

/** The flags of `asteroid train` that train a case as PyTorch did, but for `--no-shuffle`. */
export function labelFlags({ name, inputs, flags }: LabelCase): Readonly<Record<string, string>> {
  return {
    model: join(folder, `${name}.onnx`),
    data: `npy:${join(folder, `${inputs}.npy`)},${join(folder, `${name}.labels.npy`)}`,
    batch: String(batch),
    epochs: String(epochs),
    lr: String(learningRate),
    ...flags,
  };
}

/** A case, prepared as the command prepares it, with further flags. */
export async function prepareCase(
  labelCase: LabelCase,
  more: Readonly<Record<string, unknown>> = {},
): Promise<PreparedRun> {
  const settings = resolveSettings({ shuffle: false, ...more }, { ...labelFlags(labelCase) }, 'the flags');
  const model = await loadModel(settings.model, settings.seed);
  const { train } = await loadDataset(settings.data);
  return prepareRun({ settings, model, train, test: undefined });
}

/** A prepared case as a run in memory; over a plan, if one is given. */
export function memoryRun({ subject, dataset, order, machine }: PreparedRun, plan?: HandPlan): MemoryRun {
  const { workerCount: _, ...rest } = machine;
  return {
    subject,
    batch: (round) => gather(dataset, batchIndices(order, round)),
    machine: { ...rest, planGiven: true },
    ...(plan === undefined ? {} : { plan: handPlan(plan, subject.sequence.layers.length) }),
  };
}

/** Fails where losses or weights are further than `tolerance`, relative, from PyTorch's. */
export function checkCase(
  { losses, state }: Pick<Outcome, 'losses' | 'state'>,
  expected: LabelCase,
  how: string,
): void {
  const tolerance = 1e-4;
  const name = `${expected.name} ${how}`;
  assert.equal(losses.length, expected.losses.length, name);
  for (const [step, loss] of expected.losses.entries())
    assert.ok(
      Math.abs((losses[step] as number) - loss) < tolerance * loss,
      `${name}: the loss of step ${step} is ${losses[step]}, PyTorch's ${loss}`,
    );
  for (const [parameter, values] of Object.entries(expected.weights)) {
    const found = state.parameter.get(parameter)?.data;
    assert.equal(found?.length, values.length, `${name}: ${parameter}`);
    const size = Math.max(...values.map(Math.abs));
    for (const [index, value] of values.entries())
      assert.ok(
        Math.abs(Number(found?.[index]) - value) < tolerance * size,
        `${name}: element ${index} of ${parameter} is ${found?.[index]}, PyTorch's ${value}`,
      );
  }
}
