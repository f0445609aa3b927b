// Turns a run's events into what a person or a program reads. A person: devices, profile, plan, training bar. A program (`--json`): one JSON line an event.

import type { Cluster, Plan } from '../cluster/cluster.ts';
import { drawPlan } from '../cluster/draw.ts';
import type { Observer, RunEvent, RoundMetrics } from '../runtime/events.ts';
import { type Terminal, bandwidth, bar, duration } from './terminal.ts';

/** Prints each event as one JSON line, without those that only drive a progress bar. */
export function jsonReporter(write: (line: string) => void): Observer {
  return (event) => {
    if (event.kind === 'profile-progress' || event.kind === 'trace') return;
    const { kind, ...rest } = event;
    write(JSON.stringify({ event: kind, ...(kind === 'round' ? event.metrics : rest) }));
  };
}

/** Shows events on a terminal, or as plain lines off it. */
export function humanReporter(terminal: Terminal, now: () => number): Observer {
  const report = new HumanReport(terminal, now);
  return (event) => report.show(event);
}

class HumanReport {
  readonly #terminal: Terminal;
  readonly #now: () => number;
  readonly #profiles = new Map<string, { done: number; total: number }>();
  #startedMs = 0;
  #firstRound = 0;
  #endRound = 0;
  #plainNextMs = 0;
  #smoothLoss: number | undefined;
  #plan: Plan | undefined;

  constructor(terminal: Terminal, now: () => number) {
    this.#terminal = terminal;
    this.#now = now;
  }

  show(event: RunEvent): void {
    const { colors } = this.#terminal;
    switch (event.kind) {
      case 'listening':
        if (event.remoteCount > 0) this.#line(`Waiting for ${event.remoteCount} worker${event.remoteCount > 1 ? 's' : ''}:  ${colors.bold(`asteroid worker --join ${event.url} --code ${event.joinCode}`)}`);
        return;
      case 'joined':
        return this.#line(`${colors.green('●')} ${event.device.padEnd(10)} ${event.cores} cores  ${event.memoryMiB} MiB  ${colors.dim(event.engine)}`);
      case 'left':
        return this.#line(`${colors.red('○')} ${event.device} left: ${event.reason}`);
      case 'profile-progress':
        return this.#profileProgress(event.device, event.done, event.total);
      case 'profiled':
        return this.#profiled(event);
      case 'cluster':
        return this.#links(event.cluster);
      case 'plan':
        return this.#showPlan(event.plan, event.planningMs, event.layerNames);
      case 'training':
        return this.#begin(event.firstRound, event.endRound);
      case 'round':
        return this.#round(event.metrics, event.busyFraction);
      case 'warning':
        return this.#line(`${colors.yellow('warning')} ${event.message}`);
      case 'evaluated':
        this.#terminal.keepLive();
        return this.#line(`Test      accuracy ${colors.bold(`${(event.accuracy * 100).toFixed(2)} %`)} on ${event.sampleCount} samples it did not train on, loss ${event.loss.toFixed(4)}`);
      case 'stopped':
        this.#terminal.keepLive();
        return this.#line(`Stopped after round ${event.round}.`);
      default:
        return;
    }
  }

  #line(text: string): void {
    this.#terminal.print(text);
  }

  #profileProgress(device: string, done: number, total: number): void {
    this.#profiles.set(device, { done, total });
    this.#terminal.live(
      [...this.#profiles].map(([name, progress]) => `  profiling ${name.padEnd(10)} ${bar(progress.done / progress.total, 30)} ${progress.done}/${progress.total} layers`),
    );
  }

  #profiled(event: Extract<RunEvent, { kind: 'profiled' }>): void {
    this.#profiles.delete(event.device);
    this.#terminal.live([]);
    const { colors } = this.#terminal;
    this.#line(`Profile   ${event.device.padEnd(10)} ${(1000 / event.sampleMs).toFixed(0)} samples/s alone${event.cached ? colors.dim(' (measured before)') : ''}`);
  }

  #links(cluster: Cluster): void {
    const pairs = cluster.links.pairs ?? [];
    for (const pair of pairs.slice(0, 6)) {
      this.#line(`Link      ${pair.between.join(' ↔ ')}  ${bandwidth(pair.bandwidthMbps)}  ${(pair.latencyMs ?? 0).toFixed(2)} ms`);
    }
    if (pairs.length > 6) this.#line(`          … and ${pairs.length - 6} more links`);
  }

  #showPlan(plan: Plan, planningMs: number, layerNames: readonly string[]): void {
    this.#plan = plan;
    this.#line(`Plan      by "${plan.planner}", ${plan.schedule}, ${plan.microBatchCount} micro-batches of ${plan.microBatchSize}, found in ${duration(planningMs / 1000)}`);
    this.#line(drawPlan(plan, layerNames, Math.min(this.#terminal.columns, 100)));
  }

  #begin(firstRound: number, endRound: number): void {
    this.#startedMs = this.#now();
    this.#firstRound = firstRound;
    this.#endRound = endRound;
    this.#plainNextMs = 0;
  }

  #round(metrics: RoundMetrics, busy: Readonly<Record<string, number>>): void {
    const { colors, isInteractive } = this.#terminal;
    const elapsedS = (this.#now() - this.#startedMs) / 1000;
    const doneCount = metrics.round + 1 - this.#firstRound;
    const totalCount = this.#endRound - this.#firstRound;
    const leftS = (elapsedS / doneCount) * (totalCount - doneCount);
    this.#smoothLoss = this.#smoothLoss === undefined ? metrics.loss : 0.9 * this.#smoothLoss + 0.1 * metrics.loss;
    const facts = `loss ${this.#smoothLoss.toFixed(4)}  ${Math.round(metrics.samplesPerS)} samples/s`;
    if (!isInteractive) {
      if (this.#now() < this.#plainNextMs && doneCount < totalCount) return;
      this.#plainNextMs = this.#now() + 5000;
      return this.#line(`round ${metrics.round + 1}/${this.#endRound}  epoch ${metrics.epoch}  ${facts}  ${duration(leftS)} left`);
    }
    const lines = [`Training  ${colors.cyan(bar(doneCount / totalCount, 30))} ${metrics.round + 1}/${this.#endRound}  epoch ${metrics.epoch}  ${facts}  ${duration(leftS)} left`];
    for (const [device, fraction] of Object.entries(busy)) {
      lines.push(`          ${device.padEnd(10)} ${bar(fraction, 20)} ${`${Math.round(fraction * 100)} %`.padStart(5)} computing  ${colors.dim(this.#role(device))}`);
    }
    this.#terminal.live(lines);
    if (doneCount === totalCount) this.#terminal.keepLive();
  }

  #role(device: string): string {
    const stage = this.#plan?.stages.findIndex(({ devices }) => devices.includes(device)) ?? -1;
    return stage < 0 ? '' : `stage ${stage}`;
  }
}
