// What a run's folder says of it, for the report: read back, checked, and tolerant of documents that are not there yet.

import type { Cluster } from '../../cluster/cluster.ts';
import { parseCluster, parsePlan, type WrittenPlan } from '../../cluster/validate.ts';
import { InputError } from '../../errors.ts';
import { basename, join } from '../../paths.ts';
import { type LearningCurve, readLearningCurve } from '../../runtime/run/learning-curve.ts';
import { type Disk, errorCode, readError } from '../../storage/disk.ts';
import { readLines } from '../../storage/line-log.ts';
import { configOf } from '../files.ts';
import { parseTestResults, type TestResults } from './test-results.ts';

/** A device as it joined, and what it reported. */
export interface DeviceFacts {
  readonly name: string;
  readonly cores?: number;
  readonly memoryMiB?: number;
  readonly engine?: string;
  readonly cpuModel?: string;
  /** Samples a second of the whole model on this device alone. */
  readonly aloneSamplesPerS?: number;
  readonly peakMemoryMiB?: number;
}

/** A time that the run spent. */
export interface Span {
  readonly name: string;
  readonly seconds: number;
}

/** An event worth telling. */
export interface Happening {
  readonly atS: number;
  readonly text: string;
}

export interface RunFacts {
  readonly name: string;
  readonly settings: Readonly<Record<string, unknown>>;
  readonly curve: LearningCurve;
  readonly plan: WrittenPlan | undefined;
  readonly cluster: Cluster | undefined;
  readonly layerNames: readonly string[];
  readonly results: TestResults | undefined;
  readonly devices: readonly DeviceFacts[];
  readonly spans: readonly Span[];
  readonly happenings: readonly Happening[];
  readonly roundCount: number;
  /** The middle one of the rounds' samples a second. */
  readonly samplesPerS: number | undefined;
}

type Line = Readonly<Record<string, unknown>>;

/** Reads a run's folder. Throws InputError for one that has not begun to train, or whose documents are damaged. */
export async function readRunFacts(folder: string, disk: Disk): Promise<RunFacts> {
  const curve = await readLearningCurve(folder, disk);
  const metrics = (await readLines(join(folder, 'metrics.jsonl'), disk)) ?? [];
  const events = (await readLines(join(folder, 'events.jsonl'), disk)) ?? [];
  const read = async <T>(name: string, parse: (text: string, path: string) => T): Promise<T | undefined> => {
    const path = join(folder, name);
    const text = await textOf(path, disk);
    return text === undefined ? undefined : parse(text, path);
  };
  const rates = metrics.flatMap(({ samplesPerS }) => numbers(samplesPerS)).sort((a, b) => a - b);
  return {
    name: basename(folder),
    settings: (await read('config.yaml', configOf)) ?? {},
    curve,
    plan: await read('plan.json', parsePlan),
    cluster: await read('cluster.json', parseCluster),
    layerNames: (await read('profile.json', namesOf)) ?? [],
    results: await read('evaluation.json', resultsOf),
    devices: devicesOf(events),
    spans: spansOf(events),
    happenings: happeningsOf(events),
    roundCount: metrics.reduce((last, { round }) => Math.max(last, ...numbers(round).map((value) => value + 1)), 0),
    samplesPerS: rates[Math.floor(rates.length / 2)],
  };
}

async function textOf(path: string, disk: Disk): Promise<string | undefined> {
  try {
    return new TextDecoder().decode(await disk.read(path));
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return undefined;
    throw readError(error, path);
  }
}

/** What evaluation.json says. Throws InputError that names `path`. */
export function resultsOf(text: string, path: string): TestResults {
  try {
    return parseTestResults(JSON.parse(text));
  } catch {
    throw new InputError(`${path} is not what a run writes about its test: remove it, or test the run again.`);
  }
}

/** The layers' names in a profile; none where it is not one. */
function namesOf(text: string): readonly string[] {
  try {
    const { layers } = JSON.parse(text) as { readonly layers?: readonly { readonly name?: unknown }[] };
    return (layers ?? []).map(({ name }) => String(name));
  } catch {
    return [];
  }
}

function numbers(value: unknown): number[] {
  return typeof value === 'number' && Number.isFinite(value) ? [value] : [];
}

function optional<Key extends string>(key: Key, value: unknown): { readonly [name in Key]?: number } {
  const [found] = numbers(value);
  return (found === undefined ? {} : { [key]: found }) as { readonly [name in Key]?: number };
}

function devicesOf(events: readonly Line[]): readonly DeviceFacts[] {
  const found = new Map<string, DeviceFacts>();
  const add = (name: unknown, facts: Omit<DeviceFacts, 'name'>): void => {
    if (typeof name === 'string') found.set(name, { ...found.get(name), name, ...facts });
  };
  for (const line of events) {
    const { event, device, engine, cpuModel, sampleMs } = line;
    if (event === 'joined')
      add(device, {
        ...optional('cores', line['cores']),
        ...optional('memoryMiB', line['memoryMiB']),
        ...(typeof engine === 'string' ? { engine } : {}),
        ...(typeof cpuModel === 'string' ? { cpuModel } : {}),
      });
    if (event === 'profiled' && typeof sampleMs === 'number' && sampleMs > 0)
      add(device, { aloneSamplesPerS: 1000 / sampleMs });
    if (event === 'statistics') add(device, optional('peakMemoryMiB', line['peakMemoryMiB']));
  }
  return [...found.values()];
}

/** What the phases of a run are called. */
const spanNames: Readonly<Record<string, string>> = {
  gathering: 'waiting for devices',
  preparing: 'sending the model',
  connecting: 'connecting',
  measuring: 'measuring links',
  profiling: 'measuring layers',
  planning: 'planning',
  deploying: 'sending weights',
  training: 'training',
  waiting: 'waiting for devices',
};

/** How long each phase took, all parts of the run together: a part's clock begins at 0. */
function spansOf(events: readonly Line[]): readonly Span[] {
  const sums = new Map<string, number>();
  let phase: string | undefined;
  let [since, before] = [0, 0];
  for (const line of events) {
    const [at = before] = numbers(line['atMs']);
    const isNewPart = at < before;
    if (isNewPart || line['event'] === 'phase') {
      if (phase !== undefined) sums.set(phase, (sums.get(phase) ?? 0) + (isNewPart ? before : at) - since);
      phase = undefined;
      since = at;
    }
    if (line['event'] === 'phase') phase = spanNames[String(line['phase'])];
    before = at;
  }
  if (phase !== undefined) sums.set(phase, (sums.get(phase) ?? 0) + before - since);
  return [...sums].map(([name, ms]) => ({ name, seconds: ms / 1000 })).filter(({ seconds }) => seconds >= 0.001);
}

/** More than these would be a log, not a report. */
const shownHappeningCount = 30;

function happeningsOf(events: readonly Line[]): readonly Happening[] {
  return events
    .flatMap((line) => {
      const text = happeningText(line);
      return text === undefined ? [] : [{ atS: (numbers(line['atMs'])[0] ?? 0) / 1000, text }];
    })
    .slice(-shownHappeningCount);
}

function happeningText({ event, device, reason, cause, round, message, testsSince }: Line): string | undefined {
  switch (event) {
    case 'left':
      return `${device} left: ${reason}`;
    case 'recovering':
      return `${cause}: the plan changes after round ${round}`;
    case 'recovered':
      return `training goes on from round ${round}`;
    case 'warning':
      return String(message);
    case 'failed':
      return `failed: ${message}`;
    case 'stopped':
      return `stopped after round ${round}`;
    case 'early-stop':
      return `ended early after round ${round}: ${testsSince} tests without a better one`;
    default:
      return undefined;
  }
}
