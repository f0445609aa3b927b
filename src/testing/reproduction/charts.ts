// Bar and line charts in SVG, with just the features that docs/reproduction.md needs.

import { svgDocument, svgElement, svgText } from '../../svg.ts';

export interface Series {
  readonly name: string;
  /** One for each group; undefined: out of memory, drawn as ×. */
  readonly values: readonly (number | undefined)[];
}

export interface BarChart {
  readonly title: string;
  /** What the bars measure. */
  readonly unit: string;
  readonly groups: readonly string[];
  readonly series: readonly Series[];
  /** The value of a horizontal reference line, such as 1 for equal speed. */
  readonly reference?: number;
}

const palette: readonly string[] = ['#b9c4d0', '#7fa7d1', '#3f77b5', '#e0a458', '#c8553d', '#6a994e', '#8c62b8'];
const [left, right, top, bottom, height] = [64, 20, 62, 40, 250];

/** A bar chart with grouped bars, from zero up. */
export function barChart({ title, unit, groups, series, reference }: BarChart): string {
  const barPx = Math.max(9, Math.min(26, 640 / (groups.length * (series.length + 1))));
  const groupPx = barPx * (series.length + 1);
  const width = Math.max(left + groups.length * groupPx + right, 460);
  const most = Math.max(...series.flatMap(({ values }) => values.map((value) => value ?? 0)), reference ?? 0) || 1;
  const { ticks, end } = scale(most);
  const y = (value: number): number => top + height * (1 - value / end);
  const parts = grid(ticks, y, width, unit);
  for (const [group, name] of groups.entries()) {
    const x = left + group * groupPx + barPx / 2;
    for (const [index, { name: of, values }] of series.entries()) {
      const value = values[group];
      const at = x + index * barPx;
      if (value === undefined) parts.push(centredText(at + barPx / 2, y(0) - 4, 13, '×', { fill: '#b00' }));
      else {
        const tip = svgElement('title', {}, svgText(`${of}, ${name}: ${Number(value.toPrecision(4))} ${unit}`));
        const bar = { x: at, y: y(value), width: barPx - 1.5, height: y(0) - y(value), fill: colour(index) };
        parts.push(svgElement('rect', bar, tip));
        if (barPx >= 20 && value > 0)
          parts.push(centredText(at + barPx / 2, y(value) - 3, 8, String(Number(value.toPrecision(2)))));
      }
    }
    parts.push(centredText(x + (groupPx - barPx) / 2, y(0) + 16, 11, svgText(name)));
  }
  if (reference !== undefined)
    parts.push(
      svgElement('line', {
        x1: left,
        x2: width - right,
        y1: y(reference),
        y2: y(reference),
        stroke: '#b00',
        'stroke-dasharray': '4 3',
      }),
    );
  return svgDocument(width, top + height + bottom, ...heading(title, series), ...parts);
}

export interface LineChart {
  readonly title: string;
  readonly unit: string;
  readonly xName: string;
  readonly xs: readonly number[];
  readonly series: readonly (Series & { readonly dashed?: boolean })[];
  /** The xs labelled on the axis. Default: all. */
  readonly ticks?: readonly number[];
}

/** Lines over a common axis; gaps where there is no value. */
export function lineChart({ title, unit, xName, xs, series, ticks: named = xs }: LineChart): string {
  const width = 640;
  const most = Math.max(...series.flatMap(({ values }) => values.map((value) => value ?? 0))) || 1;
  const { ticks, end } = scale(most);
  const y = (value: number): number => top + height * (1 - value / end);
  const [first, last] = [Math.min(...xs), Math.max(...xs)];
  const x = (value: number): number =>
    left + 16 + ((value - first) / (last - first || 1)) * (width - left - right - 32);
  const parts = grid(ticks, y, width, unit);
  for (const value of named) parts.push(centredText(x(value), y(0) + 16, 11, String(value)));
  parts.push(centredText((left + width) / 2, y(0) + 32, 11, svgText(xName)));
  for (const [index, { name, values, dashed }] of series.entries()) {
    let path = '';
    for (const [place, at] of xs.entries()) {
      const value = values[place];
      if (value === undefined) continue;
      path += `${path === '' || values[place - 1] === undefined ? 'M' : 'L'}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      const tip = svgElement('title', {}, svgText(`${name}, ${at}: ${Number(value.toPrecision(4))} ${unit}`));
      parts.push(svgElement('circle', { cx: x(at), cy: y(value), r: 3, fill: lineColour(index) }, tip));
    }
    const dash = dashed === true ? { 'stroke-dasharray': '5 4' } : {};
    parts.push(svgElement('path', { d: path, fill: 'none', stroke: lineColour(index), 'stroke-width': 2, ...dash }));
  }
  return svgDocument(width, top + height + bottom, ...heading(title, series, lineColour), ...parts);
}

/** Text centred at x, of this size in pixels. */
function centredText(x: number, y: number, size: number, content: string, attributes: { fill?: string } = {}): string {
  return svgElement('text', { x, y, 'text-anchor': 'middle', ...attributes, 'font-size': size }, content);
}

function colour(index: number): string {
  return palette[index % palette.length] ?? '#888';
}

/** A line's colour: lines need more contrast than areas. */
function lineColour(index: number): string {
  return palette[(index + 2) % palette.length] ?? '#888';
}

function heading(title: string, series: readonly Series[], colourOf: (index: number) => string = colour): string[] {
  let x = left;
  const legend = series.flatMap(({ name }, index) => {
    const at = x;
    x += 28 + 6.6 * name.length;
    return [
      svgElement('rect', { x: at, y: 32, width: 11, height: 11, fill: colourOf(index) }),
      svgElement('text', { x: at + 15, y: 42, 'font-size': 11 }, svgText(name)),
    ];
  });
  return [svgElement('text', { x: left, y: 20, 'font-weight': 'bold', 'font-size': 14 }, svgText(title)), ...legend];
}

function grid(ticks: readonly number[], y: (value: number) => number, width: number, unit: string): string[] {
  const lines = ticks.flatMap((tick) => [
    svgElement('line', {
      x1: left,
      x2: width - right,
      y1: y(tick),
      y2: y(tick),
      stroke: tick === 0 ? '#555' : '#e3e3e3',
    }),
    svgElement('text', { x: left - 6, y: y(tick) + 4, 'text-anchor': 'end', 'font-size': 11 }, String(tick)),
  ]);
  const middle = top + height / 2;
  const name = svgElement(
    'text',
    { x: 16, y: middle, 'text-anchor': 'middle', 'font-size': 11, transform: `rotate(-90 16 ${middle})` },
    svgText(unit),
  );
  return [...lines, name];
}

/** Round ticks from 0 to the first one not below `most`. */
function scale(most: number): { readonly ticks: readonly number[]; readonly end: number } {
  const power = 10 ** Math.floor(Math.log10(most / 5));
  const step = ([1, 2, 2.5, 5, 10].find((factor) => most / (factor * power) <= 6) ?? 10) * power;
  const count = Math.ceil(most / step - 1e-9);
  const ticks = Array.from({ length: count + 1 }, (_, index) => Number((index * step).toPrecision(10)));
  return { ticks, end: count * step };
}
