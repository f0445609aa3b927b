// Compiled stages, and first plans, in the user's cache folder, bounded in size. Each is a file that is named by a hash
// of the stage and the compiler (of the question and the planner), and begins with a hash of its content. A damaged
// file counts as absent.

import { createHash } from 'node:crypto';
import { readdir, readFile, rm, stat, utimes } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { isTemporary, makeFolders, writeFileAtomically } from '../../storage/atomic.ts';
import { cacheFolder } from '../../storage/node/cache-folder.ts';
import { nodeDisk } from '../../storage/node/disk.ts';
import type { StageStore } from '../device/compiled-stages.ts';

export interface StageFilesOptions {
  /** Default: `stages` in the cache folder. */
  readonly folder?: string;
  /** The most that all files may take; the least recently used make room. Default 512 MiB. */
  readonly maxBytes?: number;
  /** Identifies the compiler. Default: a hash of the code of this package that compiles stages. */
  readonly compiler?: () => Promise<string>;
  /** Called when a stage cannot be kept. */
  readonly onWarning?: (warning: string) => void;
}

const hashBytes = 32;
const extension = '.stage';
/** An older temporary file was left by a process that died. */
const abandonedMs = 3_600_000;

/** The store of first plans. */
export function createPlanFiles(options: Omit<StageFilesOptions, 'compiler'> = {}): StageStore {
  return createStageFiles({
    folder: join(cacheFolder(), 'plans'),
    maxBytes: 2 ** 24,
    compiler: () => hashOfCode(plannerFolders),
    ...options,
  });
}

/** The store over files. */
export function createStageFiles(options: StageFilesOptions = {}): StageStore {
  const {
    folder = join(cacheFolder(), 'stages'),
    maxBytes = 2 ** 29,
    compiler = () => hashOfCode(compilerFolders),
    onWarning = () => {},
  } = options;
  const version = compiler(); // of the code that is loaded: files may be replaced later
  version.catch(() => {}); // whoever uses it sees it
  const pathOf = async (key: string): Promise<string> => {
    const name = createHash('sha256')
      .update(`${key} ${await version}`)
      .digest('hex')
      .slice(0, 40);
    return join(folder, `${name}${extension}`);
  };
  return {
    async read(key) {
      try {
        const path = await pathOf(key);
        const bytes = await readFile(path);
        const rest = bytes.subarray(hashBytes);
        const isWhole = createHash('sha256').update(rest).digest().equals(bytes.subarray(0, hashBytes));
        if (!isWhole) return undefined;
        const now = new Date();
        await utimes(path, now, now);
        return rest;
      } catch {
        return undefined; // not there, or not this user's: it is compiled again
      }
    },
    async write(key, pieces) {
      try {
        const hash = createHash('sha256');
        for (const piece of pieces) hash.update(piece);
        const file = [hash.digest(), ...pieces];
        const size = file.reduce((bytes, piece) => bytes + piece.length, 0);
        if (size > maxBytes) return;
        await makeFolders(folder, nodeDisk);
        await makeRoom(folder, maxBytes - size);
        await writeFileAtomically(await pathOf(key), file, nodeDisk);
      } catch (error) {
        onWarning(`A compiled stage is not kept: ${error instanceof Error ? error.message : String(error)}`);
      }
    },
  };
}

/** Removes the least recently used files until the rest takes at most `maxBytes`, and files that dead writers left. */
async function makeRoom(folder: string, maxBytes: number): Promise<void> {
  const files: { readonly path: string; readonly bytes: number; readonly usedMs: number }[] = [];
  for (const name of await readdir(folder)) {
    const path = join(folder, name);
    const found = await stat(path).catch(() => undefined); // another process has removed it
    if (found === undefined) continue;
    if (isTemporary(name) && Date.now() - found.mtimeMs > abandonedMs) await rm(path, { force: true });
    if (name.endsWith(extension)) files.push({ path, bytes: found.size, usedMs: found.mtimeMs });
  }
  files.sort((a, b) => a.usedMs - b.usedMs);
  let bytes = files.reduce((sum, file) => sum + file.bytes, 0);
  for (const file of files) {
    if (bytes <= maxBytes) return;
    await rm(file.path, { force: true });
    bytes -= file.bytes;
  }
}

/** The folders whose code decides what a stage is compiled to. */
const compilerFolders = ['graph', 'autodiff', 'lowering', 'engine', 'training', 'runtime/device'];

/** The folders whose code decides what the plan of a run is. */
const plannerFolders = ['cluster', 'schedule', 'simulator', 'planner', 'runtime/run'];

/** A hash of the code: a version number would stay the same while somebody works on the compiler. Takes 10 ms. */
async function hashOfCode(folders: readonly string[]): Promise<string> {
  const root = fileURLToPath(new URL('../../', import.meta.url));
  const paths: string[] = [];
  for (const folder of folders) {
    for (const name of await readdir(join(root, folder), { recursive: true })) {
      if (/(?<!\.test)\.js$/.test(name)) paths.push(join(folder, name));
    }
  }
  const hash = createHash('sha256');
  const contents = await Promise.all(paths.sort().map((path) => readFile(join(root, path))));
  for (const [index, content] of contents.entries()) hash.update(`${paths[index]} ${content.length}\n`).update(content);
  return hash.digest('hex');
}
