// Turns a run's events into what a person or a program reads. A person: devices, links, profile, plan, training bar. A
// program (`--json`): one JSON line an event.

import type { Cluster, Plan, Profile } from '../cluster/cluster.ts';
import { drawPlan } from '../cluster/draw.ts';
import { processMiBOf } from '../cluster/memory.ts';
import { lineOf, memoryLoweredText, recoveringText } from '../runtime/protocol/event-lines.ts';
import type { Observer, RunEvent } from '../runtime/protocol/events.ts';
import { printModes } from './modes-table.ts';
import { Progress } from './progress.ts';
import { bandwidth, bar, command, counted, duration, grouped, labelWidth, memory, type Terminal } from './terminal.ts';

/** Prints each event as one JSON line, without those that only drive a progress bar. */
export function jsonReporter(write: (line: string) => void): Observer {
  return (event) => {
    if (event.kind === 'profile-progress' || event.kind === 'trace' || event.kind === 'load') return;
    const { kind, ...rest } = event;
    write(
      JSON.stringify({
        event: kind,
        ...(kind === 'round' ? { ...event.metrics, busyFraction: event.busyFraction, work: event.work } : rest),
      }),
    );
  };
}

/** Shows events on a terminal, or as plain lines off it. */
export function humanReporter(terminal: Terminal, now: () => number): Observer {
  const report = new HumanReport(terminal, now);
  return (event) => report.show(event);
}

/** An event of one kind. */
type Event<Kind extends RunEvent['kind']> = Extract<RunEvent, { readonly kind: Kind }>;

/** What is shown in a phase without output of its own. */
const phaseTexts: Readonly<Partial<Record<Event<'phase'>['phase'], string>>> = {
  preparing: 'sending the model …',
  connecting: 'connecting the devices …',
  measuring: 'measuring the links …',
  profiling: 'measuring the layers …',
  planning: 'planning …',
  deploying: 'sending the weights …',
};

const plainIntervalMs = 5000;
const shownLinkCount = 6;

/** Draws a plan under its section; from the first column if that saves a second row of stages. */
export function showPicture(
  plan: Parameters<typeof drawPlan>[0],
  layerNames: readonly string[],
  terminal: Terminal,
): void {
  const rowCount = (picture: string): number =>
    picture.split('\n').filter((line) => line.trimStart().startsWith('┌')).length;
  const wide = drawPlan(plan, layerNames, terminal.columns);
  const narrow = drawPlan(plan, layerNames, terminal.columns - labelWidth);
  if (rowCount(wide) < rowCount(narrow)) terminal.print(wide);
  else terminal.section('Plan', narrow);
}

class HumanReport {
  readonly #terminal: Terminal;
  readonly #now: () => number;
  readonly #profiles = new Map<string, { done: number; total: number }>();
  /** By device: what it measured. */
  readonly #sampleMs = new Map<string, number>();
  readonly #deviceNames: string[] = [];
  readonly #engines = new Map<string, string>();
  /** Devices whose peak memory has been shown. */
  readonly #peakShown = new Set<string>();
  #plan: Plan | undefined;
  #training: Progress | undefined;

  constructor(terminal: Terminal, now: () => number) {
    this.#terminal = terminal;
    this.#now = now;
  }

  show(event: RunEvent): void {
    const line = lineOf(event);
    if (line !== undefined) return this.#section(...line);
    switch (event.kind) {
      case 'listening':
        return this.#listening(event);
      case 'joined':
        return this.#joined(event);
      case 'memory-lowered':
        return this.#section('Memory', this.#terminal.colors.yellow(memoryLoweredText(event)));
      case 'left':
        return this.#left(event.device, event.reason);
      case 'recovering':
        return this.#section('Change', recoveringText(event));
      case 'phase':
        return this.#phase(event.phase);
      case 'profile-progress':
        return this.#profileProgress(event.device, event.done, event.total);
      case 'profiled':
        return this.#profiled(event);
      case 'cluster':
        return this.#links(event.cluster);
      case 'profile':
        return this.#equals(event.profile);
      case 'modes':
        return printModes(event.modes, event.chosen, this.#terminal);
      case 'plan':
        return this.#showPlan(event.plan, event.planningMs, event.layerNames);
      case 'deployment':
        this.#plan = event.plan;
        return;
      case 'training':
        this.#training = new Progress(event, this.#now());
        return;
      case 'round':
        return this.#round(event);
      case 'statistics':
        return this.#peakMemory(event.device, event.peakMemoryMiB);
      case 'warning':
        return this.#section('Warning', this.#terminal.colors.yellow(event.message));
      case 'evaluated':
        return this.#evaluated(event);
      case 'stopped':
      case 'failed':
        return this.#terminal.keepLive();
      default:
        return;
    }
  }

  #section(label: string, text: string): void {
    this.#terminal.section(label, text);
  }

  /** A device's name, in as many columns as the longest so far. */
  #name(device: string): string {
    return device.padEnd(Math.max(8, ...this.#deviceNames.map((name) => name.length)));
  }

  #listening({ url, otherUrls = [], joinCode, remoteCount }: Event<'listening'>): void {
    const { colors } = this.#terminal;
    const isPlain = url.startsWith('ws:') && !/^ws:\/\/(localhost|127\.|\[::1\])/.test(url);
    this.#section(
      'Waiting',
      `for ${counted(remoteCount, 'worker')} to join; there, with the join code ${colors.bold(joinCode)}:`,
    );
    this.#section('Waiting', `  ${colors.bold(command(`worker --join ${url}${isPlain ? ' --insecure' : ''}`))}`);
    const others = [...new Set(otherUrls)].filter((other) => other !== url);
    if (others.length > 0) this.#section('Waiting', `  on other networks of this machine: ${others.join(', ')}`);
  }

  #joined(event: Event<'joined'>): void {
    const { device, cores, memoryMiB, engine } = event;
    this.#deviceNames.push(device);
    this.#engines.set(device, engine);
    this.#section(
      'Devices',
      `${this.#name(device)}  ${counted(cores, 'core')}${deviceState(event)}, ` +
        `${memory(memoryMiB)}  ${this.#terminal.colors.dim(engine)}`,
    );
  }

  #left(device: string, reason: string): void {
    const { colors } = this.#terminal;
    const isUnused = this.#plan !== undefined && !this.#plan.stages.some(({ devices }) => devices.includes(device));
    if (isUnused) return this.#section('Unused', `${this.#name(device)}  ${colors.dim(reason)}`);
    this.#section('Lost', colors.red(`${device} left: ${reason}`));
  }

  #phase(phase: Event<'phase'>['phase']): void {
    const text = phaseTexts[phase];
    if (text !== undefined) this.#terminal.live([`${' '.repeat(labelWidth)}${text}`]);
    else if (phase === 'training') this.#terminal.live([]);
  }

  #profileProgress(device: string, done: number, total: number): void {
    this.#profiles.set(device, { done, total });
    this.#showProfiles();
  }

  #showProfiles(): void {
    const lines = [...this.#profiles].map(([name, { done, total }], index) => {
      const label = (index === 0 ? 'Profiling' : '').padEnd(labelWidth);
      return `${label}${this.#name(name)}  ${bar(done / total, 30)} ${done}/${total} measurements`;
    });
    this.#terminal.live(lines);
  }

  #profiled(event: Event<'profiled'>): void {
    this.#profiles.delete(event.device);
    this.#sampleMs.set(event.device, event.sampleMs);
    this.#showProfiles();
    const { colors } = this.#terminal;
    const speed = grouped(Math.round(1000 / event.sampleMs)).padStart(7);
    this.#section(
      'Profile',
      `${this.#name(event.device)}  ${speed} samples/s alone${event.cached ? colors.dim('  measured before') : ''}`,
    );
  }

  /** Before there is a plan: devices that measured something else and have the same times in it. */
  #equals({ devices }: Profile): void {
    if (this.#plan !== undefined) return;
    const groups = new Map<string, string[]>();
    for (const [name, { forwardMs }] of Object.entries(devices)) {
      const key = JSON.stringify(forwardMs);
      groups.set(key, [...(groups.get(key) ?? []), name]);
    }
    for (const names of groups.values())
      if (new Set(names.map((name) => this.#sampleMs.get(name))).size > 1)
        this.#section('Profile', `${names.join(', ')}: taken as equal, each as the middle of what they measured`);
  }

  #links(cluster: Cluster): void {
    const pairs = cluster.links.pairs ?? [];
    const width = Math.max(0, ...pairs.map((pair) => pair.between.join(' ↔ ').length));
    for (const pair of pairs.slice(0, shownLinkCount)) {
      const speed = bandwidth(pair.bandwidthMbps).padStart(9);
      this.#section(
        'Links',
        `${pair.between.join(' ↔ ').padEnd(width)}  ${speed}  ${(pair.latencyMs ?? 0).toFixed(2).padStart(6)} ms`,
      );
    }
    if (pairs.length > shownLinkCount) this.#section('Links', `… and ${pairs.length - shownLinkCount} more`);
  }

  #showPlan(plan: Plan, planningMs: number, layerNames: readonly string[]): void {
    this.#plan = plan;
    const isGiven = planningMs === 0;
    this.#section('Plan', isGiven ? 'as given' : `by planner "${plan.planner}" in ${duration(planningMs / 1000)}`);
    // A hand-written plan has no prediction.
    const { predicted, ...layout } = plan;
    showPicture(predicted.roundMs > 0 ? plan : layout, layerNames, this.#terminal);
  }

  #round({ metrics, busyFraction }: Event<'round'>): void {
    const training = this.#training;
    if (training === undefined) return;
    const nowMs = this.#now();
    training.add(metrics, busyFraction, nowMs);
    if (this.#terminal.isInteractive) {
      this.#terminal.live(this.#trainingLines(training));
      if (training.isDone) this.#terminal.keepLive();
    } else if (training.isDone || nowMs >= training.plainNextMs) {
      training.plainNextMs = nowMs + plainIntervalMs;
      this.#section(
        'Training',
        `round ${training.doneRound}/${training.endRound}  ${training.facts()}  ${duration(training.leftS)} left`,
      );
    }
  }

  #trainingLines(training: Progress): string[] {
    const { colors } = this.#terminal;
    const indent = ' '.repeat(labelWidth);
    const done = `${training.doneRound} of ${training.endRound} rounds`;
    const rest = training.isDone ? duration(training.elapsedS) : `${duration(training.leftS)} left`;
    return [
      `${colors.cyan('Training'.padEnd(labelWidth))}${colors.cyan(bar(training.fraction, 30))}  ${done}  ${rest}`,
      `${indent}${training.facts()}`,
      ...this.#inPlanOrder([...training.busy]).map(([device, fraction]) => {
        const percent = `${Math.round(fraction * 100)} %`.padStart(5);
        return (
          `${indent}${this.#name(device)}  ${bar(fraction, 18)} ${percent} computing  ` +
          `${colors.dim(this.#role(device))}`
        );
      }),
    ];
  }

  #inPlanOrder(busy: (readonly [device: string, fraction: number])[]): (readonly [device: string, fraction: number])[] {
    const order = this.#plan?.stages.flatMap(({ devices }) => devices) ?? [];
    return busy.sort(([a], [b]) => order.indexOf(a) - order.indexOf(b));
  }

  #role(device: string): string {
    const stages = this.#plan?.stages ?? [];
    for (const [index, { devices, samples }] of stages.entries()) {
      const place = devices.indexOf(device);
      const share = devices.length > 1 ? `, ${samples[place]} of ${this.#plan?.microBatchSize} samples` : '';
      if (place >= 0) return `stage ${index}${share}`;
    }
    return '';
  }

  /** After the last round, once for each device: the most that its process took, and what the plan predicted. */
  #peakMemory(device: string, peakMiB: number): void {
    if (this.#training?.isDone !== true || this.#peakShown.has(device)) return;
    this.#peakShown.add(device);
    const stageMiB = this.#plan?.predicted.peakMemoryMiB[device];
    const processMiB = processMiBOf(this.#engines.get(device) ?? '');
    const predicted =
      stageMiB === undefined
        ? ''
        : `; predicted ${memory(processMiB + stageMiB)}: ` +
          `${memory(stageMiB)} to train, ${processMiB} MiB for the process`;
    this.#section('Memory', `${this.#name(device)}  at most ${memory(peakMiB)}${this.#terminal.colors.dim(predicted)}`);
  }

  #evaluated({ accuracy, loss, sampleCount, perplexity }: Event<'evaluated'>): void {
    const { colors } = this.#terminal;
    const result = accuracy === null ? '' : `accuracy ${colors.bold(`${(accuracy * 100).toFixed(2)} %`)}, `;
    const perToken = perplexity === undefined ? '' : `, perplexity ${perplexity.toPrecision(4)}`;
    this.#section('Test', `${result}loss ${loss.toFixed(4)}${perToken} on ${counted(sampleCount, 'test sample')}`);
  }
}

/** " (quota 0.35), battery 81% (discharging), 56 °C": the state that a device reports when it joins. */
function deviceState({ cpuQuotaCores, batteryPercent, isDischarging, temperatureC }: Event<'joined'>): string {
  const quota = cpuQuotaCores === undefined ? '' : ` (quota ${cpuQuotaCores.toPrecision(2)})`;
  const battery =
    batteryPercent === undefined ? '' : `, battery ${batteryPercent}%${isDischarging === true ? ' (discharging)' : ''}`;
  return `${quota}${battery}${temperatureC === undefined ? '' : `, ${temperatureC.toFixed(0)} °C`}`;
}
