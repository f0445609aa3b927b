// The pipeline as a living picture: stages and their devices, micro-batches that move between them, who waits for whom;
// below it the same round as a chart over time. A round is played slowed down, again and again.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import type { Plan } from '../../cluster/cluster.ts';
import { duration } from '../../measures.ts';
import { activityAt, longestWaits, type Play, playOf } from '../play.ts';
import type { Span, View } from '../view.ts';
import { layoutOf, type Picture, type Place } from './picture.ts';
import { type PlayClock, playMs, usePlayClock } from './play-clock.ts';
import { Timeline } from './timeline.tsx';
import { time } from './times.tsx';

/** The picture, the chart, and the longest waits in words. */
export function Pipeline({ view }: { readonly view: View }) {
  const [wish, setWish] = useState<Play['kind']>('measured');
  const { measured, prediction, plan } = view;
  const other = wish === 'measured' ? 'predicted' : 'measured';
  const play = useMemo(() => playOf(view, wish) ?? playOf(view, other), [measured, prediction, plan, wish]);
  const clock = usePlayClock(play);
  return (
    <section class="card pipeline" aria-labelledby="pipeline-title">
      <div class="card-head">
        <h2 id="pipeline-title">Pipeline</h2>
        <span class="dim">{play === undefined ? '' : captionOf(play)}</span>
        <span class="spacer" />
        {play !== undefined && prediction !== null && measured !== null && (
          <fieldset class="choices" aria-label="which round">
            {(['measured', 'predicted'] as const).map((kind) => (
              <button type="button" key={kind} aria-pressed={play.kind === kind} onClick={() => setWish(kind)}>
                {kind}
              </button>
            ))}
          </fieldset>
        )}
      </div>
      {plan === null ? <p class="dim empty">The plan comes when the devices are measured.</p> : null}
      {plan !== null && <Stages view={view} plan={plan} play={play} clock={clock} />}
      {play !== undefined && <Timeline play={play} clock={clock} />}
      {play !== undefined && <Waits play={play} />}
    </section>
  );
}

function captionOf({ kind, round, lengthMs }: Play): string {
  const slower = playMs / lengthMs;
  const pace = slower > 1.5 ? `, ${Math.round(slower)} times slower` : '';
  return `${kind === 'measured' ? `round ${round}` : 'a round'} of ${duration(lengthMs / 1000)}${pace}`;
}

interface StagesProps {
  readonly view: View;
  readonly plan: Plan;
  readonly play: Play | undefined;
  readonly clock: PlayClock;
}

const mostDots = 48;

function Stages({ view, plan, play, clock }: StagesProps) {
  const box = useRef<HTMLDivElement>(null);
  const svg = useRef<SVGSVGElement>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const element = box.current;
    if (element === null) return undefined;
    const look = (): void => setWidth(element.clientWidth);
    const resized = new ResizeObserver(look);
    resized.observe(element);
    look();
    return () => resized.disconnect();
  }, []);
  const picture = useMemo(() => layoutOf(plan, Math.max(260, width)), [plan, width]);
  useEffect(
    () => (play === undefined ? undefined : clock.subscribe((atMs) => paint(svg.current, picture, play, atMs))),
    [clock, picture, play],
  );
  const gone = new Set(view.devices.filter(({ isPresent }) => !isPresent).map(({ name }) => name));
  return (
    <div ref={box} class="stages">
      <svg
        ref={svg}
        width={picture.width}
        height={picture.height}
        viewBox={`0 0 ${picture.width} ${picture.height}`}
        role="img"
        aria-label={`${plan.stages.length} stages: ${plan.stages.map((stage, index) => `stage ${index} on ${stage.devices.join(', ')}`).join('; ')}`}
      >
        {picture.arrows.map((arrow) => (
          <path key={arrow} class="arrow" d={arrow} />
        ))}
        {picture.stages.map(({ x, y, width: w, height: h, title, detail }) => (
          <g key={title}>
            <rect class="stage" x={x} y={y} width={w} height={h} rx="10" />
            <text class="stage-title" x={x + 12} y={y + 21}>
              {title}
            </text>
            <text class="stage-detail" x={x + w - 12} y={y + 21} text-anchor="end">
              {detail}
            </text>
          </g>
        ))}
        {picture.places.map((place) => (
          <DeviceRow key={place.device} place={place} isGone={gone.has(place.device)} />
        ))}
        <g class="dots">
          {Array.from({ length: mostDots }, (_, index) => (
            <g key={index} class="dot" visibility="hidden">
              <circle r="9" />
              <text dy="3.5" text-anchor="middle" />
            </g>
          ))}
        </g>
      </svg>
    </div>
  );
}

function DeviceRow({ place, isGone }: { readonly place: Place; readonly isGone: boolean }) {
  const { device, x, y, width, height } = place;
  return (
    <g class={isGone ? 'row gone' : 'row'} data-device={device}>
      <rect class="row-box idle" x={x} y={y} width={width} height={height} rx="6" />
      <text class="row-name" x={x + 10} y={y + height / 2 + 4}>
        {device.length > 18 ? `${device.slice(0, 17)}…` : device}
      </text>
      <text class="row-work" x={x + width - 10} y={y + height / 2 + 4} text-anchor="end" />
    </g>
  );
}

/** Shows the picture at a time of the round. */
function paint(svg: SVGSVGElement | null, picture: Picture, play: Play, atMs: number): void {
  if (svg === null) return;
  for (const row of svg.querySelectorAll<SVGGElement>('.row')) {
    const now = activityAt(play, row.dataset['device'] ?? '', atMs);
    const rect = row.querySelector('.row-box');
    const text = row.querySelector('.row-work');
    const kind = `row-box ${classOf(now)}`;
    const words = wordsOf(now);
    if (rect !== null && rect.getAttribute('class') !== kind) rect.setAttribute('class', kind);
    if (text !== null && text.textContent !== words) text.textContent = words;
  }
  const least = play.lengthMs * 0.035;
  const moving = play.travels.filter(
    ({ startMs, endMs }) => startMs <= atMs && atMs < Math.max(endMs, startMs + least),
  );
  const dots = svg.querySelectorAll<SVGGElement>('.dot');
  for (const [index, dot] of dots.entries()) {
    const travel = moving[index];
    const at = travel && placeOf(picture, travel, atMs, least);
    if (travel === undefined || at === undefined) {
      if (dot.getAttribute('visibility') !== 'hidden') dot.setAttribute('visibility', 'hidden');
      continue;
    }
    dot.setAttribute('visibility', 'visible');
    dot.setAttribute('class', `dot ${at.isForward ? 'forward' : 'backward'}`);
    dot.setAttribute('transform', `translate(${at.x.toFixed(1)} ${at.y.toFixed(1)})`);
    const text = dot.lastElementChild;
    const number = travel.microBatch === undefined ? '' : String(travel.microBatch);
    if (text !== null && text.textContent !== number) text.textContent = number;
  }
}

function placeOf(
  { places }: Picture,
  { device, peer, startMs, endMs }: Span,
  atMs: number,
  least: number,
): { readonly x: number; readonly y: number; readonly isForward: boolean } | undefined {
  const from = places.find((place) => place.device === device);
  const to = places.find((place) => place.device === peer);
  if (from === undefined || to === undefined) return undefined;
  const share = (atMs - startMs) / Math.max(endMs - startMs, least);
  const isForward = to.stage >= from.stage;
  const [start, end] = isForward ? [from.out, to.in] : [from.in, to.out];
  return { x: start[0] + (end[0] - start[0]) * share, y: start[1] + (end[1] - start[1]) * share, isForward };
}

function classOf(span: Span | undefined): string {
  if (span === undefined) return 'idle';
  if (span.kind === 'forward' || span.kind === 'tangent') return 'forward';
  if (span.kind.startsWith('backward')) return 'backward';
  return span.kind === 'wait' ? 'wait' : 'update';
}

function wordsOf(span: Span | undefined): string {
  if (span === undefined) return '';
  if (span.kind === 'wait') return `waits for ${span.peer}`;
  const name = span.kind === 'all-reduce' ? 'sums' : span.kind.split('-')[0];
  return span.microBatch === undefined ? `${name}` : `${name} ${span.microBatch}`;
}

function Waits({ play }: { readonly play: Play }) {
  const waits = longestWaits(play).slice(0, 4);
  return (
    <ul class="waits" aria-label="who waits for whom">
      {waits.map(({ device, peer, ms }) => (
        <li key={`${device} ${peer}`}>
          <b>{device}</b> waits for <b>{peer}</b>{' '}
          <span class="dim">
            {time(ms)}, {Math.round((100 * ms) / play.lengthMs)} % of the round
          </span>
        </li>
      ))}
    </ul>
  );
}
