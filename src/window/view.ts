// What the window shows of a run, as plain data, and how each event changes it. The server keeps one view for those who
// come later; the page keeps its own by the same rules, live from the same events, or from those of a finished run up
// to a time. Everything in it is bounded.

import type { Cluster, Plan } from '../cluster/cluster.ts';
import { lineOf, memoryLoweredText, recoveringText } from '../runtime/protocol/event-lines.ts';
import type { Phase, RunEvent } from '../runtime/protocol/events.ts';
import { addPoint, type Curve, emptyCurve } from './curve.ts';

/** A piece of a round's work on a device or on its way to another. */
export interface Span {
  readonly device: string;
  readonly kind: string;
  readonly microBatch?: number;
  /** Of what travels: the receiver; of a wait: who is waited for. */
  readonly peer?: string;
  readonly startMs: number;
  readonly endMs: number;
}

/** What a round should take, by the simulator with the measured profile. */
export interface Prediction {
  readonly roundMs: number;
  readonly busyMs: Readonly<Record<string, number>>;
  readonly peakMemoryMiB: Readonly<Record<string, number>>;
  readonly links: readonly LinkTime[];
  readonly spans: readonly Span[];
}

/** For how long a round occupies a link. */
export interface LinkTime {
  readonly from: string;
  readonly to: string;
  readonly ms: number;
  readonly bytes?: number;
}

/** What happened besides a run's own events. */
export type WindowEvent =
  | RunEvent
  | { readonly kind: 'prediction'; readonly prediction: Prediction | null }
  /** A round as a device measured it. */
  | { readonly kind: 'measured'; readonly round: number; readonly device: string; readonly spans: readonly Span[] };

/** A device, present or not. */
export interface DeviceView {
  name: string;
  isPresent: boolean;
  cores: number;
  memoryMiB: number;
  engine: string;
  detail: string;
  /** Fraction of the time that it computes, over the last rounds; null before the first. */
  busy: number | null;
  /** Milliseconds of computing a round, over the last rounds. */
  busyMs: number | null;
  peakMemoryMiB: number | null;
  residentMiB: number | null;
  usedCores: number | null;
}

/** An event in words. */
export interface Note {
  atMs: number;
  label: string;
  text: string;
  tone: 'plain' | 'good' | 'bad';
}

/** Something to mark on the curves. */
export interface Mark {
  round: number;
  text: string;
  tone: 'plain' | 'good' | 'bad';
}

/** The measured spans of a round, by device. */
export interface MeasuredRound {
  round: number;
  spans: Record<string, readonly Span[]>;
}

export interface View {
  model: string;
  phase: Phase | 'failed' | 'stopped';
  atMs: number;
  /** When training began; null before. */
  trainingMs: number | null;
  rounds: { first: number; end: number; perEpoch: number } | null;
  round: number;
  roundMs: number | null;
  devices: DeviceView[];
  plan: Plan | null;
  layerNames: readonly string[];
  cluster: Cluster | null;
  prediction: Prediction | null;
  /** The last round of which all devices of the plan told, and the one that is being told. */
  measured: MeasuredRound | null;
  arriving: MeasuredRound | null;
  curve: Curve;
  tests: { round: number; accuracy: number | null; loss: number }[];
  notes: Note[];
  marks: Mark[];
  rateFactor: number;
}

const [mostDevices, mostNotes, mostMarks, mostTests] = [2000, 200, 60, 500];
/** Weight of the newest round in what is shown of a device's load. */
const smoothing = 0.2;

/** The view before anything has happened. */
export function emptyView(model: string): View {
  return {
    ...{ model, phase: 'gathering', atMs: 0, trainingMs: null, rounds: null, round: 0, roundMs: null },
    ...{ devices: [], plan: null, layerNames: [], cluster: null, prediction: null, measured: null, arriving: null },
    ...{ curve: emptyCurve(), tests: [], notes: [], marks: [], rateFactor: 1 },
  };
}

type Kinds = {
  readonly [Kind in WindowEvent['kind']]?: (view: View, event: Extract<WindowEvent, { kind: Kind }>) => void;
};

const rules: Kinds = {
  joined(view, event) {
    const { device, cores, memoryMiB, engine, cpuModel = '', cpuQuotaCores } = event;
    const known = view.devices.find(({ name }) => name === device);
    const facts = { isPresent: true, cores: cpuQuotaCores ?? cores, memoryMiB, engine, detail: cpuModel };
    if (known !== undefined) Object.assign(known, facts);
    else if (view.devices.length < mostDevices)
      view.devices.push({
        ...{ name: device, ...facts, busy: null, busyMs: null },
        ...{ peakMemoryMiB: null, residentMiB: null, usedCores: null },
      });
    view.devices.sort((a, b) => a.name.localeCompare(b.name, 'en', { numeric: true }));
  },
  left(view, { device }) {
    const known = view.devices.find(({ name }) => name === device);
    if (known !== undefined) Object.assign(known, { isPresent: false, busy: null, busyMs: null, usedCores: null });
    if (view.plan?.stages.some(({ devices }) => devices.includes(device)) === true) mark(view, `${device} left`, 'bad');
  },
  phase(view, { phase }) {
    view.phase = phase;
  },
  cluster(view, { cluster }) {
    view.cluster = cluster;
  },
  plan(view, { plan, layerNames }) {
    view.layerNames = layerNames;
    view.plan = plan;
  },
  deployment: (view, { plan }) => layout(view, plan),
  recovering: (view, { plan }) => layout(view, plan),
  prediction(view, { prediction }) {
    view.prediction = prediction;
  },
  recovered: (view, { seconds }) => mark(view, `recovered in ${seconds.toFixed(1)} s`, 'good'),
  'learning-rate'(view, { round, factor }) {
    view.rateFactor = factor;
    mark(view, `learning rate × ${factor}`, 'plain', round);
  },
  training(view, { firstRound, endRound, roundsPerEpoch }) {
    view.rounds = { first: firstRound, end: endRound, perEpoch: roundsPerEpoch };
    view.round = firstRound;
    view.trainingMs = view.atMs;
  },
  round: roundCommitted,
  measured: measuredOn,
  statistics(view, { device, peakMemoryMiB }) {
    const known = view.devices.find(({ name }) => name === device);
    if (known !== undefined) known.peakMemoryMiB = peakMemoryMiB;
  },
  load(view, { device, usedCores, residentMiB }) {
    const known = view.devices.find(({ name }) => name === device);
    if (known === undefined) return;
    known.usedCores = smoothed(known.usedCores, usedCores);
    known.residentMiB = residentMiB;
  },
  evaluated(view, { round, accuracy, loss }) {
    view.tests.push({ round, accuracy, loss });
    if (view.tests.length > mostTests) view.tests.shift();
  },
  stopped(view) {
    view.phase = 'stopped';
  },
  failed(view) {
    view.phase = 'failed';
  },
};

/** Takes in an event of `atMs`. */
export function apply(view: View, event: WindowEvent, atMs: number): void {
  view.atMs = Math.max(view.atMs, atMs);
  const rule = rules[event.kind] as ((view: View, event: WindowEvent) => void) | undefined;
  rule?.(view, event);
  const note = noteOf(view, event);
  if (note === undefined) return;
  view.notes.push({ atMs, ...note });
  if (view.notes.length > mostNotes) view.notes.shift();
}

/** Another plan: what was measured and predicted was of the one before. */
function layout(view: View, plan: Plan): void {
  view.plan = plan;
  view.prediction = null;
  view.measured = null;
  view.arriving = null;
}

function roundCommitted(view: View, { metrics, endRound, busyFraction }: Extract<RunEvent, { kind: 'round' }>): void {
  const { round, loss, samplesPerS, lr, accuracy } = metrics;
  const shown = Number.isFinite(loss) ? loss : null;
  addPoint(view.curve, {
    ...{ round, atMs: view.atMs, count: 1, loss: shown, accuracy, samplesPerS, lr, low: shown, high: shown },
  });
  view.round = round + 1;
  if (view.rounds !== null) view.rounds.end = endRound;
  const roundMs = view.plan === null ? null : (view.plan.batchSize / samplesPerS) * 1000;
  view.roundMs = smoothed(view.roundMs, roundMs);
  for (const device of view.devices) {
    const busy = busyFraction[device.name];
    if (busy === undefined) continue;
    device.busy = smoothed(device.busy, busy);
    device.busyMs = roundMs === null ? null : smoothed(device.busyMs, busy * roundMs);
  }
}

function smoothed(before: number | null, value: number | null): number | null {
  return before === null || value === null ? value : before + smoothing * (value - before);
}

function measuredOn(view: View, { round, device, spans }: Extract<WindowEvent, { kind: 'measured' }>): void {
  if (view.plan === null) return;
  if (view.arriving?.round !== round) view.arriving = { round, spans: {} };
  view.arriving.spans[device] = spans;
  const devices = view.plan.stages.flatMap((stage) => stage.devices);
  const { spans: told } = view.arriving;
  if (!devices.every((name) => told[name] !== undefined)) return;
  view.measured = view.arriving;
  view.arriving = null;
}

function mark(view: View, text: string, tone: Mark['tone'], round: number = view.round): void {
  view.marks.push({ round, text, tone });
  if (view.marks.length > mostMarks) view.marks.shift();
}

/** The event in words; undefined for those that are only numbers. */
function noteOf(view: View, event: WindowEvent): Omit<Note, 'atMs'> | undefined {
  switch (event.kind) {
    case 'joined':
      return { label: 'Joined', text: `${event.device} is here`, tone: 'good' };
    case 'left': {
      const isUsed = view.plan?.stages.some(({ devices }) => devices.includes(event.device)) === true;
      return {
        label: isUsed ? 'Lost' : 'Left',
        text: `${event.device} left: ${event.reason}`,
        tone: isUsed ? 'bad' : 'plain',
      };
    }
    case 'memory-lowered':
      return { label: 'Memory', text: memoryLoweredText(event), tone: 'bad' };
    case 'recovering':
      return { label: 'Change', text: recoveringText(event), tone: 'plain' };
    case 'warning':
      return { label: 'Warning', text: event.message, tone: 'bad' };
    case 'failed':
      return { label: 'Failed', text: event.message, tone: 'bad' };
    case 'stopped':
      return { label: 'Stopped', text: `after round ${event.round}`, tone: 'plain' };
    case 'checkpoint':
      return { label: 'Saved', text: `a checkpoint after ${event.round} rounds`, tone: 'plain' };
    case 'evaluated': {
      const accuracy = event.accuracy === null ? '' : `${(event.accuracy * 100).toFixed(2)} % right, `;
      return {
        label: 'Test',
        text: `${accuracy}loss ${event.loss.toFixed(4)} after round ${event.round}`,
        tone: 'good',
      };
    }
    case 'prediction':
    case 'measured':
    case 'load':
      return undefined;
    default: {
      const line = lineOf(event);
      const isGood = event.kind === 'recovered' || event.kind === 'reserve-ready';
      const isBad = event.kind === 'suspected' || event.kind === 'drift';
      return line && { label: line[0], text: line[1], tone: isGood ? 'good' : isBad ? 'bad' : 'plain' };
    }
  }
}
