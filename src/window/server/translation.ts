// From a run's events to what the window shows: without secrets and bulk, with the rounds that devices measured and
// what the simulator expects of them.

import type { Cluster, Plan, Profile } from '../../cluster/cluster.ts';
import type { RunEvent } from '../../runtime/protocol/events.ts';
import { program } from '../../schedule/generate.ts';
import { isPass, type Program } from '../../schedule/program.ts';
import { simulate } from '../../simulator/simulate.ts';
import type { LinkTime, Prediction, Span, WindowEvent } from '../view.ts';

/** Spans of one device, and of a prediction, at most: larger rounds are shown from their beginning. */
const [mostSpans, mostPredictedSpans] = [600, 4000] as const;

export class Translation {
  profile: Profile | undefined;
  cluster: Cluster | undefined;
  plan: Plan | undefined;
  #program: Program | undefined;

  /** What the window shows for an event. */
  of(event: RunEvent): readonly WindowEvent[] {
    switch (event.kind) {
      case 'listening': // holds the join code
      case 'profile-progress':
      case 'modes':
      case 'repeated':
      case 'replicated':
        return [];
      case 'profile':
        this.profile = event.profile;
        return [];
      case 'cluster':
        this.cluster = event.cluster;
        return [event];
      case 'deployment':
        this.plan = event.plan;
        this.#program = program(event.plan);
        return [event, { kind: 'prediction', prediction: this.#prediction() ?? null }];
      case 'round': {
        const { kind, metrics, endRound, busyFraction } = event;
        return [{ kind, metrics, endRound, busyFraction: rounded(busyFraction), work: {} }];
      }
      case 'trace':
        return this.#measured(event);
      default:
        return [event];
    }
  }

  #prediction(): Prediction | undefined {
    const { plan, profile, cluster } = this;
    if (plan === undefined || profile === undefined || cluster === undefined || this.#program === undefined)
      return undefined;
    try {
      return predictionOf(this.#program, plan, profile, cluster);
    } catch {
      return undefined; // a device that was not profiled, as with a plan that was given
    }
  }

  #measured({ device, round, times }: Extract<RunEvent, { kind: 'trace' }>): readonly WindowEvent[] {
    const entry = this.#program?.devices.find((candidate) => candidate.device === device);
    // Of a stream a round's times are no picture of it: ticks overlap.
    if (entry === undefined || entry.staleness !== undefined) return [];
    const spans: Span[] = [];
    for (const { instruction, startMs, endMs } of times) {
      const found = entry.instructions[instruction];
      if (found === undefined) continue;
      const span = { device, kind: found.kind, startMs: thousandths(startMs), endMs: thousandths(endMs) };
      const microBatch = 'microBatch' in found ? { microBatch: found.microBatch } : {};
      const peer = found.kind === 'send' ? found.to : found.kind === 'receive' ? found.from : null;
      if (isPass(found) || found.kind === 'all-reduce' || found.kind === 'update' || peer !== null)
        spans.push({ ...span, ...microBatch, ...(peer === null ? {} : { peer }) });
    }
    spans.sort((a, b) => a.startMs - b.startMs);
    return [{ kind: 'measured', round, device, spans: spans.slice(0, mostSpans) }];
  }
}

/** What a round of a plan takes, simulated. */
export function predictionOf(rounds: Program, plan: Plan, profile: Profile, cluster: Cluster): Prediction {
  const { events, roundMs, devices, links } = simulate(rounds, plan, profile, cluster);
  const used = plan.stages.flatMap((stage) => stage.devices);
  const of = (value: (device: (typeof devices)[string]) => number): Record<string, number> =>
    Object.fromEntries(used.flatMap((name) => (devices[name] === undefined ? [] : [[name, value(devices[name])]])));
  const linkTimes = Object.entries(links).map(([pair, { busyMs, bytes }]): LinkTime => {
    const [from = '', to = ''] = pair.split('->');
    return { from, to, ms: thousandths(busyMs), bytes };
  });
  const spans = events.slice(0, mostPredictedSpans).map(
    ({ device, kind, microBatch, to, startMs, endMs }): Span => ({
      ...{ device, kind, startMs: thousandths(startMs), endMs: thousandths(endMs) },
      ...(microBatch === undefined ? {} : { microBatch }),
      ...(to === undefined ? {} : { peer: to }),
    }),
  );
  return { roundMs, busyMs: of((d) => d.busyMs), peakMemoryMiB: of((d) => d.peakMemoryMiB), links: linkTimes, spans };
}

function rounded(values: Readonly<Record<string, number>>): Record<string, number> {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, thousandths(value)]));
}

function thousandths(value: number): number {
  return Math.round(value * 1000) / 1000;
}
