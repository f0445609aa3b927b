// Measured profiles that are kept: a device measures a model once.

import type { LayerProfile } from '../../../cluster/cluster.ts';
import type { LayerSequence } from '../../../graph/layers.ts';
import { layerKinds } from './layer-trials.ts';
import type { MeasuredProfile, ProfileOptions } from './measurement.ts';

/** A cache of measured profiles on this device. */
export interface ProfileCache {
  read(key: string): Promise<MeasuredProfile | undefined>;
  write(key: string, profile: MeasuredProfile): Promise<void>;
}

/** What a profile is of, but for the device itself. */
type ProfileSubject = Pick<ProfileOptions, 'batchSizes' | 'thoroughness' | 'training' | 'label'>;

/**
 * What a cache holds of a model on an engine of this name, or else what `measure` finds, which it holds from now on.
 */
export async function cachedProfile(
  cache: ProfileCache | undefined,
  {
    engineName,
    sequence,
    ...options
  }: ProfileSubject & {
    readonly engineName: string;
    readonly sequence: LayerSequence;
  },
  measure: () => Promise<MeasuredProfile>,
): Promise<MeasuredProfile> {
  const key = cacheKey(engineName, sequence, options);
  const known = await cache?.read(key);
  if (known !== undefined) return { ...known, layers: renamed(known.layers, sequence), cached: true };
  const profile = await measure();
  // A cache that cannot be written (a full disk, a read-only home) costs time at the next run, not this run.
  await cache?.write(key, profile).catch(() => {});
  return profile;
}

/** All that the times depend on, but for the device itself. */
function cacheKey(
  engineName: string,
  sequence: LayerSequence,
  { batchSizes, thoroughness = 'full', training, label }: ProfileSubject,
): string {
  const { frozen, loss, optimizer, forwardGradient } = training;
  return JSON.stringify([
    25,
    engineName,
    batchSizes,
    thoroughness,
    layerKinds(sequence, frozen),
    loss,
    optimizer.kind,
    label.type,
    label.shape,
    ...(training.isInference === true ? ['inference'] : []),
    ...(optimizer.averageDecay === undefined ? [] : ['average']),
    ...(forwardGradient === undefined ? [] : [forwardGradient.tangentCount, forwardGradient.perturbs ?? []].flat()),
  ]);
}

/** Another model's layers that compute the same, under the names of this one's. */
function renamed(profiles: readonly LayerProfile[], { layers }: LayerSequence): LayerProfile[] {
  return profiles.map((profile, index) => ({ ...profile, name: layers[index]?.name ?? profile.name }));
}
