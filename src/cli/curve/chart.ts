// A learning curve as panels, before it is drawn: which lines, over which range, with which ticks. Terminal and SVG
// draw the same panels.

import type { Curve, CurvePoint, LearningCurve } from '../../runtime/run/learning-curve.ts';

/** A range and the ticks in it, which are round numbers. */
export interface Axis {
  readonly least: number;
  readonly most: number;
  readonly ticks: readonly number[];
}

/** One quantity over the same x. */
export interface Panel {
  readonly title: string;
  readonly curve: Curve;
  readonly x: Axis;
  readonly y: Axis;
  /** How a value is written. */
  format(value: number): string;
}

/** The panels of a curve: loss, and accuracy where there is one. */
export function panels({ unit, loss, accuracy }: LearningCurve): Panel[] {
  // A round whose loss is not a finite number may have an accuracy.
  const all = [loss, accuracy].flatMap(({ train, test }) => [...train, ...test]).map((point) => point.x);
  const x: Axis = { ...axis(0, Math.max(...all), 8), least: 0, most: Math.max(...all) };
  const whole = { ...x, ticks: x.ticks.filter((tick) => Number.isInteger(tick) && tick <= x.most) };
  const panel = (title: string, curve: Curve, format: Panel['format']): Panel => ({
    title,
    curve,
    x: whole,
    y: rangeOf(curve),
    format,
  });
  const result = [panel(`loss by ${unit}`, loss, (value) => value.toPrecision(3).replace(/\.?0+$/, '') || '0')];
  if (accuracy.train.length > 0)
    result.push(panel(`accuracy by ${unit}`, accuracy, (value) => `${trimmed(value * 100)} %`));
  return result;
}

function trimmed(value: number): string {
  return value.toFixed(2).replace(/\.?0+$/, '');
}

/**
 * From the lowest value to the highest after the first twentieth of the rounds: a falling loss starts so high that it
 * would flatten the rest.
 */
function rangeOf({ train, test }: Curve): Axis {
  const values = (some: readonly CurvePoint[]): number[] => some.map(({ y }) => y);
  const late = train.slice(Math.floor(train.length / 20));
  const [settled, all] = [
    [...values(late), ...values(test)],
    [...values(train), ...values(test)],
  ];
  const isFalling = (train[0]?.y ?? 0) > (train.at(-1)?.y ?? 0);
  return axis(Math.min(...(isFalling ? all : settled)), Math.max(...(isFalling ? settled : all)), 5);
}

/** An axis over at least [from, to] with about `count` ticks at round numbers. */
export function axis(from: number, to: number, count: number): Axis {
  // Values whose difference would not be visible in the labels count as equal.
  const span = to - from > Math.abs(to) * 1e-9 ? to - from : Math.abs(to) || 1;
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) ?? 10) * power;
  const first = Math.floor(from / step + 1e-9);
  const last = Math.max(first + 1, Math.ceil(to / step - 1e-9));
  const ticks = Array.from({ length: last - first + 1 }, (_, index) =>
    Number(((first + index) * step).toPrecision(12)),
  );
  return { least: ticks[0] as number, most: ticks.at(-1) as number, ticks };
}

/** Where a value is on an axis: 0 at its least, 1 at its most; outside of 0 to 1 beyond them. */
export function place({ least, most }: Axis, value: number): number {
  return (value - least) / (most - least);
}
