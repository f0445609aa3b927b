// The few file operations that storage needs, as a parameter: the real disk is in node/disk.ts, one in memory that can
// crash in memory-disk.ts. Both report a problem as Node does: an Error with a `code` such as ENOENT.

import { InputError, RunError } from '../errors.ts';

/** A file that is open for writing at its end. */
export interface DiskFile {
  /** Writes all bytes or throws; then any part of them may have been written. */
  write(bytes: Uint8Array): Promise<void>;
  /** Cuts the file to `length` bytes; the next write follows there. */
  truncate(length: number): Promise<void>;
  /** What was written survives a power cut once this resolves. */
  sync(): Promise<void>;
  close(): Promise<void>;
}

/** File operations. Paths are absolute or relative to the process; all of them throw errors with a `code`. */
export interface Disk {
  /** The whole contents of a regular file, as a plain Uint8Array at offset 0 of its buffer. */
  read(path: string): Promise<Uint8Array>;
  /** Names in a folder, sorted. */
  list(folder: string): Promise<string[]>;
  /** A new, empty file; EEXIST where there is one. */
  create(path: string): Promise<DiskFile>;
  /** Opens a file to write behind its end; made where it is absent. */
  append(path: string): Promise<DiskFile>;
  /** Moves a file, replacing what is there: readers see the one or the other. */
  rename(from: string, to: string): Promise<void>;
  /** Removes a file. */
  remove(path: string): Promise<void>;
  /** A new folder in an existing one; EEXIST where there is one: of two callers exactly one succeeds. */
  makeFolder(path: string): Promise<void>;
  /** New, renamed and removed names in the folder survive a power cut once this resolves. */
  syncFolder(folder: string): Promise<void>;
}

/** The `code` of an error of the disk, such as 'ENOENT'; undefined for any other error. */
export function errorCode(error: unknown): string | undefined {
  const code = error instanceof Error ? (error as { code?: unknown }).code : undefined;
  return typeof code === 'string' ? code : undefined;
}

const causes: Readonly<Record<string, string>> = {
  ENOENT: 'there is no such file or folder',
  EACCES: 'access is not permitted',
  EPERM: 'access is not permitted',
  EISDIR: 'it is a folder, not a file',
  ENOTDIR: 'a part of the path is a file, not a folder',
  ENOSPC: 'the disk is full',
  EDQUOT: 'the disk quota is used up',
  EROFS: 'the disk is read-only',
  EMFILE: 'too many files are open',
  ENFILE: 'too many files are open',
  EIO: 'the disk reports an input/output error',
  ELOOP: 'its links form a circle',
  ENAMETOOLONG: 'its name is too long',
  ENOTREG: 'it is not a regular file',
  EFBIG: 'it is too large for the memory or the file system',
};

function causeOf(error: unknown): string {
  return causes[errorCode(error) ?? ''] ?? (error as Error).message;
}

/** For a file that the user named and that cannot be read. */
export function readError(error: unknown, path: string): InputError {
  return new InputError(`${path} cannot be read: ${causeOf(error)}; check the path and its permissions.`, {
    cause: error,
  });
}

/** For a file of the run that cannot be written. */
export function writeError(error: unknown, path: string): RunError {
  return new RunError(`${path} cannot be written: ${causeOf(error)}; make room or choose another folder.`, {
    cause: error,
  });
}

/** An error as the disk makes them. */
export function coded(code: string): Error {
  return Object.assign(new Error(causes[code] ?? code), { code });
}
