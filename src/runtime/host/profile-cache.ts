// Measured profiles in the user's cache folder, by a hash of the model and the device.

import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { cpus, hostname } from 'node:os';
import { dirname, join } from 'node:path';
import { deviceFacts } from '../../engine/node/host-node.ts';
import { makeFolders, writeFileAtomically } from '../../storage/atomic.ts';
import { cacheFolder } from '../../storage/node/cache-folder.ts';
import { nodeDisk } from '../../storage/node/disk.ts';
import type { ProfileCache } from '../device/measure/cached-profile.ts';
import { messageSchemas } from '../protocol/messages.ts';

/**
 * A cache for the device `slot` of this machine: several workers on one machine slow each other down, and keep separate
 * profiles.
 */
export function profileCache(slot: string): ProfileCache {
  const quota = deviceFacts().cpuQuota?.cores.toFixed(3);
  const pathOf = (key: string): string => {
    const hash = createHash('sha256')
      .update(JSON.stringify([key, slot, hostname(), cpus()[0]?.model, cpus().length, quota]))
      .digest('hex');
    return join(cacheFolder(), 'profiles', `${hash.slice(0, 32)}.json`);
  };
  return {
    async read(key) {
      let text: string;
      try {
        text = await readFile(pathOf(key), 'utf8');
      } catch {
        return undefined; // not there, or not readable: it is measured again
      }
      try {
        const parsed = messageSchemas.coordinator.profiled.safeParse(JSON.parse(text));
        return parsed.success ? parsed.data : undefined;
      } catch {
        return undefined; // damaged: measured again and replaced
      }
    },
    async write(key, profile) {
      const path = pathOf(key);
      await makeFolders(dirname(path), nodeDisk);
      await writeFileAtomically(path, [new TextEncoder().encode(JSON.stringify(profile))], nodeDisk);
    },
  };
}
