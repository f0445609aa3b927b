// Events of a round as a trace in the Trace Event Format, which ui.perfetto.dev and chrome://tracing open: a process
// for each device, with a row for computing, one for AllReduces that overlap with it and one for each link that it
// sends on. Of a stream, names carry the round: "forward 2.0".

import { numberOf } from './gantt.ts';
import { isOverlapped, type ProgramEvent } from './program.ts';

interface Slice {
  readonly name: string;
  readonly ph: 'X';
  /** Microseconds, as the format wants. */
  readonly ts: number;
  readonly dur: number;
  readonly pid: number;
  readonly tid: number;
  readonly cat: string;
  readonly args: Readonly<Record<string, unknown>>;
}

interface Label {
  readonly name: 'process_name' | 'thread_name';
  readonly ph: 'M';
  readonly pid: number;
  readonly tid: number;
  readonly args: { readonly name: string };
}

/** The trace as JSON text. Devices are listed in the given order; those that only events name come after them. */
export function traceJson(events: readonly ProgramEvent[], deviceNames: readonly string[]): string {
  const labels: Label[] = [];
  const processes = new Map<string, number>();
  const threads = new Map<string, number>();
  const threadCounts: number[] = [];
  const addThread = (pid: number, name: string): number => {
    const tid = threadCounts[pid] ?? 0;
    threadCounts[pid] = tid + 1;
    labels.push({ name: 'thread_name', ph: 'M', pid, tid, args: { name } });
    return tid;
  };
  const processOf = (device: string): number => {
    const known = processes.get(device);
    if (known !== undefined) return known;
    const pid = processes.size;
    processes.set(device, pid);
    labels.push({ name: 'process_name', ph: 'M', pid, tid: 0, args: { name: device } });
    addThread(pid, 'compute');
    return pid;
  };
  const threadOf = (event: ProgramEvent, pid: number): number => {
    if (event.to === undefined && !isOverlapped(event)) return 0;
    const name = event.to === undefined ? 'all-reduce' : `to ${event.to}`;
    const key = JSON.stringify([pid, name]);
    const tid = threads.get(key) ?? addThread(pid, name);
    threads.set(key, tid);
    return tid;
  };
  for (const name of deviceNames) processOf(name);
  const slices = events.map((event): Slice => {
    const pid = processOf(event.device);
    const args: Record<string, unknown> = { stage: event.stage };
    if (event.round !== undefined) args.round = event.round;
    if (event.microBatch !== undefined) args.microBatch = event.microBatch;
    if (event.layers !== undefined) args.layers = event.layers;
    if (event.bytes !== undefined) args.bytes = event.bytes;
    const [ts, dur] = [microseconds(event.startMs), microseconds(event.endMs - event.startMs)];
    return { name: sliceName(event), ph: 'X', ts, dur, pid, tid: threadOf(event, pid), cat: event.kind, args };
  });
  return JSON.stringify({ displayTimeUnit: 'ms', traceEvents: [...labels, ...slices] });
}

/** To a whole nanosecond: the format's viewers show no more. */
function microseconds(ms: number): number {
  return Math.round(ms * 1e6) / 1e3;
}

function sliceName(event: ProgramEvent): string {
  const what = event.payload ?? event.kind;
  return event.microBatch === undefined ? what : `${what} ${numberOf(event)}`;
}
