// What a simulated round comes to: plain data.

import type { ProgramEvent } from '../schedule/program.ts';

export interface SimulatedDevice {
  /** Time spent computing, and on what its passes sent and received. */
  readonly busyMs: number;
  /** The second part of it, where the profile says what bytes and passes cost. */
  readonly handlingMs?: number;
  /** What its AllReduces sent and received cost its processor; not in busyMs. Absent where they cost nothing. */
  readonly reducingMs?: number;
  /** 1 − busyMs / roundMs. */
  readonly idleFraction: number;
  /** Eq. 3 with the device's own share. */
  readonly peakMemoryMiB: number;
  /** powerW over the time spent computing; absent where the cluster does not give the device's power. */
  readonly energyJ?: number;
}

export interface SimulatedLink {
  readonly bytes: number;
  /** Time for which messages occupied it. */
  readonly busyMs: number;
}

/** How a stream begins and ends. */
export interface SimulatedStream {
  /** From the start until the last stage begins: the pipeline fills. */
  readonly fillMs: number;
  /** From the first stage's last forward to the end: it drains. */
  readonly drainMs: number;
  /** The rounds of the events, from the first to the last of the stream. */
  readonly roundCount: number;
  /**
   * Whether `roundMs` is the exact period. Otherwise, which is rare and needs a data holder whose links carry more than
   * inputs or labels, it is the mean of hundreds of rounds that do not repeat themselves.
   */
  readonly isExact: boolean;
}

/** What a round takes on a virtual clock, and what happens in it. */
export interface Simulation {
  /** By start; empty when they were not asked for. */
  readonly events: readonly ProgramEvent[];
  /** Of a stream, the period of its steady state. */
  readonly roundMs: number;
  /** Of a stream only. */
  readonly stream?: SimulatedStream;
  readonly samplesPerS: number;
  /** Every device of the cluster, by name; one that the plan leaves out is idle. */
  readonly devices: Readonly<Record<string, SimulatedDevice>>;
  /** By "sender->receiver", where something was sent. */
  readonly links: Readonly<Record<string, SimulatedLink>>;
}
