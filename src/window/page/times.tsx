// What each stage and link takes of a round: predicted beside measured.

import { duration } from '../../measures.ts';
import type { LinkTime, View } from '../view.ts';

interface Row {
  readonly name: string;
  readonly predictedMs: number | undefined;
  readonly measuredMs: number | undefined;
}

/** Stages and links. */
export function Times({ view }: { readonly view: View }) {
  if (view.plan === null) return null;
  const rows = [...stageRows(view), ...linkRows(view)];
  const most = Math.max(1e-9, ...rows.flatMap(({ predictedMs = 0, measuredMs = 0 }) => [predictedMs, measuredMs]));
  return (
    <section class="card times" aria-labelledby="times-title">
      <h2 id="times-title">Time in a round</h2>
      <p class="dim legend">
        <i class="swatch predicted" /> predicted <i class="swatch measured" /> measured
      </p>
      <table>
        <thead class="hidden">
          <tr>
            <th>what</th>
            <th>predicted and measured</th>
          </tr>
        </thead>
        <tbody>
          {rows.map(({ name, predictedMs, measuredMs }) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              <td>
                <Bar kind="predicted" ms={predictedMs} most={most} />
                <Bar kind="measured" ms={measuredMs} most={most} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Bar({ kind, ms, most }: { readonly kind: string; readonly ms: number | undefined; readonly most: number }) {
  return (
    <div class="time">
      <span class="track">
        <span class={`fill ${kind}`} style={{ width: `${(100 * (ms ?? 0)) / most}%` }} />
      </span>
      <span class="value">{ms === undefined ? '–' : time(ms)}</span>
    </div>
  );
}

/** "0.42 ms", "12.3 ms", "1.4 s". */
export function time(ms: number): string {
  return ms < 99.5 ? `${ms.toPrecision(ms < 0.995 ? 2 : 3)} ms` : duration(ms / 1000);
}

function stageRows(view: View): Row[] {
  const { plan, prediction, devices } = view;
  return (plan?.stages ?? []).flatMap((stage, index) =>
    stage.devices.map((device): Row => {
      const measured = devices.find(({ name }) => name === device)?.busyMs ?? measuredWork(view, device);
      return {
        name: `stage ${index} on ${device}`,
        predictedMs: prediction?.busyMs[device],
        measuredMs: measured ?? undefined,
      };
    }),
  );
}

/** What a device computed in the last round that was measured. */
function measuredWork({ measured }: View, device: string): number | undefined {
  const spans = measured?.spans[device];
  return spans
    ?.filter(({ kind }) => kind !== 'send' && kind !== 'receive' && kind !== 'all-reduce')
    .reduce((sum, { startMs, endMs }) => sum + endMs - startMs, 0);
}

function linkRows(view: View): Row[] {
  const predicted = view.prediction?.links ?? [];
  const measured = measuredLinks(view);
  const pairs = new Set([...predicted, ...measured].map(({ from, to }) => `${from} → ${to}`));
  const find = (links: readonly LinkTime[], pair: string): number | undefined =>
    links.find(({ from, to }) => `${from} → ${to}` === pair)?.ms;
  return [...pairs]
    .filter((pair) => !pair.startsWith('null'))
    .map((pair) => ({ name: pair, predictedMs: find(predicted, pair), measuredMs: find(measured, pair) }));
}

/** What links took in the last round that was measured. */
function measuredLinks({ measured }: View): LinkTime[] {
  const sums = new Map<string, LinkTime>();
  for (const span of Object.values(measured?.spans ?? {}).flat()) {
    if (span.kind !== 'send' || span.peer === undefined) continue;
    const key = `${span.device} ${span.peer}`;
    const ms = (sums.get(key)?.ms ?? 0) + span.endMs - span.startMs;
    sums.set(key, { from: span.device, to: span.peer, ms });
  }
  return [...sums.values()];
}
