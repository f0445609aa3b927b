// Loss, accuracy and speed over the rounds (uPlot), with what happened marked on them.

import { useEffect, useRef } from 'preact/hooks';
import uPlot from 'uplot';
import type { CurvePoint } from '../curve.ts';
import type { View } from '../view.ts';

interface Shown {
  readonly title: string;
  readonly unit: string;
  readonly color: string;
  value(point: CurvePoint): number | null;
  /** A second line. */
  readonly other?: { readonly name: string; values(view: View): ReadonlyMap<number, number> };
}

const charts: readonly Shown[] = [
  { title: 'Loss', unit: '', color: '--blue', value: ({ loss }) => loss },
  { title: 'Right predictions', unit: '%', color: '--green', value: ({ accuracy }) => accuracy && accuracy * 100 },
  { title: 'Speed', unit: 'samples/s', color: '--orange', value: ({ samplesPerS }) => samplesPerS },
];

/** The curves. */
export function Curves({ view }: { readonly view: View }) {
  return (
    <section class="card curves" aria-labelledby="curves-title">
      <h2 id="curves-title">Curves</h2>
      <div class="charts">
        {charts.map((shown) => (
          <Chart key={shown.title} shown={shown} view={view} />
        ))}
      </div>
    </section>
  );
}

const height = 170;
/** Rounds between two lines of the grid. */
const roundSteps = Array.from({ length: 9 }, (_, power) => [1, 2, 5].map((step) => step * 10 ** power)).flat();

function Chart({ shown, view }: { readonly shown: Shown; readonly view: View }) {
  const place = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot | undefined>(undefined);
  const latest = useRef(view);
  latest.current = view;
  useEffect(() => {
    const element = place.current;
    if (element === null) return undefined;
    const make = (): void => {
      chart.current?.destroy();
      chart.current = new uPlot(
        optionsOf(shown, element, () => latest.current),
        dataOf(shown, latest.current),
        element,
      );
    };
    make();
    const resized = new ResizeObserver(() => chart.current?.setSize({ width: element.clientWidth, height }));
    resized.observe(element);
    const scheme = matchMedia('(prefers-color-scheme: dark)');
    scheme.addEventListener('change', make);
    return () => {
      resized.disconnect();
      scheme.removeEventListener('change', make);
      chart.current?.destroy();
    };
  }, [shown]);
  const { points } = view.curve;
  const key = `${points.length} ${points.at(-1)?.round} ${points.at(-1)?.count} ${view.marks.length}`;
  useEffect(() => chart.current?.setData(dataOf(shown, view)), [key, shown]);
  const last = points.at(-1);
  const value = last === undefined ? null : shown.value(last);
  const said = value === null ? 'no value yet' : `${value.toPrecision(4)} ${shown.unit}`;
  return (
    <figure class="chart">
      <figcaption>
        {shown.title} {shown.unit !== '' && <span class="dim">{shown.unit}</span>}
      </figcaption>
      <div ref={place} class="plot" role="img" aria-label={`${shown.title} over the rounds; now ${said}`} />
    </figure>
  );
}

function dataOf(shown: Shown, { curve }: View): uPlot.AlignedData {
  return [curve.points.map(({ round }) => round), curve.points.map((point) => shown.value(point))];
}

function optionsOf({ title, color: name }: Shown, element: HTMLElement, view: () => View): uPlot.Options {
  const style = getComputedStyle(document.documentElement);
  const color = (variable: string): string => style.getPropertyValue(variable).trim();
  const axis = { stroke: color('--dim'), grid: { stroke: color('--line'), width: 1 }, ticks: { show: false } };
  const font = `11px ${style.getPropertyValue('font-family') || 'sans-serif'}`;
  return {
    width: Math.max(200, element.clientWidth),
    height,
    legend: { show: false },
    cursor: { drag: { x: true, y: false }, points: { size: 6 } },
    scales: { x: { time: false } },
    series: [{ label: 'round' }, { label: title, stroke: color(name), width: 2, points: { show: false } }],
    axes: [
      { ...axis, font, size: 26, space: 44, incrs: roundSteps },
      { ...axis, font, size: 52 },
    ],
    hooks: { draw: [(plot) => drawMarks(plot, view(), color)] },
  };
}

/** A line where something happened. */
function drawMarks(plot: uPlot, { marks }: View, color: (variable: string) => string): void {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.setLineDash([4, 4]);
  ctx.lineWidth = 1.5;
  for (const { round, tone } of marks) {
    const x = Math.round(plot.valToPos(round, 'x', true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = color(tone === 'bad' ? '--red' : tone === 'good' ? '--green' : '--dim');
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}
