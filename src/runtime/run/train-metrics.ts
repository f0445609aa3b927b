// What a training run does, as Prometheus reads it: made from the run's events, when it is asked for.

import type { Clock } from '../../clock.ts';
import { bytesInMiB, processMiB, processMiBOf } from '../../cluster/memory.ts';
import type { Phase, RunEvent } from '../protocol/events.ts';
import { Histogram, type Labels, PrometheusText } from './prometheus-text.ts';

/** Upper bounds of the time between two rounds, in seconds. */
const secondBounds = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];
/** Devices that are told of, at most: names of devices that went long ago do not pile up. */
const mostDevices = 2000;

interface DeviceState {
  isPresent: boolean;
  departures: number;
  busy: number | undefined;
  usedCores: number | undefined;
  residentMiB: number | undefined;
  /** Of its work, the process itself not counted. */
  predictedMiB: number | undefined;
  processMiB: number;
}

type Rules = { readonly [Kind in RunEvent['kind']]?: (event: Extract<RunEvent, { kind: Kind }>) => void };

/** Hears the events of one run. */
export class TrainMetrics {
  readonly #clock: Pick<Clock, 'now'>;
  readonly #model: string;
  readonly #devices = new Map<string, DeviceState>();
  readonly #seconds = new Histogram(secondBounds);
  readonly #counts = { rounds: 0, samples: 0, layoutChanges: 0, repeated: 0, warnings: 0 };
  /** Of which only the newest value counts, by the metric's name. */
  readonly #newest = new Map<string, number>();
  #phase: Phase | 'stopped' | 'failed' = 'gathering';
  #batch = 0;
  #lastRoundMs: number | undefined;

  constructor(model: string, clock: Pick<Clock, 'now'>) {
    this.#model = model;
    this.#clock = clock;
  }

  observe(event: RunEvent): void {
    const rule = this.#rules[event.kind] as ((event: RunEvent) => void) | undefined;
    rule?.(event);
  }

  /** `residentBytes`: of this process. */
  text(residentBytes: number): string {
    const text = new PrometheusText();
    text.gauge('run_info', 'The run: its model, and what it is doing.', [
      [{ model: this.#model, phase: this.#phase }, 1],
    ]);
    const { rounds, samples, layoutChanges, repeated, warnings } = this.#counts;
    text.counter('rounds_total', 'Rounds done in this session.', rounds);
    text.counter('samples_total', 'Samples trained on in this session.', samples);
    text.counter('layout_changes_total', 'Times that work was shared out anew.', layoutChanges);
    text.counter('repeated_rounds_total', 'Rounds computed again after a loss.', repeated);
    text.counter('warnings_total', 'Warnings of the run.', warnings);
    text.histogram('round_seconds', 'From one round to the next.', this.#seconds);
    for (const [name, help] of Object.entries(newestHelp)) {
      const value = this.#newest.get(name);
      if (value !== undefined) text.gauge(name, help, value);
    }
    this.#addDevices(text);
    text.gauge('resident_bytes', 'Memory of the process.', residentBytes);
    return text.toString();
  }

  #addDevices(text: PrometheusText): void {
    const devices = [...this.#devices].sort(([a], [b]) => a.localeCompare(b, 'en', { numeric: true }));
    const of = (value: (device: DeviceState) => number | undefined): (readonly [Labels, number])[] =>
      devices.flatMap(([device, state]) => {
        const found = value(state);
        return found === undefined ? [] : [[{ device }, found] as const];
      });
    const ifThere = (value: keyof DeviceState & ('busy' | 'usedCores')) =>
      of((d) => (d.isPresent ? d[value] : undefined));
    const bytes = (miB: number | undefined): number | undefined => (miB === undefined ? undefined : miB * bytesInMiB);
    text.gauge('devices', 'Devices that are there.', devices.filter(([, { isPresent }]) => isPresent).length);
    text.gauge(
      'device_up',
      '1 if the device is there.',
      of(({ isPresent }) => (isPresent ? 1 : 0)),
    );
    text.counter(
      'device_departures_total',
      'Times that the device left.',
      of(({ departures }) => departures),
    );
    text.gauge('device_busy_ratio', 'Part of the newest round in which the device computed.', ifThere('busy'));
    text.gauge('device_cpu_cores', "Processor time of the device's process, a second.", ifThere('usedCores'));
    text.gauge(
      'device_resident_bytes',
      "Memory of the device's process.",
      of(({ isPresent, residentMiB }) => (isPresent ? bytes(residentMiB) : undefined)),
    );
    text.gauge(
      'device_predicted_bytes',
      "Memory that the plan expects of the device's process.",
      of(({ predictedMiB, processMiB: own }) => bytes(predictedMiB === undefined ? undefined : own + predictedMiB)),
    );
  }

  #device(name: string): DeviceState | undefined {
    const known = this.#devices.get(name);
    if (known !== undefined || this.#devices.size >= mostDevices) return known;
    const nothing = { busy: undefined, usedCores: undefined, residentMiB: undefined, predictedMiB: undefined };
    const state: DeviceState = { isPresent: false, departures: 0, processMiB, ...nothing };
    this.#devices.set(name, state);
    return state;
  }

  #set(name: keyof typeof newestHelp, value: number | null): void {
    if (value !== null) this.#newest.set(name, value);
  }

  #planned(plan: Extract<RunEvent, { kind: 'deployment' }>['plan']): void {
    this.#batch = plan.batchSize;
    this.#set('plan_stages', plan.stages.length);
    const { roundMs, peakMemoryMiB } = plan.predicted;
    if (roundMs > 0) this.#set('predicted_round_seconds', roundMs / 1000);
    for (const [name, state] of this.#devices) state.predictedMiB = peakMemoryMiB[name];
  }

  readonly #rules: Rules = {
    phase: ({ phase }) => {
      this.#phase = phase;
      if (phase !== 'training' && phase !== 'snapshotting') this.#lastRoundMs = undefined;
    },
    joined: ({ device, engine }) => {
      const state = this.#device(device);
      if (state !== undefined) Object.assign(state, { isPresent: true, processMiB: processMiBOf(engine) });
    },
    left: ({ device }) => {
      const state = this.#device(device);
      if (state === undefined) return;
      state.isPresent = false;
      state.departures++;
    },
    load: ({ device, usedCores, residentMiB }) => {
      const state = this.#device(device);
      if (state !== undefined) Object.assign(state, { usedCores, residentMiB });
    },
    deployment: ({ plan }) => this.#planned(plan),
    training: ({ endRound }) => this.#set('end_round', endRound),
    recovering: ({ plan, repeatedRounds }) => {
      this.#counts.repeated += repeatedRounds;
      this.#planned(plan);
    },
    recovered: ({ seconds }) => {
      this.#counts.layoutChanges++;
      this.#set('recovery_seconds', seconds);
    },
    round: (event) => this.#round(event),
    evaluated: ({ accuracy, loss }) => {
      this.#set('test_loss', loss);
      this.#set('test_accuracy', accuracy);
    },
    checkpoint: ({ round }) => this.#set('checkpoint_round', round),
    warning: () => {
      this.#counts.warnings++;
    },
    stopped: () => {
      this.#phase = 'stopped';
    },
    failed: () => {
      this.#phase = 'failed';
    },
  };

  #round({ metrics, endRound, busyFraction }: Extract<RunEvent, { kind: 'round' }>): void {
    const { round, epoch, loss, samplesPerS, lr, accuracy } = metrics;
    const nowMs = this.#clock.now();
    this.#counts.rounds++;
    this.#counts.samples += this.#batch;
    if (this.#lastRoundMs !== undefined) this.#seconds.add((nowMs - this.#lastRoundMs) / 1000);
    this.#lastRoundMs = nowMs;
    this.#set('round', round + 1);
    this.#set('end_round', endRound);
    this.#set('epoch', epoch);
    this.#set('loss', loss);
    this.#set('samples_per_second', samplesPerS);
    this.#set('learning_rate', lr);
    this.#set('batch_accuracy', accuracy);
    for (const [name, busy] of Object.entries(busyFraction)) {
      const state = this.#device(name);
      if (state !== undefined) state.busy = busy;
    }
  }
}

const newestHelp = {
  round: 'Rounds that are done, those of earlier sessions included.',
  end_round: 'Rounds after which training ends.',
  epoch: 'Passes over the data that are begun.',
  loss: 'Of the newest batch, before its update.',
  batch_accuracy: 'Right predictions in the newest batch, as a fraction.',
  learning_rate: 'Of the newest round.',
  samples_per_second: 'Of the newest round.',
  test_loss: 'Of the newest test.',
  test_accuracy: 'Of the newest test, as a fraction.',
  plan_stages: 'Stages of the pipeline.',
  predicted_round_seconds: "The plan's time of a round.",
  recovery_seconds: 'How long the newest change of the layout took.',
  checkpoint_round: 'Rounds that the newest checkpoint has seen.',
} as const;
