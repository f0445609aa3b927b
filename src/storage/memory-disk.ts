// A disk in memory that can lose power. It keeps apart what was written and what was synced, as a journalling file
// system does: after a power cut an unsynced file has any part of its new bytes, and of a folder's unsynced changes any
// first few have happened. For tests and the rehearsal.

import { assert } from '../assert.ts';
import { basename, dirname } from '../paths.ts';
import type { Random } from '../random.ts';
import { coded, type Disk, type DiskFile } from './disk.ts';

/** What happens on the disk, in order. */
export interface DiskOperation {
  /** From 1. */
  readonly number: number;
  readonly kind: keyof Disk | keyof DiskFile;
  readonly path: string;
}

export interface MemoryDiskOptions {
  /**
   * Asked before each operation: undefined lets it happen, 'crash' cuts the power (a write may be half done; nothing
   * works any more), any other text is the `code` of the error to throw ('ENOSPC': half of a write is done).
   */
  readonly fault?: (operation: DiskOperation) => string | undefined;
}

export interface MemoryDisk extends Disk {
  /** Operations so far, failed ones included. */
  operationCount(): number;
  /** The disk as it is found when the power is back; what was not synced is decided by `random`. */
  restart(random: Random, options?: MemoryDiskOptions): MemoryDisk;
}

interface Inode {
  bytes: Uint8Array;
  /** The contents at the last sync. */
  synced: Uint8Array;
}

interface Folder {
  entries: Map<string, Inode | Folder>;
  synced: Map<string, Inode | Folder>;
  /** Changes of `entries` since the sync, each atomic: a name's new inode, or null where it is gone. */
  pending: ReadonlyMap<string, Inode | Folder | null>[];
}

/** An empty disk with the root folder and the folders given. */
export function createMemoryDisk(options: MemoryDiskOptions = {}, folders: readonly string[] = []): MemoryDisk {
  const root = emptyFolder();
  for (const path of folders) {
    let folder = root;
    for (const name of parts(path)) {
      const next = (folder.entries.get(name) as Folder | undefined) ?? emptyFolder();
      folder.entries.set(name, next);
      folder.synced.set(name, next);
      folder = next;
    }
  }
  return overTree(root, options);
}

function emptyFolder(): Folder {
  return { entries: new Map(), synced: new Map(), pending: [] };
}

function parts(path: string): string[] {
  return path.split('/').filter((part) => part !== '' && part !== '.');
}

function isFolder(node: Inode | Folder | undefined): node is Folder {
  return node !== undefined && 'entries' in node;
}

function overTree(root: Folder, options: MemoryDiskOptions): MemoryDisk {
  let operationCount = 0;
  let dead = false;

  /** Counts the operation and throws what the fault says; `halfDone` is called first. */
  const step = (kind: DiskOperation['kind'], path: string, halfDone?: () => void): void => {
    operationCount++;
    if (dead) throw new Error('the power is cut');
    const fault = options.fault?.({ number: operationCount, kind, path });
    if (fault === undefined) return;
    halfDone?.();
    dead = fault === 'crash';
    throw dead ? new Error('the power is cut') : coded(fault);
  };
  const folderAt = (path: string): Folder => {
    let folder = root;
    for (const name of parts(path)) {
      const next = folder.entries.get(name);
      if (next === undefined) throw coded('ENOENT');
      if (!isFolder(next)) throw coded('ENOTDIR');
      folder = next;
    }
    return folder;
  };
  const inodeAt = (path: string): Inode => {
    const node = folderAt(dirname(path)).entries.get(basename(path));
    if (node === undefined) throw coded('ENOENT');
    if (isFolder(node)) throw coded('EISDIR');
    return node;
  };
  const change = (folder: Folder, changes: ReadonlyMap<string, Inode | Folder | null>): void => {
    apply(folder.entries, changes);
    folder.pending.push(changes);
  };
  const add = (path: string, node: Inode | Folder): void => {
    const folder = folderAt(dirname(path));
    if (folder.entries.has(basename(path))) throw coded('EEXIST');
    change(folder, new Map([[basename(path), node]]));
  };
  const fileOf = (path: string, inode: Inode): DiskFile => ({
    async write(bytes) {
      step('write', path, () => {
        inode.bytes = joined(inode.bytes, bytes.subarray(0, bytes.length >> 1));
      });
      inode.bytes = joined(inode.bytes, bytes);
    },
    async truncate(length) {
      step('truncate', path);
      inode.bytes = inode.bytes.slice(0, length);
    },
    async sync() {
      step('sync', path);
      inode.synced = inode.bytes;
    },
    async close() {
      step('close', path);
    },
  });
  return {
    async read(path) {
      step('read', path);
      return inodeAt(path).bytes.slice();
    },
    async list(folder) {
      step('list', folder);
      return [...folderAt(folder).entries.keys()].sort();
    },
    async create(path) {
      step('create', path);
      const inode: Inode = { bytes: new Uint8Array(0), synced: new Uint8Array(0) };
      add(path, inode);
      return fileOf(path, inode);
    },
    async append(path) {
      step('append', path);
      if (!folderAt(dirname(path)).entries.has(basename(path)))
        add(path, { bytes: new Uint8Array(0), synced: new Uint8Array(0) });
      return fileOf(path, inodeAt(path));
    },
    async rename(from, to) {
      step('rename', from);
      assert(
        parts(dirname(from)).join('/') === parts(dirname(to)).join('/'),
        'the memory disk renames inside one folder only',
      );
      const inode = inodeAt(from);
      change(
        folderAt(dirname(from)),
        new Map([
          [basename(to), inode],
          [basename(from), null],
        ]),
      );
    },
    async remove(path) {
      step('remove', path);
      inodeAt(path);
      change(folderAt(dirname(path)), new Map([[basename(path), null]]));
    },
    async makeFolder(path) {
      step('makeFolder', path);
      add(path, emptyFolder());
    },
    async syncFolder(path) {
      step('syncFolder', path);
      const folder = folderAt(path);
      folder.synced = new Map(folder.entries);
      folder.pending = [];
    },
    operationCount: () => operationCount,
    restart: (random, nextOptions = {}) => overTree(survivingFolder(root, random, new Map()), nextOptions),
  };
}

function apply(entries: Map<string, Inode | Folder>, changes: ReadonlyMap<string, Inode | Folder | null>): void {
  for (const [name, node] of changes) {
    if (node === null) entries.delete(name);
    else entries.set(name, node);
  }
}

function joined(a: Uint8Array, b: Uint8Array): Uint8Array {
  const result = new Uint8Array(a.length + b.length);
  result.set(a);
  result.set(b, a.length);
  return result;
}

function survivingFolder(folder: Folder, random: Random, inodes: Map<Inode, Inode>): Folder {
  const entries = new Map(folder.synced);
  // A journal replays in order: some first few changes happened.
  for (const changes of folder.pending.slice(0, random.integer(folder.pending.length + 1))) apply(entries, changes);
  const survivors = new Map(
    [...entries].map(([name, node]) => [
      name,
      isFolder(node) ? survivingFolder(node, random, inodes) : survivingInode(node, random, inodes),
    ]),
  );
  return { entries: survivors, synced: new Map(survivors), pending: [] };
}

function survivingInode(inode: Inode, random: Random, inodes: Map<Inode, Inode>): Inode {
  const known = inodes.get(inode);
  if (known !== undefined) return known;
  const bytes = survivingBytes(inode, random);
  const survivor = { bytes, synced: bytes };
  inodes.set(inode, survivor);
  return survivor;
}

function survivingBytes({ bytes, synced }: Inode, random: Random): Uint8Array {
  if (bytes === synced) return bytes;
  const choice = random.integer(4);
  if (choice === 0) return synced;
  if (choice === 1) return bytes;
  const cut = random.integer(bytes.length + 1);
  if (choice === 2) return bytes.slice(0, cut);
  // The length reached the disk before the contents did.
  const zeros = bytes.slice();
  zeros.fill(0, cut);
  return zeros;
}
