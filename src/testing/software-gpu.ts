// A GPU for tests: the software Vulkan driver in Debian's package `chromium`.

import { existsSync } from 'node:fs';
import { constants, tmpdir } from 'node:os';
import { join } from 'node:path';

const folder = '/usr/lib/chromium';
const driver = join(folder, 'vk_swiftshader_icd.json');

/** Why there is no such GPU here; undefined where there is. */
export const softwareGpuMissing: string | undefined = existsSync(driver)
  ? undefined
  : `${driver} is missing: install Debian's package chromium`;

/** For processes that are to have it. */
export function softwareGpuEnvironment(): Readonly<Record<string, string>> {
  return { VK_ICD_FILENAMES: driver, XDG_RUNTIME_DIR: tmpdir(), LD_LIBRARY_PATH: folder };
}

/** Gives it to this process. To be called before the first engine is made. */
export function useSoftwareGpu(): void {
  if (softwareGpuMissing !== undefined) return;
  const { LD_LIBRARY_PATH: _, ...settings } = softwareGpuEnvironment();
  Object.assign(process.env, settings);
  const [now, keep] = [constants.dlopen.RTLD_NOW, 0x1000]; // RTLD_NODELETE: the loader stays, and is found by its name.
  try {
    process.dlopen({ exports: {} }, join(folder, 'libvulkan.so.1'), now | keep);
  } catch {
    // It is loaded now, and is no addon, as Node complains.
  }
}
