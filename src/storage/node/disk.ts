// The disk of this machine.

import { constants } from 'node:fs';
import { type FileHandle, mkdir, open, readdir, rename, rm } from 'node:fs/promises';
import { coded, type Disk, type DiskFile } from '../disk.ts';

/** Linux moves at most 2 GiB − 4 KiB a call; smaller pieces also keep libuv's threads responsive. */
const pieceBytes = 64 * 1024 * 1024;

/** The disk of this machine. */
export const nodeDisk: Disk = {
  async read(path) {
    const handle = await open(path, 'r');
    try {
      return await readAll(handle);
    } finally {
      await handle.close();
    }
  },
  list: async (folder) => (await readdir(folder)).sort(),
  create: async (path) => nodeFile(await open(path, 'wx')),
  append: async (path) => nodeFile(await open(path, 'a')),
  rename,
  remove: (path) => rm(path),
  async makeFolder(path) {
    await mkdir(path);
  },
  async syncFolder(folder) {
    // Windows opens no folders, and needs no sync of them.
    if (process.platform === 'win32') return;
    const handle = await open(folder, constants.O_RDONLY);
    try {
      await handle.sync();
    } finally {
      await handle.close();
    }
  },
};

async function readAll(handle: FileHandle): Promise<Uint8Array> {
  const stat = await handle.stat();
  if (stat.isDirectory()) throw coded('EISDIR');
  // A pipe or a device may have no end.
  if (!stat.isFile()) throw coded('ENOTREG');
  let bytes: Uint8Array;
  try {
    bytes = new Uint8Array(stat.size);
  } catch {
    throw coded('EFBIG');
  }
  let filled = 0;
  while (filled < bytes.length) {
    const { bytesRead } = await handle.read(bytes, filled, Math.min(pieceBytes, bytes.length - filled), filled);
    if (bytesRead === 0) break; // it was cut while being read
    filled += bytesRead;
  }
  return filled === bytes.length ? bytes : bytes.slice(0, filled);
}

function nodeFile(handle: FileHandle): DiskFile {
  return {
    async write(bytes) {
      for (let start = 0; start < bytes.length; ) {
        const { bytesWritten } = await handle.write(bytes, start, Math.min(pieceBytes, bytes.length - start));
        start += bytesWritten;
      }
    },
    truncate: (length) => handle.truncate(length),
    sync: () => handle.sync(),
    close: () => handle.close(),
  };
}
