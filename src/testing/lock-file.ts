// Checks package-lock.json: `npm ci` refuses a lock file that lacks an optional package named by another one, and npm
// leaves those out that the registry it was asked did not have (packages for other systems, mostly). Addresses of a
// registry are not kept in it.

interface LockEntry {
  readonly version?: string;
  readonly resolved?: string;
  readonly license?: string;
  readonly dev?: boolean;
  readonly optional?: boolean;
  readonly engines?: unknown;
  readonly optionalDependencies?: Readonly<Record<string, string>>;
}

/**
 * The part of package-lock.json (version 3) that is looked at. Keys of `packages` are folders, '' the project itself.
 */
export interface LockFile {
  readonly packages: Readonly<Record<string, LockEntry>>;
}

/** Folders of packages that carry an address. */
export function addressed(lock: LockFile): string[] {
  return Object.keys(lock.packages).filter((folder) => lock.packages[folder]?.resolved !== undefined);
}

/** Entries for the optional packages that the lock file names without holding them, by folder. */
export function missingOptional(lock: LockFile): Record<string, unknown> {
  const missing: Record<string, unknown> = {};
  for (const owner of Object.values(lock.packages)) {
    for (const [name, version] of Object.entries(owner.optionalDependencies ?? {})) {
      const folder = `node_modules/${name}`;
      if (folder in lock.packages || !/^\d+\.\d+\.\d+/.test(version)) continue;
      const { dev, license, engines } = owner;
      const { cpu, os, libc } = platformOf(name);
      // In npm's own order of keys, so that npm does not rewrite the entry.
      const entry = { version, cpu, dev, libc, license, optional: true, os, engines };
      missing[folder] = Object.fromEntries(Object.entries(entry).filter(([, value]) => value !== undefined));
    }
  }
  return missing;
}

/** The lock file's text with the missing entries at their places (npm sorts by name). */
export function completed(lock: LockFile): string {
  const packages = Object.entries({ ...lock.packages, ...missingOptional(lock) });
  packages.sort(([one], [other]) => one.localeCompare(other, 'en'));
  return `${JSON.stringify({ ...lock, packages: Object.fromEntries(packages) }, null, 2)}\n`;
}

/** `os`, `cpu` and `libc` as such packages spell them in their names: 'binding-linux-x64-musl'. */
function platformOf(name: string): Record<'os' | 'cpu' | 'libc', string[] | undefined> {
  const words = name.split(/[-/]/);
  const among = (known: readonly string[]): string[] | undefined => {
    const found = words.filter((word) => known.includes(word));
    return found.length > 0 ? found : undefined;
  };
  const libc = among(['musl', 'gnu'])?.map((word) => (word === 'gnu' ? 'glibc' : word));
  const os = among([
    'aix',
    'android',
    'darwin',
    'freebsd',
    'linux',
    'netbsd',
    'openbsd',
    'openharmony',
    'sunos',
    'win32',
  ]);
  const cpu = among(['arm', 'arm64', 'ia32', 'loong64', 'mips64el', 'ppc64', 'riscv64', 's390x', 'wasm32', 'x64']);
  return { os, cpu, libc: os?.includes('linux') ? libc : undefined };
}
