// The profile that a plan is made from: a file, the kinds of the cluster's devices, or, if none of these kinds is
// known, measured here.

import { systemClock } from '../clock.ts';
import type { Cluster, Profile } from '../cluster/cluster.ts';
import { kindModel, profileOfKinds } from '../cluster/device-kinds.ts';
import { parseProfile } from '../cluster/validate.ts';
import { InputError } from '../errors.ts';
import { modelTable } from '../runtime/host/models.ts';
import { measureHere } from '../runtime/host/profile-here.ts';
import type { LoadedModel } from '../runtime/run/loaded-model.ts';
import { progress } from './commands/profile.ts';
import { readText } from './files.ts';
import { checkStates, loadSizedModel, type SizeOptions } from './model-options.ts';
import type { Output } from './output.ts';

export interface PlanningProfileOptions extends SizeOptions {
  readonly model?: string;
  readonly profile?: string;
  /** Of a measurement. */
  readonly largestBatch: number;
  /** Of plans by forward gradients: the tangents of a round. Absent: other plans. */
  readonly tangentCount?: number | undefined;
}

/** Throws InputError unless exactly one of `model` and `profile` is given. */
export async function planningProfile(
  options: PlanningProfileOptions,
  cluster: Cluster,
  output: Output,
): Promise<Profile> {
  const { profile, model, tangentCount } = options;
  checkStates(options, tangentCount !== undefined, '--mode forward-gradient');
  if (profile !== undefined && model !== undefined)
    throw new InputError('--profile and --model cannot both be given: choose one.');
  if (profile !== undefined && options.state?.length)
    throw new InputError('--state is of --model; a profile has what it needs: leave it out.');
  if (profile !== undefined) return parseProfile(await readText(profile), profile);
  if (model === undefined)
    throw new InputError('--profile or --model is missing: give a profile, or a model to measure here.');
  if (cluster.devices.some(({ kind }) => kind !== undefined && kindModel(kind) !== undefined)) {
    if (!output.isJson) output.terminal.section('Note', "times are those of the devices' kinds, not measured");
    return profileOfKinds(await modelTable(model, () => loadSizedModel(model, options)), cluster);
  }
  return measured(await loadSizedModel(model, options), cluster, options, output);
}

async function measured(
  model: LoadedModel,
  cluster: Cluster,
  { largestBatch, tangentCount }: PlanningProfileOptions,
  output: Output,
): Promise<Profile> {
  const device = 'this-device';
  if (!output.isJson)
    output.terminal.section(
      'Note',
      'the kinds of the devices have no performance models: every device is taken for one like this',
    );
  const here = await measureHere(model, {
    largestBatch,
    device,
    threads: 1,
    engine: 'onnxruntime',
    ...(tangentCount === undefined ? {} : { tangentCount }),
    clock: systemClock,
    onProgress: progress(output),
  });
  output.terminal.live([]);
  const times = here.devices[device];
  if (times === undefined) return here;
  return { ...here, devices: Object.fromEntries(cluster.devices.map(({ name }) => [name, times])) };
}
