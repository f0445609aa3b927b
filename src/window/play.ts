// One round as something to play: what each device computes and when, whom it waits for, what travels. Measured spans
// and simulated ones look alike.

import type { Span, View } from './view.ts';

export interface Play {
  readonly kind: 'measured' | 'predicted';
  /** Absent of a prediction. */
  readonly round?: number;
  readonly lengthMs: number;
  readonly devices: readonly string[];
  /** By device, in the order of time. */
  readonly work: Readonly<Record<string, readonly Span[]>>;
  readonly waits: readonly Span[];
  readonly travels: readonly Span[];
}

const computing: ReadonlySet<string> = new Set([
  ...['forward', 'backward', 'backward-input', 'backward-weight', 'tangent', 'update', 'all-reduce'],
]);

/** The round that was measured last, or what is predicted; undefined where there is none. */
export function playOf(view: View, kind: Play['kind']): Play | undefined {
  const { plan, measured, prediction } = view;
  const spans = kind === 'measured' ? Object.values(measured?.spans ?? {}).flat() : prediction?.spans;
  if (plan === null || spans === undefined || spans.length === 0) return undefined;
  const devices = plan.stages.flatMap((stage) => stage.devices);
  const ordered = [...spans].sort((a, b) => a.startMs - b.startMs);
  const work = Object.fromEntries(
    devices.map((device) => [device, ordered.filter((span) => span.device === device && computing.has(span.kind))]),
  );
  const travels = ordered.filter(
    ({ kind: what, peer }) => (what === 'send' || what === 'transfer') && peer !== undefined,
  );
  return {
    kind,
    ...(kind === 'measured' && measured !== null ? { round: measured.round } : {}),
    lengthMs: Math.max(1e-3, ...ordered.map(({ endMs }) => endMs)),
    ...{ devices, work, travels },
    waits: devices.flatMap((device) => waitsOf(device, work[device] ?? [], ordered)),
  };
}

/** The times between a device's work that ended when something came from another device. */
function waitsOf(device: string, work: readonly Span[], ordered: readonly Span[]): Span[] {
  const arrivals = ordered.flatMap(({ kind, device: own, peer, endMs }) => {
    if (kind === 'receive' && own === device && peer !== undefined) return [{ peer, endMs }];
    return kind === 'transfer' && peer === device ? [{ peer: own, endMs }] : [];
  });
  const waits: Span[] = [];
  let freeMs = 0;
  for (const { startMs, endMs } of work) {
    const within = arrivals.filter((arrival) => arrival.endMs > freeMs && arrival.endMs <= startMs + 1e-6);
    const last = within.reduce<(typeof within)[number] | undefined>(
      (latest, arrival) => (latest === undefined || arrival.endMs > latest.endMs ? arrival : latest),
      undefined,
    );
    if (last !== undefined) waits.push({ device, kind: 'wait', peer: last.peer, startMs: freeMs, endMs: startMs });
    freeMs = Math.max(freeMs, endMs);
  }
  return waits;
}

/** Who waits for whom in a round, the longest first. */
export function longestWaits({
  waits,
}: Play): { readonly device: string; readonly peer: string; readonly ms: number }[] {
  const sums = new Map<string, { device: string; peer: string; ms: number }>();
  for (const { device, peer = '', startMs, endMs } of waits) {
    const key = JSON.stringify([device, peer]);
    sums.set(key, { device, peer, ms: (sums.get(key)?.ms ?? 0) + endMs - startMs });
  }
  return [...sums.values()].sort((a, b) => b.ms - a.ms);
}

/** What a device does at a time of the round. */
export function activityAt(play: Play, device: string, atMs: number): Span | undefined {
  const holds = ({ startMs, endMs }: Span): boolean => startMs <= atMs && atMs < endMs;
  return play.work[device]?.find(holds) ?? play.waits.find((wait) => wait.device === device && holds(wait));
}
