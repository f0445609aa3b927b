// The coordinator's disk in the virtual world: storage's disk in memory. Each operation takes time, so that a crash can
// come between any two; it can refuse to write, and lose unsynced data in a power cut.

import type { Random } from '../random.ts';
import type { Disk, DiskFile } from '../storage/disk.ts';
import { createMemoryDisk, type DiskOperation, type MemoryDisk } from '../storage/memory-disk.ts';
import type { VirtualProcess } from './virtual-process.ts';

/** The longest that a file operation takes. */
const maxOperationMs = 4;

const readingKinds: ReadonlySet<DiskOperation['kind']> = new Set(['read', 'list', 'close']);

export class VirtualDisk {
  readonly #random: Random;
  #disk: MemoryDisk;
  /** The code of the error that every write throws. */
  #refusal: string | undefined;

  constructor(random: Random, folders: readonly string[]) {
    this.#random = random;
    this.#disk = createMemoryDisk(this.#options(), folders);
  }

  /** From now on writing fails with this code; undefined: it works again. */
  refuse(code: string | undefined): void {
    this.#refusal = code;
  }

  /** Cuts the power: of unsynced data, part or nothing remains. */
  cutPower(): void {
    this.#disk = this.#disk.restart(this.#random, this.#options());
  }

  /** The disk as one process uses it: with the process, its operations end. */
  openFor(process: VirtualProcess): Disk {
    const taken = <T>(operation: () => Promise<T>): Promise<T> =>
      new Promise((resolve, reject) => {
        process.takes(this.#random.uniform() * maxOperationMs, () => operation().then(resolve, reject));
      });
    const fileOf = (file: DiskFile): DiskFile => ({
      write: (bytes) => taken(() => file.write(bytes)),
      truncate: (length) => taken(() => file.truncate(length)),
      sync: () => taken(() => file.sync()),
      close: () => taken(() => file.close()),
    });
    const disk = this.#disk;
    return {
      read: (path) => taken(() => disk.read(path)),
      list: (folder) => taken(() => disk.list(folder)),
      create: (path) => taken(async () => fileOf(await disk.create(path))),
      append: (path) => taken(async () => fileOf(await disk.append(path))),
      rename: (from, to) => taken(() => disk.rename(from, to)),
      remove: (path) => taken(() => disk.remove(path)),
      makeFolder: (path) => taken(() => disk.makeFolder(path)),
      syncFolder: (path) => taken(() => disk.syncFolder(path)),
    };
  }

  #options(): { readonly fault: (operation: DiskOperation) => string | undefined } {
    return { fault: ({ kind }) => (readingKinds.has(kind) ? undefined : this.#refusal) };
  }
}
