// Turns a run's events into what a person or a program reads. A person: devices, links, profile, plan, training bar. A
// program (`--json`): one JSON line an event.

import type { Cluster, Plan } from '../cluster/cluster.ts';
import { drawPlan, roundText } from '../cluster/draw.ts';
import { processMiB } from '../cluster/memory.ts';
import { elementCount } from '../graph/tensor.ts';
import type { Observer, RunEvent } from '../runtime/protocol/events.ts';
import type { PreparedRun } from '../runtime/run/prepare.ts';
import { Progress } from './progress.ts';
import { bandwidth, bar, command, counted, duration, grouped, labelWidth, memory, type Terminal } from './terminal.ts';

/** Prints each event as one JSON line, without those that only drive a progress bar. */
export function jsonReporter(write: (line: string) => void): Observer {
  return (event) => {
    if (event.kind === 'profile-progress' || event.kind === 'trace') return;
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

/** Says what will be trained on what, before it begins. */
export function describeRun(
  { settings, model, subject, dataset, test, machine }: PreparedRun,
  terminal: Terminal,
): void {
  const { parameters, initializers } = subject.sequence.graph;
  const weightCount = parameters.reduce((sum, name) => sum + elementCount(initializers.get(name)?.shape ?? []), 0);
  const frozenCount = subject.training.frozen.length;
  const frozen = frozenCount > 0 ? ` (${frozenCount} of ${parameters.length} tensors frozen)` : '';
  terminal.section(
    'Model',
    `${model.name}: ${counted(subject.sequence.layers.length, 'layer')}, ${grouped(weightCount)} weights${frozen}`,
  );
  const tested = test === undefined ? '' : `, ${grouped(test.sampleCount)} others to test`;
  terminal.section('Data', `${dataset.name}: ${grouped(dataset.sampleCount)} samples to train${tested}`);
  const from = machine.firstRound > 0 ? `, from round ${machine.firstRound}` : '';
  const rounds = `${counted(machine.endRound, 'round')} of ${counted(settings.batch, 'sample')}${from}`;
  terminal.section(
    'Settings',
    `${rounds}; ${settings.optimizer}, learning rate ${settings.lr}${settings.lrSchedule === 'constant' ? '' : `, ${settings.lrSchedule}`}`,
  );
  if (settings.workers > 0)
    terminal.live([`${'Devices'.padEnd(labelWidth)}starting ${counted(settings.workers, 'worker process')} …`]);
}

/** What is going on in a phase that shows nothing of its own. */
const phaseTexts: Readonly<Partial<Record<Extract<RunEvent, { kind: 'phase' }>['phase'], string>>> = {
  preparing: 'sending the model …',
  connecting: 'connecting the devices …',
  measuring: 'measuring the links …',
  profiling: 'measuring the layers …',
  planning: 'planning …',
  deploying: 'sending the weights …',
};

const plainIntervalMs = 5000;
const shownLinkCount = 6;

/** Draws a plan under its section; from the first column where that saves a second row of stages. */
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
  readonly #deviceNames: string[] = [];
  /** Devices whose memory has been told. */
  readonly #told = new Set<string>();
  #plan: Plan | undefined;
  #training: Progress | undefined;

  constructor(terminal: Terminal, now: () => number) {
    this.#terminal = terminal;
    this.#now = now;
  }

  show(event: RunEvent): void {
    const { colors } = this.#terminal;
    switch (event.kind) {
      case 'listening':
        return this.#listening(event);
      case 'joined':
        this.#deviceNames.push(event.device);
        return this.#section(
          'Devices',
          `${this.#name(event.device)}  ${counted(event.cores, 'core')}${told(event)}, ${memory(event.memoryMiB)}  ${colors.dim(event.engine)}`,
        );
      case 'memory-lowered':
        return this.#memoryLowered(event);
      case 'cool-down': {
        const often = event.departureCount === 1 ? 'once' : `${event.departureCount} times`;
        return this.#section(
          'Devices',
          `${event.device} has left ${often}: it is given work in ${duration(event.seconds)} at the earliest`,
        );
      }
      case 'left':
        return this.#left(event.device, event.reason);
      case 'suspected':
        return this.#section(
          'Silent',
          `${event.device} has not been heard for ${(event.silentMs / 1000).toFixed(1)} s; it is given up after ${(event.deadAfterMs / 1000).toFixed(1)} s`,
        );
      case 'checked': {
        const planned = event.plannedMs === 0 ? '' : `, ${roundText(event.plannedMs)} as planned`;
        return this.#section(
          'Checked',
          `a round takes ${roundText(event.roundMs)} by what its stages took so far${planned}`,
        );
      }
      case 'drift': {
        const factors = Object.entries(event.factors).map(
          ([device, factor]) => `${device} takes ${factor.toFixed(2)} times as long as profiled`,
        );
        const links = event.links.map(
          ({ between, mbps, beforeMbps }) =>
            `${between.join(' — ')} carries ${mbps.toFixed(1)} Mbps, before ${beforeMbps.toFixed(1)}`,
        );
        return this.#section('Drift', [...factors, ...links].join(', '));
      }
      case 'recovering':
        return this.#recovering(event);
      case 'recovered':
        return this.#section('Resumed', `at round ${event.round}, after ${event.seconds.toFixed(1)} s`);
      case 'reserve-ready':
        return this.#section('Prepared', `for the loss of any one device, after ${event.seconds.toFixed(0)} s`);
      case 'phase':
        return this.#phase(event.phase);
      case 'profile-progress':
        return this.#profileProgress(event.device, event.done, event.total);
      case 'profiled':
        return this.#profiled(event);
      case 'cluster':
        return this.#links(event.cluster);
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
      case 'note':
        return this.#section('Note', event.message);
      case 'warning':
        return this.#section('Warning', colors.yellow(event.message));
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

  #listening({ url, joinCode, remoteCount }: Extract<RunEvent, { kind: 'listening' }>): void {
    const { colors } = this.#terminal;
    const isPlain = url.startsWith('ws:') && !/^ws:\/\/(localhost|127\.|\[::1\])/.test(url);
    this.#section(
      'Waiting',
      `for ${counted(remoteCount, 'worker')} to join; there, with the join code ${colors.bold(joinCode)}:`,
    );
    this.#section('Waiting', `  ${colors.bold(command(`worker --join ${url}${isPlain ? ' --insecure' : ''}`))}`);
  }

  #memoryLowered({ device, fromMiB, toMiB }: Extract<RunEvent, { kind: 'memory-lowered' }>): void {
    const so =
      toMiB === 0
        ? 'it gets no work in this run'
        : `plans count on ${memory(toMiB)} of it from now on, instead of ${memory(fromMiB)}`;
    this.#section(
      'Memory',
      this.#terminal.colors.yellow(`${device} was killed by its system for want of memory: ${so}`),
    );
  }

  #left(device: string, reason: string): void {
    const { colors } = this.#terminal;
    const isUnused = this.#plan !== undefined && !this.#plan.stages.some(({ devices }) => devices.includes(device));
    if (isUnused) return this.#section('Unused', `${this.#name(device)}  ${colors.dim(reason)}`);
    this.#section('Lost', colors.red(`${device} left: ${reason}`));
  }

  #recovering({
    cause,
    plan,
    round,
    repeatedRounds,
    source,
    movedMiB,
  }: Extract<RunEvent, { kind: 'recovering' }>): void {
    const deviceCount = new Set(plan.stages.flatMap(({ devices }) => devices)).size;
    const again =
      repeatedRounds === 0
        ? 'no round is lost'
        : `${counted(repeatedRounds, 'round')} from ${round} on ${repeatedRounds === 1 ? 'is' : 'are'} computed again`;
    const from = source === 'checkpoint' ? ', from the last checkpoint' : '';
    const moved = movedMiB === 0 ? '' : `, ${memory(movedMiB)} of weights move`;
    this.#section('Change', `${cause}: going on with ${counted(deviceCount, 'device')}; ${again}${from}${moved}`);
  }

  #phase(phase: Extract<RunEvent, { kind: 'phase' }>['phase']): void {
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

  #profiled(event: Extract<RunEvent, { kind: 'profiled' }>): void {
    this.#profiles.delete(event.device);
    this.#showProfiles();
    const { colors } = this.#terminal;
    const speed = grouped(Math.round(1000 / event.sampleMs)).padStart(7);
    this.#section(
      'Profile',
      `${this.#name(event.device)}  ${speed} samples/s alone${event.cached ? colors.dim('  measured before') : ''}`,
    );
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
    // A plan that a person wrote predicts nothing.
    const { predicted, ...layout } = plan;
    showPicture(predicted.roundMs > 0 ? plan : layout, layerNames, this.#terminal);
  }

  #round({ metrics, busyFraction }: Extract<RunEvent, { kind: 'round' }>): void {
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
        return `${indent}${this.#name(device)}  ${bar(fraction, 18)} ${percent} computing  ${colors.dim(this.#role(device))}`;
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
      if (place >= 0)
        return `stage ${index}${devices.length > 1 ? `, ${samples[place]} of ${this.#plan?.microBatchSize} samples` : ''}`;
    }
    return '';
  }

  /** After the last round, once for each device: the most that its process took, beside what the plan predicted. */
  #peakMemory(device: string, peakMiB: number): void {
    if (this.#training?.isDone !== true || this.#told.has(device)) return;
    this.#told.add(device);
    const stageMiB = this.#plan?.predicted.peakMemoryMiB[device];
    const predicted =
      stageMiB === undefined
        ? ''
        : `; predicted ${memory(processMiB + stageMiB)}: ${memory(stageMiB)} to train, ${processMiB} MiB for the process`;
    this.#section('Memory', `${this.#name(device)}  at most ${memory(peakMiB)}${this.#terminal.colors.dim(predicted)}`);
  }

  #evaluated({ accuracy, loss, sampleCount }: Extract<RunEvent, { kind: 'evaluated' }>): void {
    const { colors } = this.#terminal;
    const result = accuracy === null ? '' : `accuracy ${colors.bold(`${(accuracy * 100).toFixed(2)} %`)}, `;
    this.#section('Test', `${result}loss ${loss.toFixed(4)} on ${counted(sampleCount, 'test sample')}`);
  }
}

/** " (quota 0.35), battery 81% (discharging), 56 °C": what a device tells of its state. */
function told({
  cpuQuotaCores,
  batteryPercent,
  isDischarging,
  temperatureC,
}: Extract<RunEvent, { readonly kind: 'joined' }>): string {
  const quota = cpuQuotaCores === undefined ? '' : ` (quota ${cpuQuotaCores.toPrecision(2)})`;
  const battery =
    batteryPercent === undefined ? '' : `, battery ${batteryPercent}%${isDischarging === true ? ' (discharging)' : ''}`;
  return `${quota}${battery}${temperatureC === undefined ? '' : `, ${temperatureC.toFixed(0)} °C`}`;
}
