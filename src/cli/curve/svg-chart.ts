// Panels as one SVG picture, side by side: a line for the training data, a line with points for the tests, a
// legend. No scripts, no fonts.

import type { CurvePoint, LearningCurve } from '../../runtime/run/learning-curve.ts';
import { type Panel, panels, place } from './chart.ts';

const [panelWidth, panelHeight] = [420, 300];
const margin = { left: 58, right: 18, top: 62, bottom: 42 };

/** Values of `fill` and `stroke`. */
export interface ChartColors {
  readonly train: string;
  readonly test: string;
  readonly grid: string;
  readonly text: string;
  readonly faint: string;
  readonly ground: string;
}

const onWhite: ChartColors = {
  train: '#7aa6d6',
  test: '#c2410c',
  grid: '#e5e7eb',
  text: '#374151',
  faint: '#6b7280',
  ground: '#ffffff',
};

/** The picture, self-contained. */
export function curveSvg(curve: LearningCurve): string {
  const parts = panels(curve);
  const [width, height] = [panelWidth * parts.length, panelHeight];
  const body = parts.map(
    (panel, index) => `<g transform="translate(${index * panelWidth} 0)">\n${drawn(panel, onWhite)}\n</g>`,
  );
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" ` +
      `height="${height}" font-family="system-ui, sans-serif" font-size="12">`,
    `<title>${escaped(`Learning curve of ${curve.run}`)}</title>`,
    `<rect width="${width}" height="${height}" fill="#ffffff"/>`,
    clipPath('plot'),
    ...body,
    '</svg>',
    '',
  ].join('\n');
}

/** One panel as a picture of its own, for a page that says its colours; as wide as the page lets it be. */
export function panelSvg(panel: Panel, colors: ChartColors, id: string): string {
  return [
    `<svg viewBox="0 0 ${panelWidth} ${panelHeight}" role="img" font-size="12">`,
    `<title>${escaped(capital(panel.title))}</title>`,
    clipPath(id),
    drawn(panel, colors, id),
    '</svg>',
  ].join('\n');
}

function clipPath(id: string): string {
  const plot =
    `x="${margin.left}" y="${margin.top - 2}" width="${panelWidth - margin.left - margin.right + 4}" ` +
    `height="${panelHeight - margin.top - margin.bottom + 4}"`;
  return `<clipPath id="${id}"><rect ${plot}/></clipPath>`;
}

function drawn(panel: Panel, colors: ChartColors, clip = 'plot'): string {
  const { x, y, curve, title, format } = panel;
  const [right, bottom] = [panelWidth - margin.right, panelHeight - margin.bottom];
  const across = (value: number): number => round(margin.left + place(x, value) * (right - margin.left));
  const up = (value: number): number => round(bottom - place(y, value) * (bottom - margin.top));
  const line = (points: readonly CurvePoint[]): string =>
    points.map((point) => `${across(point.x)},${up(point.y)}`).join(' ');
  const last = curve.test.at(-1);
  return [
    `<text x="${margin.left}" y="24" font-size="15" font-weight="600" ` +
      `fill="${colors.text}">${escaped(capital(title))}</text>`,
    legend([margin.left, 44], 'training', colors.train, colors),
    ...(curve.test.length > 0 ? [legend([margin.left + 92, 44], 'test', colors.test, colors)] : []),
    ...y.ticks.map(
      (tick) =>
        `<line x1="${margin.left}" y1="${up(tick)}" x2="${right}" y2="${up(tick)}" stroke="${colors.grid}"/>` +
        `<text x="${margin.left - 8}" y="${up(tick) + 4}" text-anchor="end" ` +
        `fill="${colors.faint}">${escaped(format(tick))}</text>`,
    ),
    ...x.ticks.map(
      (tick) =>
        `<text x="${across(tick)}" y="${bottom + 20}" text-anchor="middle" fill="${colors.faint}">${tick}</text>`,
    ),
    `<polyline clip-path="url(#${clip})" points="${line(curve.train)}" fill="none" stroke="${colors.train}" ` +
      'stroke-width="1.5" stroke-linejoin="round"/>',
    ...(curve.test.length > 1
      ? [
          `<polyline clip-path="url(#${clip})" points="${line(curve.test)}" fill="none" stroke="${colors.test}" ` +
            'stroke-width="2" stroke-linejoin="round"/>',
        ]
      : []),
    ...curve.test.map(
      (point) =>
        `<circle clip-path="url(#${clip})" cx="${across(point.x)}" cy="${up(point.y)}" r="3" fill="${colors.test}"/>`,
    ),
    ...(last === undefined
      ? []
      : [label([across(last.x), up(last.y)], format(last.y), (curve.train.at(-1)?.y ?? 0) > last.y, colors)]),
  ].join('\n');
}

/** The value of the last test, on the side of its point that is away from the training line. */
function label([x, y]: readonly [number, number], text: string, isBelow: boolean, colors: ChartColors): string {
  const halo = `stroke="${colors.ground}" stroke-width="4" paint-order="stroke"`;
  return (
    `<text x="${x}" y="${y + (isBelow ? 20 : -10)}" text-anchor="end" font-weight="600" fill="${colors.test}" ` +
    `${halo}>${escaped(text)}</text>`
  );
}

function legend([x, y]: readonly [number, number], text: string, color: string, colors: ChartColors): string {
  return (
    `<line x1="${x}" y1="${y - 4}" x2="${x + 18}" y2="${y - 4}" stroke="${color}" stroke-width="3"/>` +
    `<text x="${x + 24}" y="${y}" fill="${colors.text}">${text}</text>`
  );
}

function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}

function escaped(text: string): string {
  return text.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;').replace(/"/g, '&quot;');
}
