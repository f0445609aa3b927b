// Writes a run's events into its folder: metrics.jsonl, events.jsonl, and the documents cluster.json, profile.json,
// plan.json and trace.json.

import type { Plan } from '../../cluster/cluster.ts';
import { program } from '../../schedule/generate.ts';
import type { ProgramEvent } from '../../schedule/program.ts';
import { scheduleOf } from '../../schedule/schedules.ts';
import { offsetsOf } from '../../schedule/stream-tick.ts';
import { traceJson } from '../../schedule/trace.ts';
import type { RunFolder } from '../../storage/run-folder.ts';
import type { RunEvent } from '../protocol/events.ts';

/** Records events; `finish` waits for all that was begun and closes the folder. */
export interface Recorder {
  observe(event: RunEvent): void;
  finish(): Promise<void>;
}

/** Rounds whose instruction times are kept for trace.json. */
const tracedRoundCount = 20;
/** Rounds of a layout whose instruction times are among the events, and instructions of a device, at most. */
const [replayedRoundCount, replayedInstructionCount] = [4, 1000] as const;

/** A recorder for one run folder. */
export function recordRun(folder: RunFolder): Recorder {
  const startMs = performance.now();
  const { write, writes } = documentWriter(folder);
  const traces = new Map<number, ProgramEvent[]>();
  const replayed = new Set<number>();
  let plan: Plan | undefined;
  const now = (): number => Math.round(performance.now() - startMs);
  const append = ({ kind, ...rest }: RunEvent): void => folder.events.append({ event: kind, atMs: now(), ...rest });
  return {
    observe(event) {
      switch (event.kind) {
        case 'round':
          folder.metrics.append({ ...event.metrics, atMs: now() });
          return;
        case 'profile-progress':
        case 'load':
        case 'replicated': // as often as rounds
        case 'listening': // holds the join code
          return;
        case 'cluster':
          return write('cluster.json', event.cluster);
        case 'profile':
          return write('profile.json', event.profile);
        case 'plan': // as it was found; what runs follows
          return;
        case 'deployment':
          plan = event.plan;
          replayed.clear();
          append(event);
          return write('plan.json', event.plan);
        case 'trace':
          if (replayed.size < replayedRoundCount) replayed.add(event.round);
          if (replayed.has(event.round) && event.times.length <= replayedInstructionCount) append(event);
          if (plan !== undefined && (traces.size < tracedRoundCount || traces.has(event.round)))
            addTrace(traces, plan, event);
          return;
        default:
          append(event);
      }
    },
    async finish() {
      if (plan !== undefined) write('trace.json', traceOf(traces, plan));
      try {
        await Promise.all(writes.values());
      } finally {
        await folder.close();
      }
    },
  };
}

function traceOf(traces: ReadonlyMap<number, readonly ProgramEvent[]>, { stages, schedule }: Plan): unknown {
  const events = scheduleOf(schedule).isStream ? ticksInOrder(traces) : [...traces.values()].flat();
  const devices = stages.flatMap((stage) => stage.devices);
  return JSON.parse(traceJson(events, devices));
}

/** Ticks of a stream overlap as they did; others than those that followed each other stand behind those before. */
function ticksInOrder(traces: ReadonlyMap<number, readonly ProgramEvent[]>): readonly ProgramEvent[] {
  const found: ProgramEvent[] = [];
  let [last, shiftMs, endMs] = [Number.NaN, 0, 0];
  for (const [round, events] of [...traces].sort(([a], [b]) => a - b)) {
    if (round !== last + 1) shiftMs = endMs - events.reduce((least, { startMs }) => Math.min(least, startMs), Infinity);
    for (const event of events) {
      found.push({ ...event, startMs: event.startMs + shiftMs, endMs: event.endMs + shiftMs });
      endMs = Math.max(endMs, event.endMs + shiftMs);
    }
    last = round;
  }
  return found;
}

/** Writes documents one after the other, so that the newest stays; `writes`: the last of each. */
function documentWriter(folder: RunFolder): {
  readonly writes: ReadonlyMap<string, Promise<void>>;
  write(name: Parameters<RunFolder['write']>[0], value: unknown): void;
} {
  const writes = new Map<string, Promise<void>>();
  return {
    writes,
    write(name, value) {
      const write = (): Promise<void> => folder.write(name, `${JSON.stringify(value, null, 2)}\n`);
      const writing = writes.get(name)?.then(write, write) ?? write();
      writing.catch(() => {}); // seen by finish, or made good by the next
      writes.set(name, writing);
    },
  };
}

/** Puts a device's instruction times of one round behind those of the rounds before. */
function addTrace(
  traces: Map<number, ProgramEvent[]>,
  plan: Plan,
  { device, round, times }: Extract<RunEvent, { kind: 'trace' }>,
): void {
  const entry = program(plan).devices.find((candidate) => candidate.device === device);
  if (entry === undefined) return;
  const before = [...traces.entries()].filter(([other]) => other < round).flatMap(([, events]) => events);
  const { isStream } = scheduleOf(plan.schedule);
  // Times of a stream are those since its begin, which is at the same time on all devices.
  const offsetMs = isStream ? 0 : before.reduce((latest, event) => Math.max(latest, event.endMs), 0);
  const [, most] = offsetsOf(entry);
  const events = traces.get(round) ?? [];
  for (const { instruction, startMs, endMs } of times) {
    const found = entry.instructions[instruction];
    // Waiting for a piece is where nothing else is.
    if (found === undefined || found.kind === 'receive') continue;
    const microBatch = 'microBatch' in found ? { microBatch: found.microBatch } : {};
    const payload = 'payload' in found ? { payload: found.payload } : {};
    const layers = 'layers' in found && found.layers !== undefined ? { layers: found.layers } : {};
    const kind = found.kind === 'send' ? { kind: 'transfer' as const, to: found.to } : { kind: found.kind };
    const place = { device, stage: entry.stage, startMs: startMs + offsetMs, endMs: endMs + offsetMs };
    const ofRound = isStream ? { round: round - most + (found.round ?? 0) } : {};
    events.push({ ...kind, ...ofRound, ...microBatch, ...layers, ...payload, ...place });
  }
  traces.set(round, events);
}
