// Checkpoints on disk: a safetensors file with all tensors and, committing it, a JSON file with the rest and the
// tensors' SHA-256. A crash at any point leaves the old ones or the new one; a damaged one is found out, named and
// passed over. One writer a folder. Part of storage/ (Node only; imports training and below).
//
//   round-00000012-1f0c9a7b.safetensors   parameters/…, buffers/…, optimizer/…; never overwritten: its name holds its
//   hash
//   round-00000012.json                   line 1 {"sha256": of the rest of the file, line 2 … the state: written last

import { assert } from '../assert.ts';
import { InputError, RunError } from '../errors.ts';
import type { Tensor } from '../graph/tensor.ts';
import { basename, dirname, join } from '../paths.ts';
import { createSha256 } from '../sha256.ts';
import { readSafetensors, writeSafetensors } from '../training/safetensors.ts';
import { isTemporary, makeFolders, writeFileAtomically } from './atomic.ts';
import { type Disk, errorCode, readError } from './disk.ts';

/** What JSON can hold exactly; numbers are finite. */
export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };

/** Everything that training needs to go on as if it had not stopped. */
export interface Checkpoint {
  /** Rounds completed; the next round has this index. */
  readonly round: number;
  readonly parameters: ReadonlyMap<string, Tensor>;
  /** Running statistics of batch normalization. */
  readonly buffers: ReadonlyMap<string, Tensor>;
  readonly optimizerState: ReadonlyMap<string, Tensor>;
  /** Seed, position in the epoch, settings, summary of the losses: whatever the run wants back. */
  readonly state: Json;
}

/** How checkpoints are kept. */
export interface CheckpointOptions {
  /** The newest ones that stay; default 3. */
  readonly keepCount?: number;
  readonly disk: Disk;
}

/** What was found in a folder of checkpoints. */
export interface FoundCheckpoint {
  /** Absent when there is none that is whole. */
  readonly checkpoint?: Checkpoint;
  /** The JSON file it was read from. */
  readonly path?: string;
  /** One sentence for each newer checkpoint that is damaged and was passed over. */
  readonly warnings: readonly string[];
}

const version = 1;
const hashBytesAtOnce = 8 * 1024 * 1024;
const stateName = /^round-(\d{8,15})\.json$/;
const tensorsName = /^round-(\d{8,15})-[0-9a-f]{8}\.safetensors$/;
const firstLine = /^\{"sha256":"([0-9a-f]{64})",$/;
const prefixes = { parameters: 'parameters/', buffers: 'buffers/', optimizerState: 'optimizer/' } as const;

/**
 * Saves a checkpoint and removes those beyond `keepCount`, and any of a later round: they belong to a future that a
 * resumed run has left. When it resolves, the checkpoint survives a power cut. Returns the path of the JSON file.
 * Throws RunError (disk full, read-only): then the earlier checkpoints stand.
 */
export async function saveCheckpoint(
  folder: string,
  checkpoint: Checkpoint,
  options: CheckpointOptions,
): Promise<string> {
  const { keepCount = 3, disk } = options;
  assert(keepCount >= 1, 'no checkpoint would be kept');
  assert(
    Number.isSafeInteger(checkpoint.round) && checkpoint.round >= 0 && checkpoint.round < 1e15,
    `round ${checkpoint.round} must be a whole number from 0 to 1e15`,
  );
  await makeFolders(folder, disk);
  const pieces = writeSafetensors(tensorsOf(checkpoint), new Map([['format', `asteroid checkpoint ${version}`]]));
  const sha256 = await hashOf(pieces);
  const stem = `round-${String(checkpoint.round).padStart(8, '0')}`;
  const tensors = {
    file: `${stem}-${sha256.slice(0, 8)}.safetensors`,
    bytes: pieces.reduce((sum, piece) => sum + piece.length, 0),
    sha256,
  };
  await writeFileAtomically(join(folder, tensors.file), pieces, disk);
  const path = join(folder, `${stem}.json`);
  await writeFileAtomically(
    path,
    [encodeState({ version, round: checkpoint.round, tensors, state: checkpoint.state })],
    disk,
  );
  await prune(folder, checkpoint.round, { keepCount, disk });
  return path;
}

/**
 * Loads the newest checkpoint that is whole. A damaged one (cut, changed, incomplete, of another version) is passed
 * over with a warning. Throws RunError when the disk itself fails: falling back then could lose good rounds.
 */
export async function loadLatestCheckpoint(folder: string, options: CheckpointOptions): Promise<FoundCheckpoint> {
  const { disk } = options;
  const names = await list(folder, disk);
  const states = names
    .filter((name) => stateName.test(name))
    .sort(byRound)
    .reverse();
  const orphans = new Set(names.filter((name) => tensorsName.test(name)).map((name) => roundOf(name)));
  for (const name of states) orphans.delete(roundOf(name));
  const warnings: string[] = [];
  for (const name of states) {
    const path = join(folder, name);
    try {
      const checkpoint = await loadCheckpoint(path, options);
      warnings.unshift(...orphanWarnings(folder, orphans, checkpoint.round));
      return { checkpoint, path, warnings };
    } catch (error) {
      if (!(error instanceof InputError)) throw error;
      warnings.push(`The checkpoint ${path} is passed over: ${error.message}`);
    }
  }
  return { warnings: [...orphanWarnings(folder, orphans, -1), ...warnings] };
}

/** Loads one checkpoint from its JSON file. Throws InputError when it is damaged, RunError when the disk fails. */
export async function loadCheckpoint(path: string, options: CheckpointOptions): Promise<Checkpoint> {
  const { disk } = options;
  const { round, tensors, state } = decodeState(path, await read(path, disk));
  const tensorsPath = join(dirname(path), tensors.file);
  const bytes = await read(tensorsPath, disk);
  if (bytes.length !== tensors.bytes)
    throw new InputError(`${tensorsPath} has ${bytes.length} bytes, not the ${tensors.bytes} that were written.`);
  if ((await hashOf([bytes])) !== tensors.sha256)
    throw new InputError(`${tensorsPath} was changed after it was written: its SHA-256 differs.`);
  const all = readSafetensors({ name: tensorsPath, bytes }).tensors;
  const part = (prefix: string): Map<string, Tensor> =>
    new Map(
      [...all].filter(([name]) => name.startsWith(prefix)).map(([name, tensor]) => [name.slice(prefix.length), tensor]),
    );
  return {
    round,
    parameters: part(prefixes.parameters),
    buffers: part(prefixes.buffers),
    optimizerState: part(prefixes.optimizerState),
    state,
  };
}

interface StateFile {
  readonly version: number;
  readonly round: number;
  readonly tensors: { readonly file: string; readonly bytes: number; readonly sha256: string };
  readonly state: Json;
}

function tensorsOf(checkpoint: Checkpoint): Map<string, Tensor> {
  const all = new Map<string, Tensor>();
  for (const key of ['parameters', 'buffers', 'optimizerState'] as const) {
    for (const [name, tensor] of checkpoint[key]) all.set(prefixes[key] + name, tensor);
  }
  return all;
}

/** Lets other work of this thread run first. */
function nextTurn(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, 0));
}

/** SHA-256 of the pieces in order; hundreds of megabytes must not hold up heartbeats. */
async function hashOf(pieces: readonly Uint8Array[]): Promise<string> {
  const hash = createSha256();
  let sinceYield = 0;
  for (const piece of pieces) {
    for (let start = 0; start < piece.length; start += hashBytesAtOnce) {
      const part = piece.subarray(start, start + hashBytesAtOnce);
      hash.update(part);
      sinceYield += part.length;
      if (sinceYield < hashBytesAtOnce) continue;
      sinceYield = 0;
      await nextTurn();
    }
  }
  return hash.digest();
}

function textHash(bytes: Uint8Array): string {
  return createSha256().update(bytes).digest();
}

/** One JSON object; its first line holds the hash of all bytes behind that line. */
function encodeState(file: StateFile): Uint8Array {
  const text = JSON.stringify(
    file,
    (key, value: unknown) => {
      assert(typeof value !== 'number' || Number.isFinite(value), `the checkpoint's ${key} is not finite`);
      return value;
    },
    1,
  );
  const rest = new TextEncoder().encode(`${text.slice(2)}\n`);
  const line = new TextEncoder().encode(`{"sha256":"${textHash(rest)}",\n`);
  const bytes = new Uint8Array(line.length + rest.length);
  bytes.set(line);
  bytes.set(rest, line.length);
  return bytes;
}

function decodeState(path: string, bytes: Uint8Array): StateFile {
  const lineEnd = bytes.indexOf(10);
  const line = new TextDecoder().decode(bytes.subarray(0, Math.max(0, Math.min(lineEnd, 100))));
  const hash = firstLine.exec(line)?.[1];
  if (hash === undefined)
    throw new InputError(`${path} does not begin with its SHA-256; it is not a whole checkpoint.`);
  const rest = bytes.subarray(lineEnd + 1);
  if (textHash(rest) !== hash)
    throw new InputError(`${path} was cut or changed after it was written: its SHA-256 differs.`);
  const file = parseState(rest);
  // The hash is right, so this is what some version of Asteroid wrote; a person's own work must still not crash us.
  if (file?.version !== version)
    throw new InputError(
      `${path} is a checkpoint of version ${String(file?.version)}, and this program reads version ${version}.`,
    );
  const { round, tensors, state } = file;
  if (
    round !== roundOf(basename(path)) ||
    !tensorsName.test(String(tensors?.file)) ||
    tensors === undefined ||
    state === undefined
  ) {
    throw new InputError(`${path} is not the checkpoint that its name says.`);
  }
  return { version, round, tensors, state };
}

function parseState(rest: Uint8Array): Partial<StateFile> | undefined {
  try {
    return JSON.parse(`{${new TextDecoder().decode(rest)}`) as Partial<StateFile>;
  } catch {
    return undefined;
  }
}

function roundOf(name: string): number {
  return Number((stateName.exec(name) ?? tensorsName.exec(name))?.[1]);
}

function byRound(a: string, b: string): number {
  return roundOf(a) - roundOf(b);
}

function orphanWarnings(folder: string, rounds: ReadonlySet<number>, newerThan: number): string[] {
  const newer = [...rounds].filter((round) => round > newerThan).sort((a, b) => b - a);
  return newer.map(
    (round) => `The checkpoint of round ${round} in ${folder} is passed over: its JSON file is missing.`,
  );
}

async function list(folder: string, disk: Disk): Promise<string[]> {
  try {
    return await disk.list(folder);
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return [];
    throw diskFailure(error, folder);
  }
}

/** Absent and unreadable spots are damage to the checkpoint; anything else is a failure of the disk or of rights. */
async function read(path: string, disk: Disk): Promise<Uint8Array> {
  try {
    return await disk.read(path);
  } catch (error) {
    if (['ENOENT', 'EIO', 'EISDIR', 'ENOTREG'].includes(errorCode(error) ?? '')) throw readError(error, path);
    throw diskFailure(error, path);
  }
}

function diskFailure(error: unknown, path: string): RunError {
  return new RunError(readError(error, path).message, { cause: error });
}

/**
 * Removes what `saveCheckpoint` promises to. The new checkpoint is safe already, so a problem here fails nothing:
 * whatever stays is tried again at the next one.
 */
async function prune(folder: string, round: number, options: Required<CheckpointOptions>): Promise<void> {
  const { keepCount, disk } = options;
  try {
    const names = await disk.list(folder);
    const states = names.filter((name) => stateName.test(name)).sort(byRound);
    const kept = states.filter((name) => roundOf(name) <= round).slice(-keepCount);
    // First the JSON files: without its tensors one would be called damaged.
    for (const name of states) if (!kept.includes(name)) await disk.remove(join(folder, name));
    const tensorsByRound = new Map<number, string | undefined>();
    for (const name of kept) tensorsByRound.set(roundOf(name), await tensorsFileOf(join(folder, name), disk));
    for (const name of names) {
      // Tensors of a JSON file that cannot be read stay: a person may want to look at them.
      const used = tensorsByRound.has(roundOf(name)) && [name, undefined].includes(tensorsByRound.get(roundOf(name)));
      if ((tensorsName.test(name) && !used) || isTemporary(name)) await disk.remove(join(folder, name));
    }
  } catch (error) {
    if (errorCode(error) === undefined && !(error instanceof RunError)) throw error;
  }
}

async function tensorsFileOf(path: string, disk: Disk): Promise<string | undefined> {
  try {
    return decodeState(path, await read(path, disk)).tensors.file;
  } catch (error) {
    if (error instanceof InputError) return undefined;
    throw error;
  }
}
