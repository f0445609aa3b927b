// The learning curve of a run, from its folder's metrics.jsonl and events.jsonl: losses and accuracies over the epochs,
// ready to be drawn. Node only (reads files).

import { InputError } from '../../errors.ts';
import { basename, join } from '../../paths.ts';
import type { Disk } from '../../storage/disk.ts';
import { readLines } from '../../storage/line-log.ts';

/** A value after some training. */
export interface CurvePoint {
  /** Epochs, or rounds, done. */
  readonly x: number;
  readonly y: number;
}

/** One quantity while training (means over short stretches) and on the test data. */
export interface Curve {
  readonly train: readonly CurvePoint[];
  readonly test: readonly CurvePoint[];
}

export interface LearningCurve {
  /** The run folder's name. */
  readonly run: string;
  /** What x counts: epochs where the run has done one, else rounds. */
  readonly unit: 'epoch' | 'round';
  readonly loss: Curve;
  /** Fractions; empty where the loss knows no right predictions. */
  readonly accuracy: Curve;
}

/** Stretches over which rounds are averaged: single rounds are noise. */
const stretchCount = 120;

/** Reads a run's curve. Throws InputError for a folder that holds no metrics. */
export async function readLearningCurve(folder: string, disk: Disk): Promise<LearningCurve> {
  const metrics = (await readLines(join(folder, 'metrics.jsonl'), disk)) ?? [];
  if (metrics.length === 0)
    throw new InputError(
      `${folder} holds no metrics.jsonl with rounds in it: name the folder of a run that has begun to train.`,
    );
  const curve = learningCurve(basename(folder), metrics, (await readLines(join(folder, 'events.jsonl'), disk)) ?? []);
  if (curve.loss.train.length === 0)
    throw new InputError(
      `${folder} has no round with a loss that is a number in its metrics.jsonl: there is nothing to draw.`,
    );
  return curve;
}

/**
 * The curve in the lines of both files. Of a round that was tested twice (the run was resumed before it) the last test
 * counts.
 */
export function learningCurve(
  run: string,
  metrics: readonly Readonly<Record<string, unknown>>[],
  events: readonly Readonly<Record<string, unknown>>[],
): LearningCurve {
  const lastRound = metrics.reduce((last, { round }) => (isRound(round) ? Math.max(last, round) : last), -1);
  const perEpoch = events
    .flatMap(({ event, roundsPerEpoch }) =>
      event === 'training' && isRound(roundsPerEpoch) && roundsPerEpoch > 0 ? [roundsPerEpoch] : [],
    )
    .at(-1);
  const inEpochs = perEpoch !== undefined && lastRound + 1 >= perEpoch;
  const scale = inEpochs ? 1 / perEpoch : 1;
  const tests = new Map(
    events.flatMap((line) =>
      line['event'] === 'evaluated' && isRound(line['round']) ? [[line['round'], line] as const] : [],
    ),
  );
  const tested = [...tests].filter(([round]) => round <= lastRound + 1).sort(([a], [b]) => a - b);
  const curve = (key: 'loss' | 'accuracy'): Curve => ({
    train: means(
      points(metrics.flatMap((line) => (isRound(line['round']) ? [[line['round'] + 1, line[key]] as const] : []))),
      lastRound + 1,
    ).map(({ x, y }) => ({
      x: x * scale,
      y,
    })),
    test: points(tested.map(([round, line]) => [round, line[key]])).map(({ x, y }) => ({ x: x * scale, y })),
  });
  return { run, unit: inEpochs ? 'epoch' : 'round', loss: curve('loss'), accuracy: curve('accuracy') };
}

/** More than any run has; what a damaged line says beyond is no round. */
const maxRound = 1e12;

function isRound(value: unknown): value is number {
  return typeof value === 'number' && Number.isInteger(value) && value >= 0 && value <= maxRound;
}

/**
 * Without those whose value is no number, or none that float32 holds: a loss that was not finite, an accuracy that does
 * not exist.
 */
function points(values: readonly (readonly [x: number, y: unknown])[]): CurvePoint[] {
  return values.flatMap(([x, y]) => (typeof y === 'number' && Number.isFinite(Math.fround(y)) ? [{ x, y }] : []));
}

/** Means over stretches of equal length, each at its middle. */
function means(all: readonly CurvePoint[], endRound: number): CurvePoint[] {
  const length = Math.max(1, endRound / stretchCount);
  const stretches = new Map<number, CurvePoint[]>();
  for (const point of all) {
    const stretch = Math.floor((point.x - 1) / length);
    const members = stretches.get(stretch);
    if (members === undefined) stretches.set(stretch, [point]);
    else members.push(point);
  }
  const mean = (members: readonly CurvePoint[], key: 'x' | 'y'): number =>
    members.reduce((sum, point) => sum + point[key], 0) / members.length;
  return [...stretches.values()].map((members) => ({ x: mean(members, 'x'), y: mean(members, 'y') }));
}
