// How `asteroid drain` reaches a run: through a file in the run's folder. Whoever can write there could stop the run
// anyway, and no further port is opened. Node only.

import { existsSync, readFileSync, unwatchFile, watchFile } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import type { Clock } from '../../clock.ts';
import { InputError, RunError } from '../../errors.ts';
import { writeFileAtomically } from '../../storage/atomic.ts';
import { readLines } from '../../storage/line-log.ts';
import { nodeDisk } from '../../storage/node/disk.ts';

const fileName = 'drain.json';
const lookEveryMs = 500;

const requestSchema = z.object({ device: z.string().min(1).max(300), number: z.number().int().min(0) });

/** Calls `onDevice` for each device that is to be drained. Returns a function that ends that. */
export function watchDrainRequests(folder: string, onDevice: (device: string) => void): () => void {
  const path = join(folder, fileName);
  let last = requestIn(path)?.number ?? -1;
  const look = (): void => {
    const request = requestIn(path);
    if (request === undefined || request.number <= last) return;
    last = request.number;
    onDevice(request.device);
  };
  watchFile(path, { interval: lookEveryMs, persistent: false }, look);
  return () => unwatchFile(path, look);
}

/** The request in the file; undefined if there is none, or it cannot be read. */
function requestIn(path: string): z.infer<typeof requestSchema> | undefined {
  if (!existsSync(path)) return undefined;
  try {
    return requestSchema.parse(JSON.parse(readFileSync(path, 'utf8')));
  } catch {
    return undefined; // written by hand, or by another version: nobody waits for an answer to that
  }
}

/** The result of a request, with the sentence to print. */
export interface DrainResult {
  readonly device: string;
  readonly message: string;
}

export interface DrainOptions {
  readonly folder: string;
  readonly device: string;
  readonly clock: Clock;
  readonly timeoutMs: number;
  pause(milliseconds: number): Promise<void>;
}

/**
 * Asks the run in `folder` to continue without a device, and waits until it does. Throws InputError if the folder is no
 * run's or the run does not have the device, RunError if nobody answers or the device cannot be spared.
 */
export async function requestDrain({ folder, device, clock, timeoutMs, pause }: DrainOptions): Promise<DrainResult> {
  const eventsPath = join(folder, 'events.jsonl');
  if (!existsSync(eventsPath))
    throw new InputError(`${folder} is not the folder of a run: name the one that asteroid train printed.`);
  const before = await linesOf(eventsPath);
  const present = new Set<string>();
  for (const { event, device: name = '' } of before) {
    if (event === 'joined') present.add(name);
    if (event === 'left') present.delete(name);
  }
  if (!present.has(device)) {
    const known = present.size === 0 ? 'it has no devices' : `it has ${[...present].join(', ')}`;
    throw new InputError(`The run in ${folder} has no device "${device}"; ${known}.`);
  }
  const path = join(folder, fileName);
  const number = (requestIn(path)?.number ?? -1) + 1;
  await writeFileAtomically(path, [new TextEncoder().encode(`${JSON.stringify({ device, number })}\n`)], nodeDisk);
  const endMs = clock.now() + timeoutMs;
  while (clock.now() < endMs) {
    await pause(lookEveryMs / 2);
    for (const line of (await linesOf(eventsPath)).slice(before.length)) {
      if (line.event === 'left' && line.device === device)
        return { device, message: `${device} was drained: the run continues without it` };
      if (line.event === 'warning' && line.message?.startsWith(`${device} cannot be spared`) === true)
        throw new RunError(line.message);
    }
  }
  throw new RunError(
    `Nobody answered for ${timeoutMs / 1000} s: the run in ${folder} has stopped, or is busy with a change.`,
  );
}

const eventSchema = z.object({
  event: z.string().optional(),
  device: z.string().optional(),
  message: z.string().optional(),
});

type EventLine = z.infer<typeof eventSchema>;

/** The lines of events.jsonl; damaged lines, and fields that are no text, count as absent. */
async function linesOf(path: string): Promise<readonly EventLine[]> {
  const lines = (await readLines(path, nodeDisk)) ?? [];
  return lines.map((line) => {
    const parsed = eventSchema.safeParse(line);
    return parsed.success ? parsed.data : {};
  });
}
