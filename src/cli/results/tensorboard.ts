// A run's metrics as TensorBoard reads them: records of TensorFlow (TFRecord), each an Event message with scalars.
// Written as they come, so that TensorBoard shows a run while it trains.

import { createWriteStream } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join } from 'node:path';
import type { RunEvent } from '../../runtime/protocol/events.ts';
import { writeError } from '../../storage/disk.ts';

/** CRC-32C (Castagnoli, polynomial 0x82F63B78), by a table of bytes. */
const table: Uint32Array = Uint32Array.from({ length: 256 }, (_, index) => {
  let value = index;
  for (let bit = 0; bit < 8; bit++) value = (value & 1) === 1 ? (value >>> 1) ^ 0x82f63b78 : value >>> 1;
  return value;
});

/** CRC-32C of bytes, turned and shifted as TFRecord does it, so that sums of sums differ from sums. */
export function maskedCrc32c(bytes: Uint8Array): number {
  let crc = ~0;
  for (const byte of bytes) crc = (table[(crc ^ byte) & 0xff] as number) ^ (crc >>> 8);
  const sum = ~crc >>> 0;
  return (((sum >>> 15) | (sum << 17)) + 0xa282ead8) >>> 0;
}

/** One Event of TensorBoard's event.proto. */
export interface BoardEvent {
  /** Seconds since 1970. */
  readonly wallTime: number;
  readonly step: number;
  /** Of the first event of a file alone. */
  readonly fileVersion?: string;
  readonly scalars?: Readonly<Record<string, number>>;
}

/** An event as a record: its length, the length's sum, its bytes, their sum. */
export function boardRecord(event: BoardEvent): Uint8Array {
  const data = eventBytes(event);
  const record = new Uint8Array(16 + data.length);
  const view = new DataView(record.buffer);
  view.setBigUint64(0, BigInt(data.length), true);
  view.setUint32(8, maskedCrc32c(record.subarray(0, 8)), true);
  record.set(data, 12);
  view.setUint32(12 + data.length, maskedCrc32c(data), true);
  return record;
}

/** Fields: 1 wall_time (double), 2 step (int64), 3 file_version, 5 summary { 1 value { 1 tag, 2 simple_value } }. */
function eventBytes({ wallTime, step, fileVersion, scalars = {} }: BoardEvent): Uint8Array {
  const time = new Uint8Array(9);
  time[0] = 0x09; // field 1, eight bytes
  new DataView(time.buffer).setFloat64(1, wallTime, true);
  const values = Object.entries(scalars).map(([tag, scalar]) => {
    const simple = new Uint8Array(5);
    simple[0] = 0x15; // field 2, four bytes
    new DataView(simple.buffer).setFloat32(1, scalar, true);
    return delimited(1, [...delimited(1, new TextEncoder().encode(tag)), ...simple]);
  });
  return Uint8Array.from([
    ...time,
    ...(step === 0 ? [] : [0x10, ...varint(step)]),
    ...(fileVersion === undefined ? [] : delimited(3, new TextEncoder().encode(fileVersion))),
    ...(values.length === 0 ? [] : delimited(5, values.flat())),
  ]);
}

/** A field of bytes with their length. */
function delimited(field: number, bytes: Uint8Array | readonly number[]): number[] {
  return [(field << 3) | 2, ...varint(bytes.length), ...bytes];
}

function varint(value: number): number[] {
  const bytes: number[] = [];
  let rest = value;
  for (; rest >= 128; rest = Math.floor(rest / 128)) bytes.push((rest % 128) | 128);
  return [...bytes, rest];
}

/** The scalars of an event of a run, and their step; undefined for events without any. */
export function scalarsOf(event: RunEvent): Pick<BoardEvent, 'step' | 'scalars'> | undefined {
  const known = (scalars: Readonly<Record<string, number | null | undefined>>): Record<string, number> =>
    Object.fromEntries(
      Object.entries(scalars).filter((entry): entry is [string, number] => typeof entry[1] === 'number'),
    );
  if (event.kind === 'round') {
    const { round, loss, accuracy, lr, samplesPerS } = event.metrics;
    const scalars = { 'loss/train': loss, 'accuracy/train': accuracy, learning_rate: lr, samples_per_s: samplesPerS };
    return { step: round + 1, scalars: known(scalars) };
  }
  if (event.kind !== 'evaluated') return undefined;
  const { round, loss, accuracy, perplexity } = event;
  const scalars = { 'loss/test': loss, 'accuracy/test': accuracy, 'perplexity/test': perplexity };
  return { step: round, scalars: known(scalars) };
}

/** An open file of events. */
export interface Board {
  observe(event: RunEvent): void;
  /** Throws RunError where the disk refused. */
  close(): Promise<void>;
}

/** Begins a file of events in the folder `tensorboard` of a run. Throws RunError. */
export async function openBoard(runFolder: string, now: () => number = Date.now): Promise<Board> {
  const folder = join(runFolder, 'tensorboard');
  const path = join(folder, `events.out.tfevents.${Math.floor(now() / 1000)}.${hostname()}`);
  await mkdir(folder, { recursive: true }).catch((error: unknown) => {
    throw writeError(error, folder);
  });
  const stream = createWriteStream(path, { flags: 'a' });
  let failure: unknown;
  stream.on('error', (error) => {
    failure ??= error;
  });
  const write = (event: Omit<BoardEvent, 'wallTime'>): void =>
    void stream.write(boardRecord({ wallTime: now() / 1000, ...event }));
  write({ step: 0, fileVersion: 'brain.Event:2' });
  return {
    observe(event) {
      const found = scalarsOf(event);
      if (found !== undefined && failure === undefined) write(found);
    },
    close: () =>
      new Promise((resolve, reject) => {
        if (failure !== undefined) return reject(writeError(failure, path));
        stream.end((error?: Error | null) => (error ? reject(writeError(error, path)) : resolve()));
      }),
  };
}
