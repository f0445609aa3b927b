// Events of a round as a Gantt chart in SVG, time to the right: a row for each device's computing, a thin row for the
// AllReduces that overlap with it, and a row for each link that it sends on. Events too narrow to be seen are joined
// with neighbours of the same kind, so that a long round stays a small file. Of a stream, bars carry their round, and
// every other round is paler.

import { svgDocument, svgElement, svgText } from '../svg.ts';
import { passes, payloads } from './passes.ts';
import { isOverlapped, type ProgramEvent } from './program.ts';

export interface GanttOptions {
  /** Default 1200. */
  readonly widthPx?: number;
  readonly title?: string;
}

/** Of what is neither a pass nor a payload. */
const otherColours: Readonly<Record<string, string>> = { 'all-reduce': '#8c62b8', update: '#555' };

/** Colours that differ in lightness too. */
const colours: Readonly<Record<string, string>> = {
  ...coloursOf(passes),
  ...otherColours,
  ...coloursOf(payloads),
};

function coloursOf(table: Readonly<Record<string, { readonly colour: string }>>): Record<string, string> {
  return Object.fromEntries(Object.entries(table).map(([name, { colour }]) => [name, colour]));
}

const [labelPx, rowPx, linkPx, gapPx, topPx, bottomPx] = [150, 22, 8, 6, 48, 34];

/** Narrower than this, events are joined. */
const narrowPx = 0.75;

interface Row {
  readonly name: string;
  readonly heightPx: number;
  readonly events: ProgramEvent[];
}

/** A bar: an event, or several of one kind. */
interface Bar {
  readonly colourOf: string;
  readonly startMs: number;
  readonly endMs: number;
  readonly count: number;
  readonly event: ProgramEvent;
}

/** The chart as SVG text. Devices come in the given order, then those that only events name. */
export function ganttSvg(
  events: readonly ProgramEvent[],
  deviceNames: readonly string[],
  options: GanttOptions = {},
): string {
  const { widthPx = 1200, title = '' } = options;
  const rows = rowsOf(events, deviceNames);
  const endMs = events.reduce((latest, event) => Math.max(latest, event.endMs), 0);
  const pxPerMs = (widthPx - labelPx - 20) / (endMs || 1);
  const parts: string[] = [];
  let y = topPx;
  for (const [index, row] of rows.entries()) {
    if (row.heightPx === rowPx && index > 0) y += gapPx;
    parts.push(...drawRow(row, y, pxPerMs));
    y += row.heightPx + 2;
  }
  const heading = svgElement('text', { x: labelPx, y: 20, 'font-weight': 'bold', 'font-size': 14 }, svgText(title));
  return svgDocument(widthPx, y + bottomPx, heading, ...legend(events), ...axis(endMs, pxPerMs, topPx, y), ...parts);
}

function rowsOf(events: readonly ProgramEvent[], deviceNames: readonly string[]): Row[] {
  const names = [...new Set([...deviceNames, ...events.map((event) => event.device)])];
  return names.flatMap((name) => {
    const own = events.filter((event) => event.device === name);
    const targets = [...new Set(own.flatMap((event) => event.to ?? []))].sort();
    const computing: Row = {
      name,
      heightPx: rowPx,
      events: own.filter((event) => event.to === undefined && !isOverlapped(event)),
    };
    const overlapped: Row = { name: 'all-reduce', heightPx: linkPx, events: own.filter(isOverlapped) };
    return [
      computing,
      ...(overlapped.events.length > 0 ? [overlapped] : []),
      ...targets.map((to) => ({ name: `to ${to}`, heightPx: linkPx, events: own.filter((event) => event.to === to) })),
    ];
  });
}

function drawRow({ name, heightPx, events }: Row, y: number, pxPerMs: number): string[] {
  const isLink = heightPx === linkPx;
  const label = svgElement(
    'text',
    { x: labelPx - 8, y: y + heightPx / 2 + (isLink ? 3 : 4), 'text-anchor': 'end', 'font-size': isLink ? 8 : 12 },
    svgText(name.length > 24 ? `${name.slice(0, 23)}…` : name),
  );
  const bars = joined(
    [...events].sort((a, b) => a.startMs - b.startMs),
    narrowPx / pxPerMs,
  );
  return [label, ...bars.flatMap((bar) => drawBar(bar, y, heightPx, pxPerMs))];
}

/** Joins neighbours of one kind that are narrower than `narrowMs`, and as near. */
function joined(events: readonly ProgramEvent[], narrowMs: number): Bar[] {
  const bars: Bar[] = [];
  for (const event of events) {
    const colourOf = event.payload ?? event.kind;
    const last = bars.at(-1);
    const isNarrow = event.endMs - event.startMs < narrowMs;
    if (last?.colourOf === colourOf && isNarrow && event.startMs - last.endMs < narrowMs)
      bars[bars.length - 1] = { ...last, endMs: Math.max(last.endMs, event.endMs), count: last.count + 1 };
    else bars.push({ colourOf, startMs: event.startMs, endMs: event.endMs, count: 1, event });
  }
  return bars;
}

function drawBar(
  { colourOf, startMs, endMs, count, event }: Bar,
  y: number,
  heightPx: number,
  pxPerMs: number,
): string[] {
  const width = Math.max((endMs - startMs) * pxPerMs, 0.3);
  const x = labelPx + startMs * pxPerMs;
  const batch = event.microBatch === undefined ? '' : ` ${numberOf(event)}`;
  const about = count > 1 ? `${count} x ${colourOf}` : `${colourOf}${batch}`;
  const size = event.bytes === undefined ? '' : `, ${event.bytes} bytes each`;
  const tip = `${about}: ${startMs.toFixed(3)} to ${endMs.toFixed(3)} ms${size}`;
  const bar = svgElement(
    'rect',
    {
      x,
      y,
      width,
      height: heightPx,
      fill: colours[colourOf] ?? '#bbb',
      ...((event.round ?? 0) % 2 === 0 ? {} : { 'fill-opacity': 0.65 }),
      stroke: '#fff',
      'stroke-width': width > 3 ? 0.5 : 0,
    },
    svgElement('title', {}, svgText(tip)),
  );
  const number = batch.trim();
  if (count > 1 || number === '' || heightPx < rowPx || width < 7 * number.length + 4) return [bar];
  return [
    bar,
    svgElement(
      'text',
      { x: x + width / 2, y: y + heightPx / 2 + 4, 'text-anchor': 'middle', 'font-size': 10, fill: '#fff' },
      number,
    ),
  ];
}

/** A micro-batch; of a stream, with its round: "2.0" is the first of round 2. */
export function numberOf({ round, microBatch = 0 }: Pick<ProgramEvent, 'round' | 'microBatch'>): string {
  return round === undefined ? String(microBatch) : `${round}.${microBatch}`;
}

function legend(events: readonly ProgramEvent[]): string[] {
  const present = new Set(events.map((event) => event.payload ?? event.kind));
  let x = labelPx;
  return Object.entries(colours)
    .filter(([kind]) => present.has(kind as ProgramEvent['kind']))
    .flatMap(([kind, fill]) => {
      const at = x;
      x += 26 + 7 * kind.length;
      return [
        svgElement('rect', { x: at, y: 29, width: 11, height: 11, fill }),
        svgElement('text', { x: at + 15, y: 39, 'font-size': 11 }, kind),
      ];
    });
}

function axis(endMs: number, pxPerMs: number, top: number, bottom: number): string[] {
  const tickMs = tickStep(endMs);
  const ticks = Array.from({ length: Math.floor(endMs / tickMs) + 1 }, (_, index) => index * tickMs);
  return ticks.flatMap((ms) => {
    const x = labelPx + ms * pxPerMs;
    return [
      svgElement('line', { x1: x, x2: x, y1: top, y2: bottom + 4, stroke: '#ddd' }),
      svgElement(
        'text',
        { x, y: bottom + 18, 'text-anchor': 'middle', 'font-size': 11 },
        `${Number(ms.toPrecision(6))} ms`,
      ),
    ];
  });
}

/** 1, 2 or 5 times a power of ten, for at most ten ticks. */
function tickStep(endMs: number): number {
  if (!(endMs > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(endMs / 10));
  return ([1, 2, 5, 10].find((factor) => endMs / (factor * power) <= 10) ?? 10) * power;
}
