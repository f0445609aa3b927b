// A file of JSON lines that grows while training runs. Appending never waits for the disk; lines reach it in order and
// whole: what a full disk or a killed process cut off is removed before the next line. Part of storage/ (Node only).

import { assert } from '../assert.ts';
import { RunError } from '../errors.ts';
import { writeFileAtomically } from './atomic.ts';
import { type Disk, type DiskFile, errorCode, writeError } from './disk.ts';

export interface LineLogOptions {
  readonly disk: Disk;
  /**
   * Given: a disk that is full or read-only costs lines, not the run, and is told once per outage. Absent: it is an
   * error.
   */
  readonly onWarning?: (warning: string) => void;
}

/** An open log. Its owner closes it. */
export interface LineLog {
  readonly path: string;
  /** Queues one record as a line. Throws the RunError of an earlier write, unless warnings were chosen. */
  append(record: object): void;
  /** Waits until all queued lines are with the operating system. Throws RunError, unless warnings were chosen. */
  flush(): Promise<void>;
  /** Flushes, syncs and closes; also after an error. */
  close(): Promise<void>;
}

/** Lines that wait for the disk, together; beyond this it counts as failed. */
const maxWaitingBytes = 16 * 1024 * 1024;

/** Opens or makes the file; an incomplete last line is removed. Throws RunError, unless warnings were chosen. */
export async function openLineLog(path: string, options: LineLogOptions): Promise<LineLog> {
  const writer = new LineWriter(path, options);
  await writer.open();
  return writer;
}

class LineWriter implements LineLog {
  readonly path: string;
  readonly #disk: Disk;
  readonly #onWarning: ((warning: string) => void) | undefined;
  #file: DiskFile | undefined;
  /** Bytes of whole lines in the file. */
  #length = 0;
  /** True where bytes beyond #length may be in the file. */
  #hasRest = false;
  #waiting: Uint8Array[] = [];
  #waitingBytes = 0;
  #draining: Promise<void> | undefined;
  #failure: RunError | undefined;
  /** Lines lost in this outage; undefined while the disk works. */
  #lostCount: number | undefined;
  #closed = false;

  constructor(path: string, options: LineLogOptions) {
    this.path = path;
    this.#disk = options.disk;
    this.#onWarning = options.onWarning;
  }

  async open(): Promise<void> {
    try {
      await this.#ready();
    } catch (error) {
      this.#fail(error, 0);
    }
    if (this.#failure !== undefined) throw this.#failure;
  }

  append(record: object): void {
    assert(!this.#closed, `${this.path} is closed`);
    if (this.#failure !== undefined) throw this.#failure;
    const line = new TextEncoder().encode(`${JSON.stringify(record)}\n`);
    if (this.#waitingBytes + line.length > maxWaitingBytes) {
      this.#fail(new Error(`the disk is too slow, ${this.#waitingBytes} bytes wait`), 1);
      return;
    }
    this.#waiting.push(line);
    this.#waitingBytes += line.length;
    this.#draining ??= this.#drain().finally(() => {
      this.#draining = undefined;
    });
  }

  async flush(): Promise<void> {
    await this.#draining;
    if (this.#failure !== undefined) throw this.#failure;
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    await this.#draining;
    try {
      await this.#file?.sync();
      await this.#file?.close();
    } catch (error) {
      this.#fail(error, 0);
    }
    if (this.#failure !== undefined) throw this.#failure;
  }

  /** Never rejects: problems go to #fail. */
  async #drain(): Promise<void> {
    while (this.#waiting.length > 0) {
      const lines = this.#waiting;
      this.#waiting = [];
      this.#waitingBytes = 0;
      try {
        const file = await this.#ready();
        this.#hasRest = true;
        const bytes = concatenated(lines);
        await file.write(bytes);
        this.#length += bytes.length;
        this.#hasRest = false;
        this.#recovered();
      } catch (error) {
        this.#fail(error, lines.length);
      }
    }
  }

  /** The file, open and ending with a whole line. */
  async #ready(): Promise<DiskFile> {
    if (this.#file === undefined) {
      const { wholeBytes, bytes } = await readWholeLines(this.path, this.#disk);
      this.#length = wholeBytes;
      this.#hasRest = bytes > wholeBytes;
      this.#file = await this.#disk.append(this.path);
    }
    if (this.#hasRest) {
      await this.#file.truncate(this.#length);
      this.#hasRest = false;
    }
    return this.#file;
  }

  #fail(error: unknown, lineCount: number): void {
    const failure = writeError(error, this.path);
    if (this.#onWarning === undefined) {
      this.#failure ??= failure;
      this.#waiting = [];
      this.#waitingBytes = 0;
      return;
    }
    if (this.#lostCount === undefined)
      this.#onWarning(`${failure.message} Training goes on; lines are lost until then.`);
    this.#lostCount = (this.#lostCount ?? 0) + lineCount;
  }

  #recovered(): void {
    if (this.#lostCount === undefined) return;
    this.#onWarning?.(`${this.path} can be written again; ${this.#lostCount} lines are missing.`);
    this.#lostCount = undefined;
  }
}

/**
 * Rewrites a log with only the records for which `keep` is true; lines that are no JSON object are dropped. For a run
 * that goes on from an earlier round. A file that is absent stays so. Throws RunError.
 */
export async function keepLines(
  path: string,
  keep: (record: Readonly<Record<string, unknown>>) => boolean,
  disk: Disk,
): Promise<void> {
  const records = await readLines(path, disk);
  if (records === undefined) return;
  const kept = records.filter(keep).map((record) => `${JSON.stringify(record)}\n`);
  await writeFileAtomically(path, [new TextEncoder().encode(kept.join(''))], disk);
}

/** The records of a log, without lines that are no JSON object; undefined where there is no file. Throws RunError. */
export async function readLines(path: string, disk: Disk): Promise<Record<string, unknown>[] | undefined> {
  let bytes: Uint8Array;
  try {
    bytes = await disk.read(path);
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return undefined;
    throw new RunError(`${path} cannot be read: ${(error as Error).message}.`, { cause: error });
  }
  const records: Record<string, unknown>[] = [];
  for (const line of new TextDecoder().decode(bytes).split('\n')) {
    const record = parseObject(line);
    if (record !== undefined) records.push(record);
  }
  return records;
}

function parseObject(line: string): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(line);
    return typeof value === 'object' && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : undefined;
  } catch {
    return undefined;
  }
}

async function readWholeLines(path: string, disk: Disk): Promise<{ wholeBytes: number; bytes: number }> {
  try {
    const bytes = await disk.read(path);
    return { wholeBytes: bytes.lastIndexOf(10) + 1, bytes: bytes.length };
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return { wholeBytes: 0, bytes: 0 };
    throw error;
  }
}

function concatenated(parts: readonly Uint8Array[]): Uint8Array {
  const bytes = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let offset = 0;
  for (const part of parts) {
    bytes.set(part, offset);
    offset += part.length;
  }
  return bytes;
}
