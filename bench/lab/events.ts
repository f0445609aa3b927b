// The lines of `asteroid train --json`, as src/cli/report.ts writes them: a run's events with `event` for `kind`.

import type { RoundMetrics, RunEvent } from '../../dist/runtime/protocol/events.js';
import type { RoundResult } from '../../dist/runtime/protocol/messages.js';

type Round = Extract<RunEvent, { kind: 'round' }>;
type Written<E extends RunEvent> = E extends RunEvent ? { readonly event: E['kind'] } & Omit<E, 'kind'> : never;

/** One line. A round's metrics stand in the line itself. */
export type JsonEvent =
  | Written<Exclude<RunEvent, { kind: 'round' | 'profile-progress' | 'trace' }>>
  | ({ readonly event: 'round' } & RoundMetrics & Pick<Round, 'busyFraction' | 'work'>);

/** A line of a round that has committed. */
export type RoundEvent = Extract<JsonEvent, { event: 'round' }>;

/** What a device reports of a round's computing. */
export type DeviceRound = Pick<RoundResult, 'busyMs' | 'processMs' | 'linksMs' | 'reducingMs'>;

/** What all devices report of one round. */
export type DeviceRounds = Readonly<Record<string, DeviceRound>>;

/** How long a round of `batch` samples took. */
export function roundMsOf(event: RoundEvent, batch: number): number {
  return (batch / event.samplesPerS) * 1000;
}

/** By device, what the event says of its computing. */
export function deviceRounds(event: RoundEvent, batch: number): DeviceRounds {
  const ms = roundMsOf(event, batch);
  return Object.fromEntries(
    Object.entries(event.busyFraction).map(([device, fraction]) => [
      device,
      { busyMs: fraction * ms, ...event.work[device] },
    ]),
  );
}
