// A round over time, one row a device: forward, backward, update, waits. Drawn once; the line of the time moves on it.

import { useEffect, useRef } from 'preact/hooks';
import type { Play } from '../play.ts';
import type { PlayClock } from './play-clock.ts';
import { time } from './times.tsx';

const [rowHeight, labelWidth, footHeight] = [22, 92, 18] as const;

const colors: Readonly<Record<string, string>> = {
  forward: '--blue',
  tangent: '--blue',
  update: '--violet',
  'all-reduce': '--green',
  wait: '--wait',
};

/** The chart with its legend. */
export function Timeline({ play, clock }: { readonly play: Play; readonly clock: PlayClock }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const line = useRef<HTMLDivElement>(null);
  const height = play.devices.length * rowHeight + footHeight;
  useEffect(() => {
    const element = canvas.current;
    if (element === null) return undefined;
    const redraw = (): void => draw(element, play, height);
    const resized = new ResizeObserver(redraw);
    resized.observe(element);
    const scheme = matchMedia('(prefers-color-scheme: dark)');
    scheme.addEventListener('change', redraw);
    redraw();
    return () => {
      resized.disconnect();
      scheme.removeEventListener('change', redraw);
    };
  }, [play, height]);
  useEffect(
    () =>
      clock.subscribe((atMs) => {
        const width = canvas.current?.clientWidth ?? 0;
        const x = labelWidth + ((width - labelWidth) * atMs) / play.lengthMs;
        if (line.current !== null) line.current.style.transform = `translateX(${x.toFixed(1)}px)`;
      }),
    [clock, play],
  );
  return (
    <div class="timeline">
      <canvas
        ref={canvas}
        style={{ height: `${height}px` }}
        role="img"
        aria-label={`what ${play.devices.length} devices do in a round of ${time(play.lengthMs)}`}
      />
      <div ref={line} class="now" style={{ height: `${height - footHeight}px` }} />
      <p class="dim legend">
        <i class="swatch forward" /> forward <i class="swatch backward" /> backward <i class="swatch sum" /> AllReduce{' '}
        <i class="swatch update" /> update <i class="swatch wait" /> waits
      </p>
    </div>
  );
}

function draw(canvas: HTMLCanvasElement, play: Play, height: number): void {
  const scale = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext('2d');
  if (context === null) return;
  const style = getComputedStyle(document.documentElement);
  const color = (name: string): string => style.getPropertyValue(name).trim();
  context.scale(scale, scale);
  context.font = '12px system-ui, sans-serif';
  context.textBaseline = 'middle';
  const chart = width - labelWidth;
  const xOf = (ms: number): number => labelWidth + (chart * ms) / play.lengthMs;
  for (const [index, device] of play.devices.entries()) {
    const y = index * rowHeight;
    context.fillStyle = color('--text');
    context.fillText(device.length > 13 ? `${device.slice(0, 12)}…` : device, 0, y + rowHeight / 2);
    context.fillStyle = color('--well');
    context.fillRect(labelWidth, y + 3, chart, rowHeight - 6);
    const waits = play.waits.filter((wait) => wait.device === device);
    for (const span of [...waits, ...(play.work[device] ?? [])]) {
      context.fillStyle = color(span.kind.startsWith('backward') ? '--orange' : (colors[span.kind] ?? '--dim'));
      const x = xOf(span.startMs);
      const wide = Math.max(1, xOf(span.endMs) - x - 0.5);
      context.fillRect(x, y + 3, wide, rowHeight - 6);
      if (span.microBatch === undefined || wide < 16) continue;
      context.fillStyle = color('--on-color');
      context.fillText(String(span.microBatch), x + 4, y + rowHeight / 2 + 0.5);
    }
  }
  context.fillStyle = color('--dim');
  context.fillText('0', labelWidth, height - footHeight / 2 + 2);
  context.textAlign = 'right';
  context.fillText(time(play.lengthMs), width, height - footHeight / 2 + 2);
}
